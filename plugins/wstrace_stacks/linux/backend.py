"""What unwinds: loaded when the first samples come."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch
from wstrace.call_sites import CallSites
from wstrace.interfaces import Context
from wstrace.schema import HOW_NO_ROOM, HOW_OWN, HOW_OWN_CUT, HOW_OWN_DEEP, HOW_OWN_NO_MAPPING, HOW_OWN_NO_RULE
from wstrace_stacks import unwinder
from wstrace_stacks.join import Join, Stacks
from wstrace_stacks.linux.known_code import KnownCode
from wstrace_stacks.linux.stack_tree import add_stacks
from wstrace_stacks.unwinder import Samples

#: samples that are unwound at once: the more, the less a step of numpy costs for each
AT_ONCE = 4096

_HOW = np.zeros(len(unwinder.REASONS), "u1")
_HOW[unwinder.END] = HOW_OWN
_HOW[unwinder.CUT] = HOW_OWN_CUT
_HOW[unwinder.NO_MAPPING] = HOW_OWN_NO_MAPPING
_HOW[[unwinder.NO_RULE, unwinder.NO_REGISTER, unwinder.NOT_RISING]] = HOW_OWN_NO_RULE
_HOW[unwinder.TOO_DEEP] = HOW_OWN_DEEP


class Worker:
    """Unwinds samples into call sites, and joins them to rows.

    given: rows that got a stack.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.code = KnownCode(context.strings)
        self.tree = CallSites(context.stack_ids, context.strings, "native_stacks")
        self.join = Join()
        self.unwound = self.frames = self.given = 0

    def unwind(self, batches: Iterable[Batch]) -> None:
        """Unwinds batches of STACK_DUMP, small ones together; their stacks wait for their rows."""
        together: list[Batch] = []
        for batch in batches:
            for start in range(0, len(batch), AT_ONCE):
                part = batch if len(batch) <= AT_ONCE else batch.take(slice(start, start + AT_ONCE))
                if sum(map(len, together)) + len(part) > AT_ONCE:
                    self._some(together)
                    together = []
                together.append(part)
        if together:
            self._some(together)

    def _some(self, batches: list[Batch]) -> None:
        pid, time, pc, tid, va, registers = (
            np.concatenate([batch[name] for batch in batches])
            for name in ("pid", "time_ns", "pc", "tid", "va", "registers")
        )
        size = np.concatenate([np.minimum(batch["size"], 8 * batch["dump"].shape[1]) for batch in batches])
        dump = _joined([batch["dump"] for batch in batches])
        mappings_at = self._context.mappings_at
        self.code.begin(np.unique(pid).tolist(), lambda rows, addresses: mappings_at(pid[rows], addresses, time[rows]))
        stacks = unwinder.unwind(Samples(registers, dump, size.astype("<u8")), self.code)
        leaf = add_stacks(self.tree, self.code, stacks, pc, mappings_at(pid, pc, time))
        self.unwound += len(pid)
        self.frames += int(stacks.depth.sum())
        how = np.where(leaf == self.tree.cut, np.uint8(HOW_NO_ROOM), _HOW[stacks.reason])
        self.join.add(Stacks(time, tid, pc, va, leaf, how))

    def close(self) -> None:
        """Closes files."""
        self.code.close()

    def statistics(self) -> dict[str, int]:
        """Samples and frames unwound, faults that got a stack, samples without a row; code and call sites known."""
        return {
            "unwound": self.unwound,
            "frames": self.frames,
            "given": self.given,
            "without_row": self.join.without_row,
            **self.code.statistics(),
            **self.tree.statistics(),
        }


def _joined(dumps: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Dumps of different widths as one array; what a narrower one lacks lies beyond its samples' sizes."""
    if len(dumps) == 1:
        return np.ascontiguousarray(dumps[0])
    joined = np.zeros((sum(map(len, dumps)), max(dump.shape[1] for dump in dumps)), "<u8")
    row = 0
    for dump in dumps:
        joined[row : row + len(dump), : dump.shape[1]] = dump
        row += len(dump)
    return joined
