"""What the pytest plugin costs, whether it raises false alarms, and whether it finds a growth of 2 %.

python tests/benchmarks/budgets.py start [PAIRS]      start-up without --wstrace, over -p no:wstrace
python tests/benchmarks/budgets.py empty [PAIRS]      1,000 empty tests with --wstrace, over those without
python tests/benchmarks/budgets.py alarms [TIMES]     20 stable tests judged TIMES times, every second beside a burner
python tests/benchmarks/budgets.py growth [TIMES]     tests that take 2 % more, judged TIMES times
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]

#: ten programs, each as a test in place and in forks; GROW is the growth in percent
STABLE = """
import json, os, random, re, sqlite3, zlib
import pytest

PAGE, MORE = 4096, 1 + float(os.environ.get("GROW", 0)) / 100
kept = []

def count(n): return int(n * MORE)
def block(): kept.append(bytearray(count(32 << 20)))
def blocks(): kept.append([bytearray(100_000) for _ in range(count(250))])
def gone(): bytearray(count(48 << 20)).count(1)
def rows(): kept.append([(n, str(n)) for n in range(count(150_000))])
def table(): kept.append({str(n): n for n in range(count(150_000))})
def parsed(): kept.append(json.loads("[" + ",".join(["[1.5, 2.5, 3.5]"] * count(60_000)) + "]"))
def packed(): kept.append(zlib.compress(os.urandom(1) * count(32 << 20)))
def database():
    store = sqlite3.connect(":memory:")
    store.execute("create table t (a, b)")
    store.executemany("insert into t values (?, ?)", ((n, "x" * 100) for n in range(count(120_000))))
    kept.append(store)
def found(): kept.append(re.findall("ab+", "abbb" * count(400_000)))
def ordered():
    random.seed(1)
    kept.append(sorted(random.random() for _ in range(count(400_000))))

PROGRAMS = [block, blocks, gone, rows, table, parsed, packed, database, found, ordered]

@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.wstrace(isolated="fork", runs=3)
def test_fork(program): program()

@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.wstrace()
def test_here(program): program()
"""


def run(folder: Path, *words: str, **variables: str) -> tuple[float, str]:
    """Seconds of CPU, which other work on the machine hardly changes, and what pytest printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}  # as where it is installed
    environment = {**os.environ, **cache, **variables}
    done = subprocess.run([*PYTEST, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def paired(folder: Path, one: list[str], other: list[str], pairs: int) -> None:
    run(folder, *one), run(folder, *other)
    seconds = [(run(folder, *one)[0], run(folder, *other)[0]) for _ in range(pairs)]
    first, second = (statistics.median(row[n] for row in seconds) for n in (0, 1))
    differences = sorted(b - a for a, b in seconds)
    print(
        f"{' '.join(one) or '(nothing)'}: {first * 1e3:.0f} ms; {' '.join(other) or '(nothing)'}: {second * 1e3:.0f} ms"
    )
    middle, least, most = (value * 1e3 for value in (statistics.median(differences), differences[0], differences[-1]))
    print(f"difference, median of {pairs} pairs: {middle:+.1f} ms ({least:+.1f} to {most:+.1f})")
    print(f"ratio of medians: {second / first:.3f}")


def start(folder: Path, pairs: int) -> None:
    (folder / "test_one.py").write_text("def test_it(): pass\n")
    paired(folder, ["-p", "no:wstrace"], [], pairs)


def empty(folder: Path, pairs: int) -> None:
    (folder / "test_empty.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(1000))\ndef test_it(n): pass\n"
    )
    paired(folder, [], ["--wstrace", "--wstrace-top=0"], pairs)


@contextmanager
def burner() -> Iterator[None]:
    """One process for each CPU that computes and touches memory."""
    code = "while True: sum(bytearray(1 << 22))"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def recorded(folder: Path) -> None:
    (folder / "test_stable.py").write_text(STABLE)
    for _ in range(3):
        run(folder, "--wstrace", "--wstrace-update")


def _ran(told: str) -> int:
    """How many tests were judged, as pytest counts them: 20, or fewer when something is wrong."""
    return sum(map(int, re.findall(r"(\d+) (?:passed|failed)", told)))


def alarms(folder: Path, times: int) -> None:
    recorded(folder)
    judged = wrong = noisy = 0
    for n in range(times):
        with burner() if n % 2 else nullcontext():
            told = run(folder, "--wstrace", "--wstrace-top=0")[1]
        judged += _ran(told)
        wrong += len(re.findall(r"^FAILED", told, re.MULTILINE))
        noisy += len(re.findall("too noisy", told))
        if "FAILED" in told:
            print(*re.findall(r"^(?:FAILED|wstrace: ).*", told, re.MULTILINE), sep="\n")
        print(f"{judged} judged, {wrong} false alarms, {noisy} lines of figures too noisy to judge", flush=True)


def growth(folder: Path, times: int) -> None:
    recorded(folder)
    found = of = 0
    for _ in range(times):
        told = run(folder, "--wstrace", "--wstrace-top=0", GROW="2")[1]
        failed = re.findall(r"^FAILED \S*::(test_\w+\[\w+\])", told, re.MULTILINE)
        of += _ran(told)
        found += len(failed)
        missed = {f"test_{kind}[{name}]" for kind in ("fork", "here") for name in re.findall(r"def (\w+)\(\):", STABLE)}
        print("missed:", ", ".join(sorted(missed - set(failed))) or "none")
        print(f"{found} of {of} grown tests found", flush=True)


if __name__ == "__main__":
    what, times = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 11
    with tempfile.TemporaryDirectory() as place:
        {"start": start, "empty": empty, "alarms": alarms, "growth": growth}[what](Path(place), times)
