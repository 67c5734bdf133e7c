"""The format `.folded` is what `report --format folded` prints."""

import pytest
from kit.blame_scripted import ANON, APP, PAGE, SAVE, Script, saved
from kit.command_line import wstrace

from wstrace_exporters.msgpack.read.trace import open_trace


@pytest.fixture
def path(tmp_path):
    """Python stacks, a sampled native one, a fault without any, and names that are made to harm."""
    script = Script()
    for n in range(5):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 3 else SAVE)
    script.fault(20, ANON + 8 * PAGE, stack=[("f\x1b[2J;g\n", "/srv/\udcff\x9b;x.py", 3), *APP])
    script.fault(21, ANON + 9 * PAGE, native=[(3, 64), (4, 32)])
    saved(script.trace(), str(tmp_path / "x.wst"))
    return tmp_path / "x.wst"


def test_both_ways_give_the_same_lines(path, tmp_path):
    out = tmp_path / "x.folded"
    with open_trace(str(path)) as trace:
        n = trace.save(str(out))
    done = wstrace("report", path, "--format", "folded")
    assert out.read_text() == done.stdout
    assert n == len(done.stdout.splitlines())
    assert "<module> app/app.py:50;load_frame app/app.py:31 3\n" in done.stdout
    assert sum(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()) == 7
    assert done.stdout.replace("\n", "").isprintable()


def test_a_fault_without_a_stack_is_reported_by_its_instruction(tmp_path):
    script = Script()
    script.fault(10, ANON)
    script.trace().save(str(tmp_path / "x.folded"))
    assert (tmp_path / "x.folded").read_text() == "tool+0x40 1\n"


def test_a_cut_stack_begins_with_what_it_lacks(tmp_path):
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, cut=True)
    script.trace().save(str(tmp_path / "x.folded"))
    frames = "<module> app.py:50;load_frame app.py:31 1"
    assert (tmp_path / "x.folded").read_text().splitlines() == [frames, f"[not kept];{frames}"]
