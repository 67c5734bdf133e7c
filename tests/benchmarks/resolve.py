"""Address -> mapping and offset -> symbol: how fast, and in what memory.

    python tests/benchmarks/resolve.py                 # 1,000,000 faults, 400 mappings, then symbols of libpython
    python tests/benchmarks/resolve.py --rows 100000 --runs 3 --file /usr/lib/x86_64-linux-gnu/libc.so.6

Goals: va and pc of 1M rows to 400 mappings in 110 ms; 100,000 unique symbol look-ups a second after loading; memory
flat over 100,000 execs of 30 mappings (`--execs 100000`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import sysconfig
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import numpy as np

from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.places import MappedFile
from wstrace.schema import (
    ADDRESS_SPACE,
    KIND_FILE,
    KIND_SHIFT,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    SPACE_MAP,
)
from wstrace_plugins.mapped_files.enricher import MappedFiles
from wstrace_plugins.symbols.resolver import ImageResolver

PART = 65_536


def cost(runs: int, work: Callable[[], object], rows: int) -> str:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1e3)
    median = statistics.median(times)
    return f"{median:8.1f} ms, {median / rows * 1e6:5.0f} ns a row (best {min(times):.1f} ms of {runs})"


def mapped(mappings: int, pids: int) -> tuple[MappedFiles, Context, np.ndarray]:
    context = Context()
    enricher = MappedFiles(reread=False)
    enricher.start(context)
    starts = 0x7F00_0000_0000 + np.arange(mappings, dtype="u8") * 0x20_0000
    for pid in range(1, pids + 1):
        columns = {
            "time_ns": np.ones(mappings, "u8"), "pid": np.full(mappings, pid, "u4"),
            "event": np.full(mappings, SPACE_MAP, "u1"),
            "start": starts, "end": starts + np.uint64(0x10_0000), "offset": np.zeros(mappings, "u8"),
            "file": np.array([context.strings.code(f"/lib/{n}.so") for n in range(mappings)], "u4"),
            "dev": np.ones(mappings, "u8"), "ino": np.arange(mappings, dtype="u8"),
            "flags": np.full(mappings, KIND_FILE << KIND_SHIFT, "u2"),
        }  # fmt: skip
        list(enricher.enrich(Batch(ADDRESS_SPACE, columns, window=(1, 1), strings=context.strings)))
    return enricher, context, starts


def faults(starts: np.ndarray, rows: int, pids: int, local: bool) -> list[Batch]:
    rng = np.random.default_rng(1)
    if local:  # each page of a mapping in turn, code in a few places: what a program does
        va = np.repeat(rng.choice(starts, rows // 256 + 1), 256)[:rows] + np.arange(rows, dtype="u8") % 256 * 4096
        pc = np.repeat(rng.choice(starts, rows // 256 + 1), 256)[:rows] + np.uint64(64)
    else:
        va = rng.choice(starts, rows) + rng.integers(0, 0x10_0000, rows, dtype="u8")
        pc = rng.choice(starts, rows) + rng.integers(0, 0x10_0000, rows, dtype="u8")
    times, pid = np.arange(10, rows + 10, dtype="u8"), rng.integers(1, pids + 1, rows).astype("u4")
    columns = {"time_ns": times, "pid": pid, "tid": pid, "pc": pc, "va": va, "flags": np.zeros(rows, "u1")}
    whole = Batch(PAGE_FAULT, columns, window=(10, rows + 10))
    return [whole.take(slice(at, at + PART)) for at in range(0, rows, PART)]


def resolving(rows: int, mappings: int, runs: int) -> None:
    for pids in (1, 8):
        enricher, _, starts = mapped(mappings, pids)
        for local in (True, False):
            batches = faults(starts, rows, pids, local)

            def work(enricher: MappedFiles = enricher, batches: list[Batch] = batches) -> None:
                for batch in batches:
                    list(enricher.enrich(batch))

            kind = "in turn" if local else "random"
            print(f"va + pc of {rows:,} rows to {mappings} mappings, {pids} pids, {kind:8} {cost(runs, work, rows)}")
            if pids == 1:
                few = batches[0].take(slice(0, min(rows, PART)))
                row_by_row = cost(runs, lambda few=few, starts=starts: by_bisect(few, starts), len(few))
                print(f"    bisect, row by row, of {len(few):,} of them {row_by_row}")
        assert enricher.statistics()["unresolved"] == 0


def by_bisect(batch: Batch, starts: np.ndarray) -> None:
    """What the same would cost as a loop over the rows, with nothing but the look-up itself."""
    begins = starts.tolist()
    rows = [(start, start + 0x10_0000, number + 1) for number, start in enumerate(begins)]
    found = {}
    for name in ("va", "pc"):
        ids = []
        for address in batch[name].tolist():
            start, end, number = rows[bisect_right(begins, address) - 1]
            ids.append(number if start <= address < end else 0)
        found[name] = np.array(ids, "<u4")


def symbols(file: str, count: int) -> None:
    resolver = ImageResolver()
    started = time.perf_counter()
    resolver.resolve(MappedFile(file), np.zeros(1, "u8"))
    loaded = time.perf_counter()
    offsets = np.unique(np.random.default_rng(1).integers(0, Path(file).stat().st_size, count).astype("u8"))
    begun = time.perf_counter()
    places = resolver.resolve(MappedFile(file), offsets)
    seconds = time.perf_counter() - begun
    named = sum(bool(place.function) for place in places)
    print(f"{file}: loaded in {(loaded - started) * 1e3:.0f} ms; {len(offsets):,} unique offsets, "
          f"{named:,} in functions: {len(offsets) / seconds:,.0f} look-ups/s")  # fmt: skip


def execs(count: int) -> None:
    import resource

    enricher, context, starts = mapped(30, 1)
    n = 30
    for number in range(count):
        now, pid = 1_000_000 * (number + 1), 100 + number % 30_000
        rows = {"time_ns": np.array([now, now + 900_000], "u8"), "pid": np.full(2, pid, "u4"), "ppid": np.ones(2, "u4"),
                "event": np.array([PROCESS_EXEC, PROCESS_EXIT], "u1")}  # fmt: skip
        list(enricher.enrich(Batch(PROCESS, rows, window=(now, now), strings=context.strings)))
        shift = np.uint64(number % 1000 * 4096)
        space = {"time_ns": np.full(n, now + 10, "u8"), "pid": np.full(n, pid, "u4"),
                 "event": np.full(n, SPACE_MAP, "u1"),
                 "start": starts[:n] + shift, "end": starts[:n] + shift + np.uint64(8192), "file": np.full(n, 3, "u4"),
                 "flags": np.full(n, KIND_FILE << KIND_SHIFT, "u2")}  # fmt: skip
        list(enricher.enrich(Batch(ADDRESS_SPACE, space, window=(now, now), strings=context.strings)))
        fault = {"time_ns": np.array([now + 20], "u8"), "pid": np.array([pid], "u4"), "va": starts[:1] + shift}
        list(enricher.enrich(Batch(PAGE_FAULT, fault, window=(now + 20, now + 20), strings=context.strings)))
        if (number + 1) % max(1, count // 5) == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{number + 1:,} execs: peak {peak:.1f} MiB, {enricher.statistics()}")


def main() -> None:
    library = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib", sysconfig.get_config_var("LDLIBRARY") or "")
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--mappings", type=int, default=400)
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--symbols", type=int, default=200_000)
    options.add_argument("--file", default=str(library if library.is_file() else Path(sys.executable).resolve()))
    options.add_argument("--execs", type=int, default=0)
    chosen = options.parse_args()
    resolving(chosen.rows, chosen.mappings, chosen.runs)
    symbols(chosen.file, chosen.symbols)
    if chosen.execs:
        execs(chosen.execs)


if __name__ == "__main__":
    main()
