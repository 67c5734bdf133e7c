"""1,000 hosts for an hour, simulated from real traces: how large their rollups are, and what the queries cost.

    python tests/benchmarks/fleet.py FOLDER [--hosts 1000] [--minutes 60]    # root; about 4 GB at most

Real programs are traced once and their traces converted as `convert --rollup 1s` does. Each host then runs them again
and again at times of its own, with counts that differ by a few percent, for two days; one program faults half as much
again on the second day, and one host more than twice. Prints sizes and the seconds of each query of docs/fleet.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from wstrace.analysis.rollup import Rollup
from wstrace.analysis.symbols import symbolizer_of
from wstrace.batch import Batch
from wstrace.rollup_files import write_rollup
from wstrace.table import Selection
from wstrace_msgpack.read.trace import open_trace

PROGRAMS = {
    "json": [sys.executable, "-c", "import json, asyncio, decimal"],
    "numpy": [sys.executable, "-c", "import numpy; numpy.ones(1 << 20).sum()"],
    "sort": ["sort", "/etc/services"],
}
PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
SUMS = ("faults", "recorded", "bytes")


def real(folder: Path) -> list[Batch]:
    """The rollup of each program, with its second 0."""
    found = []
    for name, command in PROGRAMS.items():
        trace = folder / f"{name}.wst"
        words = ["run", "-q", "-f", "-o", trace, "-s", "page_faults", "--", *command]
        subprocess.run([sys.executable, "-m", "wstrace", *words], check=True, stdout=subprocess.DEVNULL)
        with open_trace(str(trace)) as opened:
            rollup = Rollup(opened.info, symbolizer_of(opened.info, [opened.mappings]))
            for batch in opened.read(Selection()):
                rollup.add(batch)
        rows = rollup.take()
        found.append(_with(rows, second=rows["second"] - rows["second"].min()))
        print(f"{name}: {len(rows):,} rows, {int(rows['faults'].sum()):,} faults", flush=True)
    return found


def runs(program: Batch, begin: int, minutes: int, factor: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The rows of a program that is run every three minutes."""
    found = []
    for minute in range(0, minutes, 3):
        times = factor * rng.normal(1, 0.02)
        counts = {name: np.maximum(1, program[name] * times).astype("<i8") * (program[name] > 0) for name in SUMS}
        second = program["second"] + begin + minute * 60 + int(rng.integers(150))
        found.append(_with(program, second=second, **counts))
    return {name: np.concatenate([one[name] for one in found]) for name in program}


def _with(rows: Batch, **columns: np.ndarray) -> Batch:
    return Batch(rows.schema, {**rows.columns, **columns}, strings=rows.strings, rows=len(rows))


def write(programs: list[Batch], folder: Path, host: int, minutes: int) -> int:
    """The two days of a host; returns its rows."""
    rng, written = np.random.default_rng(host), 0
    for day in (20_000, 20_001):
        for number, program in enumerate(programs):
            factor = (2.5 if host == 7 else 1.0) * (1.5 if number == 1 and day == 20_001 else 1.0)
            columns = runs(program, day * 86_400 + 32_400 + number, minutes, factor, rng)
            columns["host"] = np.full(len(columns["second"]), program.strings.code(f"host{host:04}"), "<u4")
            rows = Batch(program.schema, columns, strings=program.strings)
            write_rollup(rows, str(folder), f"simulated-{number}")
            written += len(rows)
    return written


def main() -> None:
    """Prints all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--minutes", type=int, default=60)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    programs = real(given.folder)
    begin = time.perf_counter()
    fleet = given.folder / "fleet"
    rows = sum(write(programs, fleet, host, given.minutes) for host in range(given.hosts))
    size = sum(path.stat().st_size for path in fleet.rglob("*.parquet"))
    print(f"{given.hosts:,} hosts, 2 x {given.minutes} min: {rows:,} rows, {size / 1e6:,.0f} MB,"
          f" {size / rows:.1f} B a row, written in {time.perf_counter() - begin:.0f} s", flush=True)  # fmt: skip
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"create view rollup as from read_parquet('{fleet}/**/*.parquet', hive_partitioning = true,"
                           " hive_types_autocast = false)")  # fmt: skip
        for heading, sql in re.findall(r"^### (.+?)\n.*?^```sql\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S):
            begin = time.perf_counter()
            found = connection.execute(sql).fetchall()
            print(f"{time.perf_counter() - begin:6.2f} s  {heading}: {found[:3]}", flush=True)


if __name__ == "__main__":
    main()
