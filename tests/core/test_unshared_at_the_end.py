"""What processes un-shared while they ran, apart from what their interpreters copied as they ended."""

import pytest
from click.testing import CliRunner
from kit.blame_scripted import ANON, APP, PAGE, SAVE, Script, saved

from wstrace.analysis.unshared import Unshared
from wstrace.analysis.unshared import unshared as of_forks
from wstrace.schema import HOW_NO_PYTHON, HOW_NOT_KNOWN, LOSS_FORKED, PROCESS_EXIT
from wstrace_exporters.console.commands.unshared import unshared

DESTRUCTOR = [("__del__", "/srv/app/app.py", 90)]
SIGNALLED = [("stop", "/srv/app/app.py", 70), *SAVE]


def served(*, ends: bool = True, how: int = HOW_NO_PYTHON) -> Script:
    """A child that copies 16 pages by a line, 2 in a thread without Python, and 9 behind its last frame."""
    script = Script()
    for page in range(64):
        script.fault(10 + page, ANON + page * PAGE, APP)
    script.lose(100, LOSS_FORKED, pid=8, other=7)
    for page in range(16):
        script.fault(1000 + page, ANON + page * PAGE, SAVE, pid=8)
    script.fault(1100, ANON + 20 * PAGE, pid=8, tid=9)
    script.fault(1200, ANON + 21 * PAGE, SIGNALLED, pid=8)
    script.fault(1210, ANON + 22 * PAGE, pid=8, tid=9)
    for page in range(8):
        script.fault(1300 + page, ANON + (30 + page) * PAGE, pid=8, how=how)
    script.fault(1304, ANON + 50 * PAGE, DESTRUCTOR, pid=8)
    if ends:
        script.batches.append(script.process(5000, 8, PROCESS_EXIT, "app"))
    return script


def test_what_a_process_copied_as_it_ended_is_distinguished(tmp_path):
    shown = Unshared(served().blame())
    assert (shown.total, shown.at_the_end) == (28 * PAGE, 9 * PAGE)
    found = {row.of("function"): (row["copied"], row["at_the_end"]) for row in shown.rows("function")}
    assert found == {"save": (16 * PAGE, 0), "stop": (PAGE, 0), "": (10 * PAGE, 8 * PAGE), "__del__": (PAGE, PAGE)}
    report = of_forks(served().trace()).as_dict()
    assert (report["total"]["at_the_end"], sum(row["at_the_end"] for row in report["rows"])) == (9 * PAGE, 9 * PAGE)
    saved(served().trace(), path := str(tmp_path / "x.wst"))
    lines = CliRunner().invoke(unshared, [path], catch_exceptions=False).output.splitlines()
    assert lines[0].startswith("76.0 KiB un-shared after 1 fork: 64.0 save app.py:40, 8.0 ")
    assert lines[0].endswith("; 36.0 KiB more as 1 process ended")
    assert "ended" not in lines[1]
    head = next(line for line in lines if line.endswith("own line"))
    assert head.split() == ["copied", "at", "the", "end", "own", "line"]
    total = next(line for line in lines if line.endswith(" Total"))
    assert total.split()[:4] == ["112.0", "KiB", "36.0", "KiB"]


@pytest.mark.parametrize(("ends", "how"), [(False, HOW_NO_PYTHON), (True, HOW_NOT_KNOWN)])
def test_nothing_is_reported_of_an_end_that_is_not_known(ends, how):
    """GIVEN a process that goes on, or with unknown last stacks THEN all counts as copied while it ran."""
    shown = Unshared(served(ends=ends, how=how).blame())
    assert (shown.total, shown.at_the_end) == (28 * PAGE, 0)
    assert shown.ended == ends, "then line 2 says that what it copied as it ended counts too"
