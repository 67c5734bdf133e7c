"""What is known of code addresses."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from wstrace.batch import Dictionary
from wstrace.schema import KIND_ANON, KIND_SHIFT, MAP_EXECUTE, MAPPING
from wstrace.testing import batch_of

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace_stacks.linux import known_code
from wstrace_stacks.linux.known_code import KnownCode


def test_a_perf_map_is_as_old_as_the_process_not_as_the_last_mapping_that_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code memory that is told again, late, made the maps of processes that had ended too old to be believed."""
    asked: list[tuple[int, int]] = []

    class Seen(known_code.PerfMap):
        def __init__(self, pid: int, since_ns: int) -> None:
            asked.append((pid, since_ns))
            super().__init__(pid, since_ns)

    monkeypatch.setattr(known_code, "PerfMap", Seen)
    now = time.monotonic_ns()
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=[2, 3, 4], time_ns=[now, now - 7, now + 9], pid=[2**30 + 1, 2**30, 2**30],
            start=[0x1000, 0x1000, 0x3000], end=[0x2000, 0x2000, 0x4000], offset=0, file="[anon]", dev=0, ino=0,
            build_id="", flags=MAP_EXECUTE | KIND_ANON << KIND_SHIFT,
        )
    )  # fmt: skip
    code.begin([2**30], lambda rows, addresses: np.full(len(rows), 4, "<u4"))
    code.look(np.zeros(1, np.intp), np.array([0x3010], "<u8"))
    assert asked == [(2**30, now - 7)]
