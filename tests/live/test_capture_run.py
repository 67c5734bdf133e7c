"""A launched target on the real kernel: every page it touches, perf's counts, rusage, forks, threads, loss."""

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from kit.open_files import descriptors

from wstrace.interfaces import Context, Source
from wstrace.schema import PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, SPACE_MOVE, SPACE_UNMAP
from wstrace.testing import SourceContract
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.os.linux.pagemap import PAGE
from wstrace_plugins.os.linux.versions import kernel
from wstrace_plugins.page_faults.linux import calls
from wstrace_plugins.page_faults.linux.backend import PageFaults

pytestmark = pytest.mark.usefixtures("full_level")

#: Where huge pages are for all memory, as on Debian, a few faults would bring a whole list: PR_SET_THP_DISABLE.
SMALL_PAGES = "import ctypes; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


@pytest.mark.parametrize("n", [1, 30_000])
def test_every_touched_page(trace, touch, capfd, n):
    traced = trace([touch, n])
    base = int(capfd.readouterr().out)
    pages = base + PAGE * np.arange(n, dtype="<u8")
    faults = traced.faults()
    inside = traced.faults_since_mapped(base, base + PAGE * n)
    assert np.array_equal(np.sort(inside.va), np.sort(pages + np.arange(n, dtype="<u8") % PAGE))  # bytes, not pages
    assert set(inside.pid) == set(inside.tid) == {traced.context.targets[0].pid}
    assert not (inside.bits & 3).any()
    assert len(set(inside.pc)) == 1
    traced.assert_balanced()
    traced.assert_ordered()
    assert 0 <= traced.usage.minor + traced.usage.major - len(faults) < 200  # its file may have left the page cache


@pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (tests/install-peers)")
def test_counts_are_those_of_perf_stat(trace, touch, tmp_path):
    """perf stat is the traced command; what it counts is its child from the child's exec on."""
    out = tmp_path / "stat"
    traced = trace(["perf", "stat", "-x,", "-o", out, "-e", "minor-faults,major-faults", "--", touch, 20_000])
    shown = [int(line.split(",")[0]) for line in out.read_text().splitlines() if ",m" in line]
    executed = [row for row in traced.processes(PROCESS_EXEC) if traced.context.strings[row.name] == "touch"]
    assert len(executed) == 1
    faults = traced.faults(pid=executed[0].pid)
    # the kernel switches events on (perf_event_exec) right before it records the exec
    after = faults[faults.time_ns >= executed[0].time_ns]
    assert [int((after.bits & 1 == 0).sum()), int((after.bits & 1).sum())] == shown
    traced.assert_balanced()


def test_pages_that_come_without_a_fault(trace, touch, capfd):
    populated = trace([touch, 20_000, "populate"])
    base = int(capfd.readouterr().out)
    faults = populated.faults()
    assert not ((faults.va >= base) & (faults.va < base + PAGE * 20_000)).any()
    missing = populated.usage.minor + populated.usage.major - len(faults)
    assert missing > 20_000 // (PAGE // 8)  # huge pages
    [reason] = populated.context.info.notes
    assert reason.startswith(f"{missing:,} pages that came without a fault")
    populated.assert_balanced()


def coverage(traced: Any) -> tuple[int, int]:
    """(faults at an address that was mapped at that time, all others), from the source's own rows."""
    spaces = [traced.column("address_space", name).tolist() for name in ("time_ns", "event", "start", "end")]
    faults = traced.faults()
    rows = [(time_ns, 0, *rest) for time_ns, *rest in zip(*spaces, strict=True)]
    rows += [(time_ns, 1, 0, va, 0) for time_ns, va in zip(faults.time_ns.tolist(), faults.va.tolist(), strict=True)]
    mapped = []
    known = unknown = 0
    for _, is_fault, event, start, end in sorted(rows, key=lambda row: row[:2]):
        if is_fault:
            hit = any(s <= start < e for s, e in mapped)
            known, unknown = known + hit, unknown + (not hit)
        elif event == SPACE_UNMAP:
            parts = [part for s, e in mapped for part in ((s, min(e, start)), (max(s, end), e))]
            mapped = [(s, e) for s, e in parts if s < e]
        else:
            mapped.append((start, end))
    return known, unknown


def test_every_fault_has_its_mapping(trace):
    """What perf does not tell (munmap, mremap) is shown by the tracepoints: not one address is unknown."""
    with calls.permitted() as permitted:
        shown = bool(permitted)
    if not shown:
        pytest.skip("munmap and mremap are shown to root only (tracefs)")
    traced = trace(python(f"{SMALL_PAGES}x = []\nfor i in range(3_000_000): x.append(None)\n"))
    moved = traced.column("address_space", "event").tolist().count(SPACE_MOVE)
    known, unknown = coverage(traced)
    assert known > 3_000_000 * 8 // PAGE
    assert moved > 5  # what grows in its place is not unmapped
    assert unknown <= 25  # the new image's first faults may come before its first mapping is shown


def test_thousand_forks(trace):
    traced = trace(python("""
import os
for i in range(1000):
    pid = os.fork()
    if not pid: os._exit(i % 3)
    os.waitpid(pid, 0)
"""))  # fmt: skip
    forks, exits = traced.processes(PROCESS_FORK), traced.processes(PROCESS_EXIT)
    root = traced.context.targets[0].pid
    children = forks.pid[forks.pid != root]
    assert len(children) == 1000
    assert set(forks.ppid) == {root}
    assert sorted(exits.pid) == sorted([root, *children])
    assert set(exits.code[exits.pid != root]) <= {-1, 0, 1, 2}
    born = dict(zip(forks.pid, forks.time_ns, strict=True))
    faults = traced.faults()
    assert set(children) <= set(faults.pid)
    assert all(row.time_ns > born[row.pid] for row in faults[faults.pid != root])
    assert traced.ledger("lost_side_band") == 0
    traced.assert_balanced()


@pytest.mark.skipif(kernel() < (5, 13), reason="older kernels cannot leave children out and keep threads")
def test_children_are_left_out(trace):
    alone = trace(python("import os\nfor i in range(20): os.fork() or os._exit(0)"), children=False)
    assert set(alone.faults().pid) == {alone.context.targets[0].pid}
    assert len(alone.processes(PROCESS_FORK)) == 0
    alone.assert_balanced()


def test_two_hundred_threads(trace, capfd):
    traced = trace(python("""
import threading, time
ids = []
def body():
    ids.append(threading.get_native_id())
    bytearray(300_000)
    barrier.wait()
barrier = threading.Barrier(200)
threads = [threading.Thread(target=body) for _ in range(200)]
[t.start() for t in threads]; [t.join() for t in threads]
print(*ids)
"""))  # fmt: skip
    ids = {int(word) for word in capfd.readouterr().out.split()}
    assert len(ids) == 200
    assert ids <= set(traced.faults().tid)
    pid = traced.context.targets[0].pid
    exits = traced.processes(PROCESS_EXIT)
    assert ids <= set(exits.tid)
    assert list(exits.tid[exits.pid == pid]).count(pid) == 1
    assert exits.tid[-1] == pid  # the process ends when its last thread has
    traced.assert_balanced()


def test_chain_of_execs(trace, touch, capfd):
    traced = trace(["sh", "-c", f"exec sh -c 'exec env {touch} 500'"])
    base = int(capfd.readouterr().out)
    executed = traced.processes(PROCESS_EXEC)
    assert [traced.context.strings[i] for i in executed.name] == ["sh", "sh", "env", "touch"]
    assert len(set(executed.pid)) == 1
    faults = traced.faults()
    assert int(((faults.va >= base) & (faults.va < base + PAGE * 500)).sum()) == 500
    traced.assert_balanced()


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$", "kill -SEGV $$", ":"])
def test_short_and_violent_ends(trace, ending):
    traced = trace(["sh", "-c", ending])
    traced.assert_balanced()
    [end] = traced.processes(PROCESS_EXIT)
    assert (
        end.code
        == traced.context.targets[0].exit_code
        == {"e": 3, "k": 137 if "9" in ending else 139}.get(ending[0], 0)
    )


def test_daemon_left_behind(trace, capfd):
    began = time.monotonic()
    traced = trace(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; sleep 0.3"])
    daemon = int(capfd.readouterr().out)
    os.kill(daemon, signal.SIGKILL)
    assert time.monotonic() - began < 30
    assert daemon in traced.faults().pid
    traced.assert_balanced()


def test_a_tiny_ring_loses_and_tells(trace, touch):
    """The kernel says LOST only before the next record that finds room: the rest is known from the counts alone."""
    traced = trace([touch, 20_000], ring_bytes=65_536, slow=True)
    recorded, lost = len(traced.faults()), traced.ledger("lost_kernel")
    assert 0 < recorded <= 2 * os.cpu_count() * 65_536 // 40
    assert lost > 20_000 - recorded
    traced.assert_balanced()
    assert ("lost_kernel", "minor", lost) in traced.context.ledger.losses()


def test_a_lossy_ring_while_drained(trace, touch):
    traced = trace(
        [touch, 2000, 50], ring_bytes=4096
    )  # as many bytes at once as any machine has, of pages of 64 KiB, too
    assert traced.ledger("lost_kernel") > 0
    assert 0 < sum(batch.lost for batch in traced.batches) <= traced.ledger("lost_kernel")
    traced.assert_balanced()
    traced.assert_ordered()


def test_one_in_n(trace, touch):
    traced = trace([touch, 50_000], period=100)
    assert traced.ledger("counted", "minor") > 50_000
    assert traced.context.info.sampled == traced.ledger("sampled") == 100
    assert 490 <= len(traced.faults()) <= 520
    assert set(traced.column("page_fault", "sampled").tolist()) == {100}


def test_nothing_is_left_open_by_a_command_that_ran_or_could_not(trace, tmp_path):
    from wstrace.errors import CannotExecute

    plain = tmp_path / "plain"
    plain.write_text("no program\n")
    plain.chmod(0o755)
    trace(["true"])
    before = descriptors()
    with pytest.raises(CannotExecute):
        trace([plain])
    trace(["true"])
    assert descriptors() == before


BUSY = "import time\nwhile True: bytearray(1 << 20); time.sleep(0.001)"


class TestPageFaults(SourceContract):
    @pytest.fixture(autouse=True)
    def busy(self):
        self.child = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
        yield
        self.child.kill()
        self.child.wait()

    def make(self) -> Source:
        return PageFaults()

    def context(self) -> Context:
        return Context(targets=(platform().attach(self.child.pid),))
