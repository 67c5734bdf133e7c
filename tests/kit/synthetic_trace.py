"""Made-up traces with known content: for tests, fuzzing and benchmarks. The same seed gives the same rows."""

from collections.abc import Iterator

import numpy as np

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.schema import (
    KIND_ANON,
    KIND_FILE,
    KIND_SHIFT,
    MAP_EXECUTE,
    MAP_READ,
    MAPPING,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXIT,
    PROCESS_SEEN,
    RESIDENT_PAGES,
)

FIRST_MAPPING, MAPPING_BYTES = 0x7F00_0000_0000, 1 << 24
PID = 4242


def mappings(strings: Dictionary, n: int = 40, first: int = 1, pid: int = PID) -> Batch:
    """n mappings of a process: every fourth anonymous, the others files; ids from first on."""
    ids = np.arange(first, first + n, dtype="<u4")
    anon = np.arange(n) % 4 == 3
    files = [0 if anon[i] else strings.code(f"/usr/lib/lib{first + i}.so") for i in range(n)]
    start = np.uint64(FIRST_MAPPING) + np.arange(n, dtype="<u8") * np.uint64(MAPPING_BYTES)
    kinds = np.where(anon, KIND_ANON, KIND_FILE) << KIND_SHIFT
    columns = {
        "id": ids,
        "time_ns": np.full(n, 1_000_000, "<u8"),
        "pid": np.full(n, pid, "<u4"),
        "start": start,
        "end": start + np.uint64(MAPPING_BYTES),
        "offset": np.zeros(n, "<u8"),
        "file": np.array(files, "<u4"),
        "dev": np.full(n, 65_024, "<u8"),
        "ino": ids.astype("<u8") + np.uint64(1000),
        "build_id": np.zeros(n, "<u4"),
        "flags": (kinds | MAP_READ | np.where(anon, 0, MAP_EXECUTE)).astype("<u2"),
    }
    return Batch(MAPPING, columns, window=(1_000_000, 1_000_000), strings=strings)


def processes(strings: Dictionary, pid: int = PID, name: str = "made-up", code: int = -3) -> Batch:
    """One process: seen, and its exit."""
    columns = {
        "time_ns": np.array([1_000_000, 2_000_000], "<u8"),
        "pid": np.full(2, pid, "<u4"),
        "ppid": np.full(2, 1, "<u4"),
        "tid": np.full(2, pid, "<u4"),
        "event": np.array([PROCESS_SEEN, PROCESS_EXIT], "|u1"),
        "name": np.full(2, strings.code(name), "<u4"),
        "code": np.array([0, code], "<i8"),
    }
    return Batch(PROCESS, columns, window=(1_000_000, 2_000_000), strings=strings)


def faults(
    strings: Dictionary,
    n: int,
    *,
    rows: int = 65_536,
    n_mappings: int = 40,
    seed: int = 1,
    ns: int = 900,
    begin: int = 2_000_000,
) -> Iterator[Batch]:
    """n page faults in batches of rows, ns apart on average, like those of programs.

    Runs of neighbouring pages, jumps between mappings, a few hot instructions, two threads.
    """
    rng = np.random.default_rng(seed)
    time, page = begin, 0
    for start in range(0, n, rows):
        k = min(rows, n - start)
        times = np.uint64(time) + np.cumsum(rng.exponential(ns, k).astype("<u8") + np.uint64(1), dtype="<u8")
        time = int(times[-1])
        jump = rng.random(k) < 0.03
        where = np.maximum.accumulate(np.where(jump, np.arange(k), 0))
        mapping = rng.integers(0, n_mappings, k)[where]
        page_no = (page + np.arange(k)) % (MAPPING_BYTES // 4096)
        page += k
        va = np.uint64(FIRST_MAPPING) + mapping.astype("<u8") * np.uint64(MAPPING_BYTES)
        va += page_no.astype("<u8") * np.uint64(4096)
        pc_mapping = (rng.zipf(1.6, k) % n_mappings)[where]
        site = (rng.zipf(1.4, k) % 300)[where].astype("<u8")
        pc = np.uint64(FIRST_MAPPING) + pc_mapping.astype("<u8") * np.uint64(MAPPING_BYTES) + site * np.uint64(48)
        columns = {
            "time_ns": times,
            "pid": np.full(k, PID, "<u4"),
            "tid": np.where(rng.random(k)[where] < 0.3, PID + 1, PID).astype("<u4"),
            "pc": pc,
            "va": va + (rng.integers(0, 64, k) * 64 * (rng.random(k) < 0.3)).astype("<u8"),
            "flags": (rng.random(k) < 0.002).astype("|u1"),
            "mapping": (mapping + 1).astype("<u4"),
            "pc_mapping": (pc_mapping + 1).astype("<u4"),
        }
        yield Batch(PAGE_FAULT, columns, window=(int(times[0]), time), strings=strings)


def resident(strings: Dictionary, n: int = 30, *, snap: int = 1, part: int = 0, last: bool = True) -> Batch:
    """One part of a snapshot: n runs of pages."""
    columns = {
        "start": np.uint64(FIRST_MAPPING) + np.arange(n, dtype="<u8") * np.uint64(MAPPING_BYTES),
        "pages": np.arange(1, n + 1, dtype="<u4"),
        "flags": np.full(n, 1, "<u2"),
        "shares": np.full(n, 255, "|u1"),
        "mapping": (np.arange(n) % 40 + 1).astype("<u4"),
    }
    pages = int(columns["pages"].sum())
    header = {"snap": snap, "part": part, "last": last, "pid": PID, "t": 3_000_000, "pages": pages}
    return Batch(
        RESIDENT_PAGES, columns, window=(3_000_000, 3_000_000), strings=strings, snapshot=SnapshotPart.from_dict(header)
    )
