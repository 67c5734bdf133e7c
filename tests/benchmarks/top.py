"""What the live screen costs: CPU and memory of `wstrace top`, beside a session that records the same, without screen.

    python tests/benchmarks/top.py [--faults 10000] [--lines 200] [--seconds 20] [--json]

The target takes so many faults a second, spread over so many lines of its own, and gives the pages back ten times a
second. The screen is a pseudo terminal of 80x24. CPU time is that of the whole process from its fifth second on; memory
is the largest that was resident. Goals: <= 5 % of a CPU at 1 Hz, <= 100 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

WARM_SECONDS = 5.0
NOTHING = """
import sys
from wstrace.interfaces import Exporter
from wstrace.session import Session
class Nothing(Exporter):
    name = "nothing"
    streams = frozenset({"page_fault", "process", "mapping", "call_site", "resident", "content_loss"})
    def export(self, batch): pass
sources = ["page_faults", "working_set:interval=1,max_cpu=0.02"]
with Session(pid=int(sys.argv[1]), sources=sources, exporters=[Nothing()], record=False) as session:
    session.wait()
"""


def target(faults: int, lines: int) -> str:
    """A program with that many faults a second, in that many lines."""
    pages = max(faults // lines // 10, 1)
    touch = "\n".join(
        f"def line{n}():\n    for i in range({n * pages}, {(n + 1) * pages}): m[i * 4096] = 1" for n in range(lines)
    )
    calls = "; ".join(f"line{n}()" for n in range(lines))
    return f"""
import mmap, time
m = mmap.mmap(-1, {lines * pages} * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)
{touch}
due = time.monotonic()
while True:
    {calls}
    m.madvise(mmap.MADV_DONTNEED)
    due += 0.1
    time.sleep(max(due - time.monotonic(), 0))
"""


@contextmanager
def running(*command: str, terminal: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process; with a terminal of 80x24 that somebody reads."""
    if not terminal:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            yield process
            process.kill()
        return
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, **streams, start_new_session=True, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)

    def read() -> None:
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        reader.join(5)
        os.close(ours)


def measured(process: subprocess.Popen[bytes], seconds: float) -> tuple[float, float]:
    """Its share of a CPU, in percent, and the most that it had resident, in MB."""
    import psutil

    def cpu() -> float:
        times = psutil.Process(process.pid).cpu_times()
        return times.user + times.system

    time.sleep(WARM_SECONDS)
    begun, before = time.monotonic(), cpu()
    time.sleep(seconds)
    share = 100 * (cpu() - before) / (time.monotonic() - begun)
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return share, peak * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {}
    with TemporaryDirectory() as folder, ExitStack() as opened:
        program = Path(folder, "target.py")
        program.write_text(target(asked.faults, asked.lines))
        process = opened.enter_context(running(sys.executable, str(program)))
        time.sleep(1)
        pid = str(process.pid)
        commands = {"recording alone": ("-c", NOTHING, pid), "wstrace top": ("-m", "wstrace", "top", pid)}
        for name, command in commands.items():
            with running(sys.executable, *command, terminal=name != "recording alone") as one:
                share, peak = measured(one, asked.seconds)
            found[name] = {"cpu_percent": round(share, 1), "peak_mb": round(peak, 1)}
    if asked.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(f"{name:>16}: {row['cpu_percent']:5.1f} % of a CPU, {row['peak_mb']:6.1f} MB at most")


if __name__ == "__main__":
    main()
