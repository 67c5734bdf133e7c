"""What the daemon takes of CPU and memory: many cgroups with few faults, or one program that faults without end.

    python tests/benchmarks/daemon.py                       # 200 cgroups, 2,000 processes, 100 faults/s, 5 minutes
    python tests/benchmarks/daemon.py --storm 200000        # besides, one process with so many faults/s
    python tests/benchmarks/daemon.py --seconds 3600        # flat for an hour?
    python tests/benchmarks/daemon.py --stacks auto         # with Python stacks, as by default

As root. Prints a line every 10 s: seconds, part of one CPU since the line before, resident MiB, one of how many faults
is recorded, faults recorded, and what was lost; at the end the part of one CPU in the first minute, in which most
processes are met, and behind it, and the kernel's buffers, which are not in the resident memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kit"))

from cgroups import MadeCgroup, made_cgroup

SETTINGS = """
sources = ["page_faults:stacks={stacks}"]
exporters = ["msgpack"]
[daemon]
cgroups = ["{cgroup}"]
max_cpu = {max_cpu}
health = "unix:{folder}/health.sock"
[msgpack]
path = "{folder}/node.wst"
rotate_bytes = "16MiB"
keep = 2
"""
#: argv: processes, faults a second of all together. Each process is a copy of this one, so that it takes little memory.
MANY = """
import mmap, os, random, sys, time
n, rate = int(sys.argv[1]), float(sys.argv[2])
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for _ in range(n - 1):
    if not os.fork():
        break
random.seed(os.getpid())
time.sleep(random.random() * n / rate)
while True:
    page.madvise(mmap.MADV_DONTNEED)
    page[0] = 1
    time.sleep(n / rate)
"""
STORM = """
import mmap, sys, time
rate, n = float(sys.argv[1]), 1024
memory = mmap.mmap(-1, n * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
began, done = time.monotonic(), 0
while True:
    memory.madvise(mmap.MADV_DONTNEED)
    for at in range(0, n * 4096, 4096):
        memory[at] = 1
    done += n
    time.sleep(max(0.0, done / rate - (time.monotonic() - began)))
"""


def facts(folder: str) -> dict:
    asked = subprocess.run(
        ["curl", "-s", "--max-time", "5", "--unix-socket", f"{folder}/health.sock", "http://localhost/"],
        capture_output=True, check=False,
    )  # fmt: skip
    return json.loads(asked.stdout or b"{}")


def processes(cgroup: MadeCgroup) -> int:
    return sum(len(file.read_text().split()) for file in cgroup.folder.rglob("cgroup.procs"))


def main() -> None:
    options = argparse.ArgumentParser()
    for name, default in (("cgroups", 200), ("processes", 2000), ("rate", 100.0), ("seconds", 300), ("storm", 0)):
        options.add_argument(f"--{name}", type=type(default), default=default)
    options.add_argument("--max-cpu", type=float, default=0.05)
    options.add_argument("--stacks", default="none")
    asked = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        whole = stack.enter_context(made_cgroup())
        each, rate = asked.processes // asked.cgroups, asked.rate / asked.cgroups
        started = []
        for number in range(asked.cgroups):
            below = whole.make(f"c{number}")
            command = [*below.joining(), sys.executable, "-S", "-c", MANY, str(each), str(rate)]
            started.append(subprocess.Popen(command, start_new_session=True))
        if asked.storm:
            command = [*whole.make("storm").joining(), sys.executable, "-S", "-c", STORM, str(asked.storm)]
            started.append(subprocess.Popen(command, start_new_session=True))
        for one in started:
            stack.callback(one.wait)
        for one in started:
            stack.callback(os.killpg, one.pid, signal.SIGKILL)
        while processes(whole) < asked.processes:
            time.sleep(1)
        path = Path(folder) / "wstrace.toml"
        path.write_text(SETTINGS.format(cgroup=whole.path, folder=folder, max_cpu=asked.max_cpu, stacks=asked.stacks))
        node = subprocess.Popen([sys.executable, "-m", "wstrace", "daemon", "--config", path])
        stack.callback(node.wait)
        stack.callback(node.send_signal, signal.SIGTERM)
        process = psutil.Process(node.pid)
        while not facts(folder):
            time.sleep(0.2)
        began, used = time.monotonic(), sum(process.cpu_times()[:2])
        first, last = (began, used), began
        minute = first
        while time.monotonic() - began < asked.seconds:
            time.sleep(10)
            now, total, told = time.monotonic(), sum(process.cpu_times()[:2]), facts(folder)
            cpu, resident = (total - used) / (now - last), process.memory_info().rss / 2**20
            print(f"{now - began:6.0f} s  {cpu:7.2%}  {resident:6.1f} MiB"
                  f"  1 in {told['sampled']}  {told['recorded']:,} recorded  {told['lost']}", flush=True)  # fmt: skip
            used, last = total, now
            if now - began <= 65:
                minute = now, total
        print(f"first minute {(minute[1] - first[1]) / (minute[0] - first[0]):.2%} of one CPU", end="")
        if last > minute[0]:
            print(f", then {(used - minute[1]) / (last - minute[0]):.2%}", end="")
        status = Path(f"/proc/{node.pid}/status").read_text()
        print(f"; the kernel's buffers: {int(status.partition('VmPin:')[2].split()[0]) / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
