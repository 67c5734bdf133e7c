"""The enricher `mapped_files`: its memory is flat over many processes."""

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

from wstrace.batch import Batch
from wstrace.schema import (
    ADDRESS_SPACE,
    KIND_FILE,
    KIND_SHIFT,
    MAPPING,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    SPACE_MAP,
)

pytestmark = pytest.mark.slow
FILE = KIND_FILE << KIND_SHIFT


def execs(shown: Any, first: int, last: int, files: int = 7) -> None:
    """Processes that live a millisecond: fork, exec, 30 mappings at places of their own, a fault, exit."""
    start = 0x7F00_0000_0000 + np.arange(30, dtype="u8") * 0x10_0000
    n = len(start)
    for number in range(first, last):
        now, pid, at = (number + 1) * 10_000_000, 100 + number % 30_000, start + np.uint64(number % 5000 * 4096)
        rows = {"time_ns": np.array([now, now + 1, now + 900_000], "u8"), "pid": np.full(3, pid, "u4"),
                "ppid": np.ones(3, "u4"),
                "event": np.array([PROCESS_FORK, PROCESS_EXEC, PROCESS_EXIT], "u1")}  # fmt: skip
        space = {"time_ns": np.full(n, now + 10, "u8"), "pid": np.full(n, pid, "u4"), "start": at,
                 "end": at + np.uint64(8192), "event": np.full(n, SPACE_MAP, "u1"),
                 "file": np.full(n, shown.context.strings.code(f"/{number % files}"), "u4"),
                 "flags": np.full(n, FILE, "u2")}  # fmt: skip
        fault = {"time_ns": np.array([now + 20], "u8"), "pid": np.array([pid], "u4"), "va": at[:1]}
        for schema, columns in ((PROCESS, rows), (ADDRESS_SPACE, space), (PAGE_FAULT, fault)):
            for out in shown.enricher.enrich(
                Batch(schema, columns, window=(now, now + 20), strings=shown.context.strings)
            ):
                if schema is PAGE_FAULT and out.schema is MAPPING:
                    assert out["id"][-1] == 30 * (number + 1) + 1


def check(shown: Any, count: int) -> None:
    statistics = shown.enricher.statistics()
    assert statistics["mappings"] == 30 * count + 1
    assert statistics["processes"] < 300
    assert statistics["live"] + statistics["changes"] < 15_000
    assert shown.context.ledger.get("unresolved") == 0


def test_memory_is_flat_over_many_execs(drive):
    shown = drive()
    execs(shown, 0, 400)
    gc.collect()
    tracemalloc.start()
    try:
        execs(shown, 400, 1000)
        gc.collect()
        # all that was held after the first ones is gone: the processes of the last two seconds are held
        assert tracemalloc.get_traced_memory()[0] < 6 << 20
    finally:
        tracemalloc.stop()
    check(shown, 1000)
