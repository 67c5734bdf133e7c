"""Another tracer on the same faults: `perf record` has the kernel write longer rows into our rings; none is lost."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import until
from kit.recorded_run import compiled

pytestmark = [
    pytest.mark.usefixtures("full_level"),
    pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (tests/install-peers)"),
]

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
    command = [
        "perf",
        "record",
        "-q",
        "-k",
        "CLOCK_MONOTONIC",
        "-e",
        "minor-faults",
        "-c",
        "1",
        *options,
        "-p",
        str(pid),
    ]
    perf = subprocess.Popen([*command, "-o", str(data)], stderr=subprocess.DEVNULL)
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
