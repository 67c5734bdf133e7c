"""The enricher `native_stacks`: from registers and stack bytes to call sites on the rows of faults.

A step of the unwinder costs nearly as much for ten samples as for a thousand. So while more batches wait, faults and
their samples do, too: a compiler's run on a busy machine has ten samples in each of ten batches a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import NEVER, Context, Enricher
from wstrace.schema import HOW_NOT_SAMPLED, MAP_EXECUTE, MAPPING, PAGE_FAULT, PROCESS, STACK_DUMP
from wstrace_plugins.os import backend

#: bytes of samples that may wait for a batch of faults
MOST_HELD = 64 << 20
#: samples that wait for longer are not unwound: less than the time in which a bus is to be empty at the end
BEHIND_NS = 2_000_000_000
#: bytes of mappings of code that are kept while there is no sample; a batch takes so many besides its columns
MOST_KEPT, BATCH_BYTES = 16 << 20, 3000
#: while more batches wait, faults do: until one of these numbers of samples, of faults, of ns is reached
MOST_TOGETHER, MOST_ROWS, MOST_HELD_NS = 1024, 1 << 16, 250_000_000
#: what may go on before faults that wait: they refer to what these say
_PASSING = (MAPPING.name, PROCESS.name)


class NativeStacks(Enricher):
    """Unwinds sampled stacks, gives out their call sites, and adds native_stack, native_how and weight to faults.

    Faults before the first sample have no such columns. The bytes of the target's stack go no further.
    """

    name = "native_stacks"

    def start(self, context: Context) -> None:
        """Begins with no stack known."""
        self._context = context
        self._worker: Any = None  # backend.Worker: a session without samples does not load the unwinder
        self._mappings: list[Batch] = []  # what it has to learn
        self._kept = 0  # bytes of them
        self._held: list[Batch] = []
        self._bytes = 0
        self._faults: list[Batch] = []  # that wait
        self._since = 0  # when the first of them came
        self._error: Exception | None = None

    def enrich(self, batch: Batch) -> Iterable[Batch]:
        """Holds samples, learns code mappings, and adds columns to faults."""
        if batch.schema.name == STACK_DUMP.name:
            self._hold(batch)
            return
        if self._worker is None and batch.schema.name == MAPPING.name:
            code = batch.take(np.flatnonzero(batch["flags"] & MAP_EXECUTE))
            if len(code) and self._kept < MOST_KEPT:
                self._mappings.append(code)
                self._kept += code.nbytes + BATCH_BYTES
        elif self._worker is not None:
            if batch.schema.name == PAGE_FAULT.name and "native_stack" not in batch:
                yield from self._wait(batch)
                return
            if batch.schema.name == MAPPING.name:
                self._worker.code.learn(batch)
            elif batch.schema.name not in _PASSING:
                yield from self._release()
        yield batch

    def close(self) -> Iterable[Batch]:
        """Gives what waits; counts samples that no row of a fault followed."""
        if self._worker is not None:
            yield from self._release()
            if len(named := self._worker.renamed()):
                yield named
            left = sum(map(len, self._held)) + len(self._worker.join.waiting.tid)
            self._context.ledger.add("stacks_lost", left, "no fault of that thread followed")
            self._worker.close()

    def _hold(self, batch: Batch) -> None:
        """Keeps samples until faults come; those for which there is no room are lost."""
        if self._worker is None:
            self._worker = backend("wstrace_plugins.stacks", "linux").Worker(self._context)
            for mappings in self._mappings:
                self._worker.code.learn(mappings)
            self._mappings = []
        if self._bytes + batch.nbytes > MOST_HELD:
            self._context.ledger.add("stacks_lost", len(batch), "no room before they were unwound")
            return
        self._held.append(batch)
        self._bytes += batch.nbytes
        progress = self._context.progress
        progress.held_since = min(progress.held_since, int(batch["time_ns"].min()))

    def _wait(self, batch: Batch) -> Iterator[Batch]:
        """Holds faults while others are coming, or gives them with those that were held."""
        if self._error is not None:
            raise self._error
        if not self._faults:
            self._since = now_ns()
        self._faults.append(batch)
        self.held += len(batch)
        samples = sum(map(len, self._held))
        full = samples > MOST_TOGETHER or self.held > MOST_ROWS or now_ns() - self._since > MOST_HELD_NS
        if full or not samples or not self._context.progress.waiting:
            yield from self._release()

    def _release(self) -> Iterator[Batch]:
        """The faults that wait, with their stacks; without, where that fails: then the next ones raise the error."""
        faults, self._faults = self._faults, []
        if not faults:
            return
        given: list[Batch] = []
        done, self.held = 0, 0
        try:
            given += self._unwound(self._worker)
            for batch in faults:
                given.append(self._with_stacks(self._worker, batch))
                done += 1
        except Exception as error:
            if len(faults) == 1:
                raise
            self._error = error
            self._context.info.lack(f"native stacks of some faults: {error}")
        yield from given
        yield from faults[done:]

    def _unwound(self, worker: Any) -> list[Batch]:
        """Unwinds the samples that are held; the new call sites."""
        held, self._held, self._bytes, self._context.progress.held_since = self._held, [], 0, NEVER
        if held and now_ns() - max(int(samples["time_ns"].max()) for samples in held) > BEHIND_NS:
            # The faults behind these wait in a bounded queue: samples are given up sooner than records.
            self._context.ledger.add("stacks_lost", sum(map(len, held)), "unwound too slowly")
            held = []
        worker.unwind(held)
        rows = worker.tree.new_rows()
        return [] if rows is None else [rows]

    def _with_stacks(self, worker: Any, batch: Batch) -> Batch:
        """The faults with the stacks of the samples that belong to them."""
        missed = worker.join.without_row
        joined = worker.join.rows(batch)
        self._context.ledger.add("stacks_lost", worker.join.without_row - missed, "no row of that fault")
        stack, weight = np.zeros(len(batch), "<u4"), np.zeros(len(batch), "<u4")
        how = np.full(len(batch), HOW_NOT_SAMPLED, "u1")
        stack[joined.rows], how[joined.rows], weight[joined.rows] = (
            joined.stacks.stack,
            joined.stacks.how,
            joined.weight,
        )
        return batch.with_columns({"native_stack": stack, "native_how": how, "weight": weight})
