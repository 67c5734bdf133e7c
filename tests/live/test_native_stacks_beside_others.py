"""Another tracer on the same faults, begun before or after us: no sample gets a wrong stack, no fault is lost.

The kernel shares one perf_sample_data among the events of one config that a fault triggers: `page-faults` is the
config of our samples, `minor-faults` that of our rows.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import WSTRACE, until
from kit.other_tracers import BPFTRACE, after, beside
from kit.recorded_run import compiled
from kit.stack_truth import SOURCE, StackNames, assert_right, regions

import wstrace

pytestmark = pytest.mark.usefixtures("full_level")
needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (tests/install-peers)")
OURS = [*WSTRACE, "run", "-q", "-f", "-s", "page_faults:stacks=native,stack_period=5"]


@needs_perf
@pytest.mark.parametrize("event", ["page-faults", "minor-faults"])
@pytest.mark.parametrize("first", ["perf", "wstrace"])
@pytest.mark.parametrize("options", [["-g"], ["--call-graph", "dwarf"], ["-d"]], ids=["g", "dwarf", "d"])
def test_stacks_stay_right(tmp_path, event, first, options):
    program = compiled(tmp_path, SOURCE)
    trace = tmp_path / "trace.wst"
    perf = ["perf", "record", "-q", "-e", event, "-c", "7", *options, "-o", tmp_path / "perf.data", "--"]
    ours = [*OURS, "-o", trace, "--"]
    words = [*perf, *ours] if first == "perf" else [*ours, *perf]
    assert_stacks_right([*words, program, 2], trace)


@pytest.mark.skipif(shutil.which("bpftrace") is None, reason="needs bpftrace (tests/install-peers)")
@pytest.mark.parametrize("first", ["bpftrace", "wstrace"])
def test_stacks_stay_right_beside_bpftrace(tmp_path, first):
    program = compiled(tmp_path, SOURCE)
    trace = tmp_path / "trace.wst"
    ours = [*OURS, "-o", trace, "--"]
    if first == "bpftrace":
        with beside(*BPFTRACE):
            assert_stacks_right([*ours, program, 2], trace)
    else:
        assert_stacks_right([*ours, *after(*BPFTRACE), program, 2], trace)


def assert_stacks_right(words: Sequence[object], trace: Path) -> None:
    """Runs the command, whose last one prints its regions, and looks at the trace."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "detached" not in done.stderr, done.stderr
    with wstrace.open_trace(str(trace)) as opened:
        names, known = StackNames(opened), regions(done.stdout)
        assert assert_right(names, known) > 50  # each is checked; on a busy machine fewer are sampled
        assert opened.ledger.get("unaccounted") == 0


#: waits for a line, touches N pages one after the other and prints their address, again until the end of its input
TOUCH_ON_WORD = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t n = strtoul(argv[1], 0, 10);
    char word;
    while (read(0, &word, 1) == 1) {
        char *p = mmap(0, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, n * 4096, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < n; i++) ((volatile char *)p)[i * 4096] = 1;
        printf("%lu\n", (unsigned long)p);
        fflush(stdout);
    }
    return 0;
}
"""
PAGES, ROUNDS = 3000, 4


@contextmanager
def perf_record(pid: int, folder: Path, options: list[str]) -> Iterator[None]:
    """perf, once it has begun to record."""
    data = folder / "perf.data"
    command = ["perf", "record", "-q", "-k", "CLOCK_MONOTONIC", "-e", "minor-faults", "-c", "1", *options]
    perf = subprocess.Popen([*command, "-p", str(pid), "-o", data], stderr=subprocess.DEVNULL)
    try:
        until(lambda: data.exists() and _has_events(perf.pid))
        time.sleep(0.1)
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        perf.wait()


def _has_events(pid: int) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # perf has closed it since
            if "perf_event" in str(fd.readlink()):
                return True
    return False


@needs_perf
@pytest.mark.parametrize("options", [["-g"], ["--call-graph", "dwarf,1024"], ["-d"]], ids=" ".join)
@pytest.mark.parametrize("first", ["perf", "wstrace"])
def test_every_fault_has_its_row(attach, tmp_path, options, first):
    """GIVEN a program that touches known pages WHEN perf records the same faults, begun before or after us THEN each
    page has one row and nothing is unaccounted.
    """
    program = compiled(tmp_path, TOUCH_ON_WORD)
    with subprocess.Popen([program, str(PAGES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        trace = attach(process.pid) if first == "wstrace" else None
        with perf_record(process.pid, tmp_path, options):
            trace = trace or attach(process.pid)
            bases = []
            for _ in range(ROUNDS):
                process.stdin.write(b"x")
                process.stdin.flush()
                bases.append(int(process.stdout.readline()))
                trace.batches += trace.source.drain(0.01)
            trace.stop()
        process.stdin.close()
    va = trace.faults().va
    for base in bases:
        inside = va[(va >= base) & (va < base + PAGES * 4096)]
        assert np.array_equal(np.sort(inside), base + np.arange(PAGES, dtype="<u8") * 4096)
    trace.assert_balanced()
    trace.assert_ordered()
