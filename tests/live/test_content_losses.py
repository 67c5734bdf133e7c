"""What takes content away: a program that says what it did, against the rows of content_loss that were recorded."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kit.recorded_run import compiled

from wstrace.schema import LOSS_EVENTS

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("full_level")

PROGRAM = Path(__file__).with_name("content_losses.c")
REPLACED = "replaced by a new mapping"
EVERY = {word for word in LOSS_EVENTS if word and word != "evicted" and not word.startswith("perhaps")}


@pytest.fixture
def tracefs():
    """Skips where the tracepoints of calls may not be opened."""
    from wstrace_plugins.page_faults.linux import calls

    numbers, opened = calls.watch_calls([0])
    for _, fd in opened:
        os.close(fd)
    if not numbers:
        pytest.skip("needs tracefs (mount -t tracefs tracefs /sys/kernel/tracing)")


def losses(trace: Any) -> list[tuple[Any, ...]]:
    """pid, word, start, end, to and other of each row, in the order of time: each CPU tells its own in batches."""
    names = ("time_ns", "pid", "event", "start", "end", "to", "other")
    columns = (trace.column("content_loss", name).tolist() for name in names)
    rows = sorted(zip(*columns, strict=True), key=lambda row: row[0])
    return [(pid, LOSS_EVENTS[event], *rest) for _, pid, event, *rest in rows]


def said(path: Path) -> list[tuple[Any, ...]]:
    """The same of what the program wrote, without pid and other."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return [(event, *map(int, numbers)) for event, *numbers in lines]


def after_exec(trace: Any) -> list[tuple[Any, ...]]:
    """Those of the process that was launched since it last executed a program: word, start, end and to of each."""
    rows = [row[1:5] for row in losses(trace) if row[0] == trace.context.targets[0].pid]
    return rows[max(n for n, row in enumerate(rows) if row[0] == "executed") :]


def test_every_loss_is_a_row_and_no_failure_is(tracefs, trace, tmp_path):
    """GIVEN a program whose calls succeed and fail WHEN another process, which is not traced, does the same all along
    THEN the rows are exactly what the program says, in its order; where records were lost, as the tracer did not get
    to run, the trace says so, and has no other rows.
    """
    program = compiled(tmp_path, PROGRAM.read_text())
    loop = f"while '{program}' '{tmp_path}/other'; do sleep .01; done"  # slower than the tracer reads
    with subprocess.Popen(["sh", "-c", loop]) as other:
        try:
            done = trace([program, tmp_path / "said"])
        finally:
            other.kill()
    assert done.context.targets[0].exit_code == 0, "the line of content_losses.c that failed"
    expected = said(tmp_path / "said")
    assert len(expected) >= 12
    pid = done.context.targets[0].pid
    rows = [row for row in losses(done) if row[1] != "perhaps unmapped"]
    assert {row[0] for row in rows} == {pid}
    ours = [row[1:5] for row in rows if row[1] == "brk shrank" or row[2] >> 44 in (2, 3)]
    if "perhaps lost" in [row[0] for row in after_exec(done)]:
        expected = [row for row in expected if row in ours]
    assert ours == expected
    assert set(done.context.info.content_losses) >= EVERY


#: More than the ring of a processor holds.
MANY = """
#include <sys/mman.h>
int main(void) {
    char *p = mmap(0, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < 20000; n++) madvise(p, PAGE_BYTES, MADV_DONTNEED);
    return 0;
}
"""


def test_what_a_full_ring_has_lost_is_reported_of_a_program_that_was_executed_since(tracefs, trace, tmp_path):
    """GIVEN a ring that is full, as nobody reads it WHEN another program is executed, discards memory and ends THEN the
    trace says of that program, too, that calls may be lacking.
    """
    (tmp_path / "many").mkdir()
    many, program = compiled(tmp_path / "many", MANY), compiled(tmp_path, PROGRAM.read_text())
    words = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    done = trace([*words, "sh", "-c", f"'{many}'; exec '{program}' '{tmp_path}/said'"], slow=True)
    rows, expected = after_exec(done), said(tmp_path / "said")
    assert "discarded" in [row[0] for row in expected]
    assert "discarded" not in [row[0] for row in rows], "the ring had room"
    assert "perhaps lost" in [row[0] for row in rows]


#: a copy of the memory, the memory itself, and a program in its place
FAMILY = r"""
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    if (!fork()) _exit(0);
    wait(0);
    if (!vfork()) execl("/bin/true", "true", (char *)0);
    wait(0);
    return 0;
}
"""


def test_a_fork_is_distinguished_from_a_vfork(tracefs, trace, tmp_path):
    program = compiled(tmp_path, FAMILY)
    for _ in range(8):  # where others call all the time records are lost, and the trace has doubts instead of a fork
        done = trace([program])
        if not any(word.startswith("perhaps") for _, word, *_ in losses(done)):
            break
    parent = done.context.targets[0].pid
    rows = [(pid, word, other) for pid, word, *_, other in losses(done) if word in EVERY - {"unmapped", REPLACED}]
    (first, _, _), (second, _, _) = rows[1:3]
    assert len({parent, first, second}) == 3
    expected = [(parent, "executed", 0), (first, "forked", parent), (second, "shares memory", parent)]
    assert rows[:4] == [*expected, (second, "executed", 0)]


def test_where_tracepoints_are_refused_the_trace_says_so(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("wstrace_plugins.page_faults.linux.backend.permitted", lambda: nullcontext([]))
    done = trace([compiled(tmp_path, FAMILY)])
    assert done.context.info.content_losses == ("executed",)
    assert {word for _, word, *_ in losses(done)} <= {"executed", "perhaps forked", "shares memory"}
