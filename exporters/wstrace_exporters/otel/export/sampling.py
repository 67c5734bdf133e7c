"""Which page faults become log events: all major ones, and as many minor ones as a token bucket permits.

An event's weight is the number of faults that it represents. For every process and type the weights add up to what was
recorded: a fault without a token adds to the weight of the next event, and the last event takes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import group
from wstrace.batch import Batch
from wstrace.schema import FAULT_MAJOR


class Sampler:
    """Selects rows of page_fault batches and gives each its weight. Bounded by the number of processes.

    rate: minor faults that become events, per second on average and at once. clock: returns seconds; replaced in tests.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._tokens, self._at = rate, clock()
        # pid -> number of minor faults without an event yet, and one of them
        self._owed: dict[int, tuple[int, Batch]] = {}

    def _take(self, wanted: int) -> int:
        """Takes as many tokens as there are, at most `wanted`; returns their number."""
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        given = min(wanted, int(self._tokens))
        self._tokens -= given
        return given

    def choose(self, batch: Batch) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
        """(rows, weights shape (n,)) that become events."""
        if not len(batch):
            return
        major = batch["flags"] & FAULT_MAJOR != 0
        if major.any():
            yield batch.take(major), np.ones(int(major.sum()), np.int64)
        minors = np.flatnonzero(~major)
        if not len(minors):
            return
        (pids,), counts = group(batch["pid"][minors])
        tokens = self._take(len(minors))
        for pid, count in zip(pids.tolist(), counts.tolist(), strict=True):
            # in proportion, and at least one per process while there are tokens
            share = min(tokens, count, max(1, tokens * count // len(minors))) if tokens else 0
            tokens -= share
            rows = minors if count == len(minors) else minors[batch["pid"][minors] == pid]
            owed, _ = self._owed.pop(pid, (0, batch))
            if share:
                edges = np.linspace(0, count, share + 1).astype(np.int64)
                weights = np.diff(edges)
                weights[0] += owed
                yield batch.take(rows[edges[:-1]]), weights
            else:
                self._owed[pid] = (owed + count, batch.take(rows[-1:]))

    def rest(self) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
        """At the end: an event for every process with faults that have no event yet."""
        for owed, row in self._owed.values():
            yield row, np.array([owed])
        self._owed = {}
