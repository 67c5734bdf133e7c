"""What unwinds: loaded when the first samples come."""

from __future__ import annotations

import threading

import numpy as np

from wstrace.batch import Batch
from wstrace.call_sites import CallSites
from wstrace.interfaces import Context
from wstrace.schema import HOW_NO_ROOM, HOW_OWN, HOW_OWN_CUT, HOW_OWN_DEEP, HOW_OWN_NO_MAPPING, HOW_OWN_NO_RULE
from wstrace_stacks import unwinder
from wstrace_stacks.join import Join, Stacks
from wstrace_stacks.linux.known_code import KnownCode
from wstrace_stacks.linux.python_lines import Found, PythonLines
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

    Args:
        context: the session's.
        lines: find the samples' Python lines, too.


    given: rows that got a stack.
    """

    def __init__(self, context: Context, *, lines: bool = False) -> None:
        self._context = context
        self.code = KnownCode(context.strings, context.resolvers.get("sections"))
        threading.Thread(target=self.code.read_kernel, name="wstrace-kernel", daemon=True).start()
        self.tree = CallSites(context.stack_ids, context.strings, "native_stacks")
        self.join = Join()
        self.lines = PythonLines(self.code, self.tree, context.strings, context.info.lack) if lines else None
        self.unwound = self.frames = self.given = 0

    def unwind(self, batch: Batch) -> None:
        """Unwinds a batch of STACK_DUMP; its stacks wait for their rows."""
        for start in range(0, len(batch), AT_ONCE):
            self._some(batch if len(batch) <= AT_ONCE else batch.take(slice(start, start + AT_ONCE)))

    def _some(self, batch: Batch) -> None:
        pid, time, pc = (np.ascontiguousarray(batch[name]) for name in ("pid", "time_ns", "pc"))
        mappings_at = self._context.mappings_at
        self.code.begin(np.unique(pid).tolist(), lambda rows, addresses: mappings_at(pid[rows], addresses, time[rows]))
        samples = Samples(batch["registers"], np.ascontiguousarray(batch["dump"]), batch["size"].astype("<u8"))
        stacks = unwinder.unwind(samples, self.code, loops=self.lines is not None)
        # first of all, while the code objects that were running are still there
        lines = Found.none(len(batch)) if self.lines is None else self.lines.lines(samples, stacks, pid, time)
        leaf = add_stacks(self.tree, self.code, stacks, pc, mappings_at(pid, pc, time))
        self.unwound += len(batch)
        self.frames += int(stacks.depth.sum())
        how = np.where(leaf == self.tree.cut, np.uint8(HOW_NO_ROOM), _HOW[stacks.reason])
        self.join.add(Stacks(time, batch["tid"], pc, batch["va"], leaf, how, *lines))

    def close(self) -> None:
        """Closes files and memory."""
        if self.lines is not None:
            self.lines.close()
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
            **({} if self.lines is None else self.lines.statistics()),
        }
