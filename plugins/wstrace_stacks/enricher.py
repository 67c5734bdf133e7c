"""The enricher `native_stacks`: from registers and stack bytes to call sites on the rows of faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import Context, Enricher
from wstrace.schema import FAULT_REGISTERS, HOW_BORROWED, HOW_NOT_SAMPLED, MAPPING, PAGE_FAULT, STACK_DUMP
from wstrace_os import backend

#: bytes of samples that may wait for a batch of faults
MOST_HELD = 64 << 20
#: samples that wait for longer are not unwound: less than the time in which a bus is to be empty at the end
BEHIND_NS = 2_000_000_000


class NativeStacks(Enricher):
    """Unwinds sampled stacks, gives out their call sites, and adds native_stack, native_how and weight to faults.

    A source that samples stacks says so by an empty batch of `stack_dump` before any other; without it nothing is
    done. Where that batch has the column `lines`, stack and stack_how are added, too: the Python line of each sample.
    The bytes of the target's stack go no further. Where a batch of `fault_registers` comes before one of faults, those
    between agreeing samples of their place have these samples' stack: `borrowed`, with weight 0.
    """

    name: ClassVar[str] = "native_stacks"

    def start(self, context: Context) -> None:
        """Begins with no stack known."""
        self._context = context
        self._worker: Any = None  # backend.Worker: a session without samples does not load the unwinder
        self._held: list[Batch] = []
        self._bytes = 0
        self._registers: Batch | None = None  # of the faults that come next

    def enrich(self, batch: Batch) -> Iterable[Batch]:
        """Holds samples, learns code mappings, and adds columns to faults."""
        if batch.schema.name == STACK_DUMP.name:
            self._hold(batch)
            return
        if batch.schema.name == FAULT_REGISTERS.name:
            self._registers = batch
            return
        if self._worker is not None:
            if batch.schema.name == MAPPING.name:
                self._worker.code.learn(batch)
            elif batch.schema.name == PAGE_FAULT.name and "native_stack" not in batch:
                yield from self._page_faults(self._worker, batch)
                return
        yield batch

    def close(self) -> Iterable[Batch]:
        """Counts the samples that no row of a fault followed, and the faults that could not borrow."""
        if self._worker is not None:
            left = sum(map(len, self._held)) + len(self._worker.join.waiting.tid)
            self._context.ledger.add("stacks_lost", left, "no fault of that thread followed")
            self._context.ledger.add("without_registers", self._worker.lender.without_registers)
            self._worker.close()
        return ()

    def statistics(self) -> Mapping[str, int | float]:
        """What was unwound so far; nothing where no stacks were asked for."""
        found: Mapping[str, int | float] = {} if self._worker is None else self._worker.statistics()
        return found

    def _hold(self, batch: Batch) -> None:
        if self._worker is None:
            self._worker = backend("wstrace_stacks", "linux").Worker(self._context, lines="lines" in batch)
        if not len(batch):
            return
        if self._bytes + batch.nbytes > MOST_HELD:
            self._context.ledger.add("stacks_lost", len(batch), "no room before they were unwound")
            return
        self._held.append(batch)
        self._bytes += batch.nbytes

    def _page_faults(self, worker: Any, batch: Batch) -> Iterator[Batch]:
        held, self._held, self._bytes = self._held, [], 0
        if held and now_ns() - max(int(samples["time_ns"].max()) for samples in held) > BEHIND_NS:
            # The faults behind these wait in a bounded queue: samples are given up sooner than records.
            self._context.ledger.add("stacks_lost", sum(map(len, held)), "unwound too slowly")
            held = []
        worker.unwind(held)
        rows = worker.tree.new_rows()
        if rows is not None:
            yield rows
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
        registers, self._registers = self._registers, None
        if registers is not None:
            borrowed = worker.lender.lend(batch, registers, joined)
            stack[borrowed.rows], how[borrowed.rows] = borrowed.stack, HOW_BORROWED
        columns = {"native_stack": stack, "native_how": how, "weight": weight}
        if worker.lines is not None and "stack" not in batch:
            python, python_how = np.zeros(len(batch), "<u4"), np.full(len(batch), HOW_NOT_SAMPLED, "u1")
            python[joined.rows], python_how[joined.rows] = joined.stacks.python, joined.stacks.python_how
            columns |= {"stack": python, "stack_how": python_how}
        worker.given += len(joined.rows)
        yield batch.with_columns(columns)
