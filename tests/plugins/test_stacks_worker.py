"""The worker that unwinds: which samples it hands to the unwinder together."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.schema import DTYPES, STACK_DUMP

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace_stacks import unwinder
from wstrace_stacks.linux import backend
from wstrace_stacks.unwinder import Samples, Unwound


def dumps(tids: list[int], words: int, size: int) -> Batch:
    """Samples of these threads whose stacks' words are their tid."""
    n = len(tids)
    columns = {column.name: np.zeros(n, DTYPES[column.type]) for column in STACK_DUMP.columns}
    tid = np.array(tids, "<u4")
    columns |= {"tid": tid, "size": np.full(n, size, "<u4"), "registers": np.full((n, 17), tid[:, None], "<u8")}
    columns["dump"] = np.full((n, words), tid[:, None], "<u8")
    return Batch(STACK_DUMP, columns)


def test_small_batches_are_unwound_together_and_none_reads_beyond_its_own_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Samples] = []

    def unwind(samples: Samples, *_: object) -> Unwound:
        given.append(samples)
        n = len(samples.size)
        return Unwound(np.zeros((n, 1), "<i4"), np.zeros(n, "<i4"), np.zeros(n, "i1"), np.zeros((n, 1), bool))

    monkeypatch.setattr(unwinder, "unwind", unwind)
    worker = backend.Worker(Context())
    worker.unwind([dumps([1, 2], words=4, size=32), dumps([3], words=2, size=999), dumps([4] * 5000, words=2, size=16)])
    assert [len(samples.size) for samples in given] == [3, 4096, 904]
    assert given[0].dump.tolist() == [[1] * 4, [2] * 4, [3, 3, 0, 0]]
    assert given[0].size.tolist() == [32, 32, 16]
    assert given[0].registers[:, 0].tolist() == [1, 2, 3]
    assert worker.unwound == 5003
    assert sorted(worker.join.waiting.tid.tolist()) == sorted([1, 2, 3] + [4] * 5000)
