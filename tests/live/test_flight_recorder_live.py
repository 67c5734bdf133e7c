"""`wstrace attach PID --keep --on` on a real process: the line, the recording, and what a reader has of it."""

import re
import subprocess
import sys

import pytest
from kit.command_line import begun, until, wstrace
from kit.growing import grow, growing
from kit.kept_minutes import wait_until_traced

from wstrace import open_trace
from wstrace.firing import Recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")


def test_attach_records_the_minutes_before_a_size_and_the_end(tmp_path, full_level, python_stacks):
    program = subprocess.Popen(
        [sys.executable, growing(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    grow(program, 1)
    words = ("--keep", "60s", "--on", "rss=100MiB", "--on", "end", "-o", "api.wst")
    tracer = begun("attach", program.pid, *words, cwd=tmp_path)
    try:
        wait_until_traced(tmp_path / "api.ring.wst", tracer)
        grow(program, 100)
        until((tmp_path / "api-1.wst").exists)
        grow(program, 1)
        program.communicate(timeout=20)
        _, said = tracer.communicate(timeout=90)
    finally:
        for process in (program, tracer):
            process.kill()
            process.communicate()
    assert tracer.returncode == 0, said
    line = next(line for line in said.splitlines() if ": at " in line)
    found = re.fullmatch(r"\S+: at ([\d.]+) MiB; \+([\d.]+) in the last \S+ m?s: ([\d.]+) by load_index app.py:5,"
                         r" ([\d.]+) by cache_user app.py:7", line)  # fmt: skip
    assert found, said
    size, gained, first, second = (float(one) for one in found.groups())
    assert size >= 100
    assert first == pytest.approx(100, abs=40), "how many had come when it was looked at depends on the machine"
    assert second == pytest.approx(first / 4, rel=0.1)
    assert gained == pytest.approx(first + second, rel=0.1)
    assert any(": ended at " in line for line in said.splitlines()), said
    assert sorted({path.name.partition(".")[0] for path in tmp_path.glob("*.wst")}) == ["api-1", "api-2"], "no ring"
    with open_trace(tmp_path / "api-1.wst") as trace:
        shown = Recording.of(trace.info.extra)
        assert shown.what == "rss=100MiB"
        assert shown.n_bytes / (1 << 20) == pytest.approx(size, abs=0.1)
        assert trace.state == "clean"
        assert not trace.info.incomplete
    with open_trace(tmp_path / "api-2.wst") as later:
        assert Recording.of(later.info.extra).how == "ended"
        assert later.rows["page_fault"] >= 101 * 320, "it has the minutes of the first one too"


def test_a_wrong_trigger_is_reported_before_anything_is_traced(tmp_path):
    done = wstrace("attach", 1, "--on", "rss=much", cwd=tmp_path)
    assert done.returncode == 125
    assert done.stderr.startswith("wstrace: trigger rss=much")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["-s", "triggers:pause=-1"], "pause is 0 or more"),
        (["-e", "flight_recorder:recordings=-1"], "recordings is 0 or more"),
    ],
)
def test_options_of_both_parts_hold_beside_keep_and_on(tmp_path, words, refused):
    with subprocess.Popen(["sleep", "60"]) as process:
        keep = ("--keep", "60s", "--on", "end", "-o", "api.wst", "--duration", "1ms")
        done = wstrace("attach", process.pid, *keep, *words, cwd=tmp_path)
        process.kill()
    assert done.returncode == 125, done.stderr
    assert refused in done.stderr
