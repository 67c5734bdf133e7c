"""What prefetch lists gain: cold starts of programs, and a sparse set of pages of a virtual machine's memory file.

    python tests/benchmarks/prefetch.py [--runs 11] [--only python node chromium memory ways] [--python PROGRAM]

Starts: python with numpy, and node, are copied to a folder of their own, so that no other process has their files
mapped and these can leave the page cache; chromium is run where it is installed. `cold` evicts the files of the list,
`all` every file of the copy (with those that are read, such as .pyc, which no list has).

memory: a file of 256 MiB, mapped privately with MADV_RANDOM, as a monitor maps the memory of a snapshot; a guest
touches a random set of 8, 24 or 99 MiB in runs of 2.5 pages on average. The list is made from a trace of one cold run.

ways: how long it takes until the list of python with numpy is in memory, by each of the kernel's calls.

Goals: >= 30 % of the cold penalty of python+numpy and node; >= 3 x on the memory file at 8 and 24 MiB. Times are
medians, with the least and the most; `loaded` says that they are of little worth. `chrt -f 10` before it takes the
processors from everything else.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import wstrace
from wstrace_plugins.os.linux import page_cache
from wstrace_plugins.prefetch.applying import apply
from wstrace_plugins.prefetch.backend import backend
from wstrace_plugins.prefetch.comparing import Comparison, recorded
from wstrace_plugins.prefetch.linux import backend as calls
from wstrace_plugins.prefetch.making import made
from wstrace_plugins.prefetch.start_list import Range, decoded, encoded

PAGE = 4096
MEMORY = 256 << 20
GUEST = """
import mmap, random, sys
path, n = sys.argv[1], int(sys.argv[2])
def pages(n):
    r, found = random.Random(7), set()
    while len(found) < n:
        first = r.randrange((256 << 20) // 4096 - 16)
        found.update(range(first, first + 1 + int(r.expovariate(1 / 2.5))))
    found = sorted(found)[:n]
    random.Random(1).shuffle(found)
    return found
if __name__ == "__main__":
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.madvise(mmap.MADV_RANDOM)
    import time
    begun = time.perf_counter()
    for page in pages(n):
        memory[page * 4096]
    print((time.perf_counter() - begun) * 1e3)
"""


def start(name: str, command: Sequence[str], everything: Sequence[str], runs: int) -> list[Range]:
    code, found = recorded(command, backend())
    assert not code, f"{name}: exit code {code}"
    for how, also in (("cold", ()), ("all", everything)) if everything else (("cold", ()),):
        comparison = Comparison(command, found.ranges, backend(), also=also)
        assert not comparison.run(runs), name
        size = sum(one.length for one in found.ranges) / 2**20
        print(f"\n{name}, {how}: {len(found.ranges)} ranges, {size:.1f} MiB", *comparison.lines(), sep="\n", flush=True)
    return found.ranges


def python_of_its_own(program: str, folder: Path) -> list[str]:
    """The words that run a copy of a Python with a copy of our numpy."""
    version = subprocess.run([program, "-c", "import sys; print(sys.prefix, *sys.version_info[:2])"],
                             capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    name = f"python{version[1]}.{version[2]}"
    left_out = shutil.ignore_patterns("test", "tests", "dist-packages", "site-packages", "*.a")
    shutil.copytree(Path(version[0]) / "lib" / name, folder / "lib" / name, symlinks=True, ignore=left_out)
    (folder / "bin").mkdir()
    shutil.copy(program, folder / "bin" / name)
    site = Path(np.__file__).parent.parent
    for package in ("numpy", "numpy.libs"):
        if (site / package).exists():
            shutil.copytree(site / package, folder / "lib" / name / package, ignore=left_out)
    written_back(folder)
    return ["env", f"PYTHONHOME={folder}", str(folder / "bin" / name), "-c", "import numpy"]


def written_back(folder: Path) -> None:
    """A page that is not on disk yet cannot leave the page cache."""
    for path in map(Path, files_in(folder)):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def files_in(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def memory_file(folder: Path, runs: int) -> None:
    path, program = folder / "guest.mem", folder / "guest.py"
    program.write_text(GUEST)
    with path.open("wb") as file:
        for _ in range(MEMORY >> 20):
            file.write(random.randbytes(1 << 20))
        os.fsync(file.fileno())
    scope: dict[str, Callable[[int], list[int]]] = {}
    sys.argv[1:] = [str(path), "0"]
    exec(GUEST.replace("__main__", "-"), scope)
    for mib in (8, 24, 99):
        n = mib << 20 >> 12
        page_cache.evict([str(path)])
        trace = str(folder / "vm.wst")
        run = [
            sys.executable,
            "-m",
            "wstrace",
            "run",
            "-q",
            "-f",
            "-o",
            trace,
            "--",
            sys.executable,
            program,
            path,
            str(n),
        ]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        with wstrace.open_trace(trace) as opened:
            ranges = [one for one in made(opened, backend()).ranges if one.file.path == os.fsencode(path)]
        wanted = set(scope["pages"](n))
        found = {page for one in ranges for page in range(one.offset // PAGE, (one.offset + one.length) // PAGE)}
        times: dict[str, list[float]] = {"lazy": [], "list": [], "warm": []}
        for _ in range(runs):
            for way in random.sample(list(times), len(times)):
                page_cache.evict([str(path)])
                if way == "warm":
                    path.read_bytes()
                begun = time.perf_counter()
                if way == "list":
                    apply(ranges, backend())
                before = (time.perf_counter() - begun) * 1e3
                touched = subprocess.run(
                    [sys.executable, program, path, str(n)], capture_output=True, check=True
                ).stdout
                times[way].append(float(touched) + before)
        median = {way: statistics.median(its) for way, its in times.items()}
        shown = ", ".join(f"{way} {median[way]:.0f} ms ({min(its):.0f}-{max(its):.0f})" for way, its in times.items())
        missing = (
            f"{len(wanted - found)} of {n} touched pages missing in the list ({len(found)} in {len(ranges)} ranges)"
        )
        print(f"memory file, {mib} MiB: {missing}; {shown}: {median['lazy'] / median['list']:.1f} x", flush=True)


def ways(ranges: Sequence[Range], runs: int) -> None:
    """Prints how long it takes until all ranges are in memory, by each way of asking for them."""
    files = sorted({os.fsdecode(one.file.path) for one in ranges})
    fds = {one.file.path: os.open(one.file.path, os.O_RDONLY) for one in ranges}

    def each(call: Callable[[int, int, int], None]) -> None:
        for one in ranges:
            call(fds[one.file.path], one.offset, one.length)

    def asked_and_awaited() -> None:
        each(calls.read_ahead)
        each(calls.wait_for)

    def read() -> None:
        each(lambda fd, offset, length: os.pread(fd, length, offset) and None)

    tried = {"posix_fadvise, then MADV_POPULATE_READ": asked_and_awaited,
             "MADV_POPULATE_READ alone": lambda: each(calls.wait_for), "pread": read}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in tried}
    for _ in range(runs):
        for name in random.sample(list(tried), len(tried)):
            page_cache.evict(files)
            begun = time.perf_counter()
            tried[name]()
            times[name].append((time.perf_counter() - begun) * 1e3)
    print()
    for name, its in times.items():
        print(f"{name:<42}{statistics.median(its):>8.1f} ms ({min(its):.1f}-{max(its):.1f})", flush=True)
    for fd in fds.values():
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--only", nargs="*", default=["python", "node", "chromium", "memory", "ways"])
    parser.add_argument("--python", default="/usr/bin/python3")
    asked = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="wstrace-bench-", dir=Path.home()) as place:
        folder = Path(place)
        if {"python", "ways"} & set(asked.only):
            (folder / "python").mkdir()
            command = python_of_its_own(asked.python, folder / "python")
            if "python" in asked.only:
                ranges = start("python+numpy", command, files_in(folder / "python"), asked.runs)
            else:
                ranges = recorded(command, backend())[1].ranges
            assert decoded(b"".join(encoded(ranges)), "it") == ranges
            own = [one for one in ranges if one.file.path.startswith(os.fsencode(folder))]
            if "ways" in asked.only:
                ways(own, asked.runs)
        if "node" in asked.only and (node := shutil.which("node")):
            (folder / "node").mkdir()
            shutil.copy(os.path.realpath(node), folder / "node" / "node")
            written_back(folder / "node")
            start("node", [str(folder / "node" / "node"), "-e", "0"], [], asked.runs)
        if "chromium" in asked.only and (chromium := shutil.which("chromium")):
            words = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={folder / 'profile'}",
                "--dump-dom",
            ]
            start("chromium", [chromium, *words, "about:blank"], [], asked.runs)
        if "memory" in asked.only:
            memory_file(folder, asked.runs)


if __name__ == "__main__":
    main()
