"""Composition: the resident memory of processes at a moment, and the owner of each byte of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import REASONS, Owners
from wstrace.analysis.blame.cells import PageCells, page_cells, stood_for
from wstrace.analysis.blame.past import Past
from wstrace.analysis.blame.resident import AT_ONCE, ResidentPages
from wstrace.analysis.moments import Recorded
from wstrace.analysis.segments import distinct
from wstrace.schema import PAGE_EXCLUSIVE


class Composition:
    """The resident pages of a trace's processes at a moment, each with the fault that made it arrive.

    Args:
        trace: the trace. at, pids: see Snapshots.at().
        past: what is known of the trace at several moments, of which this is the one with that number; None = it is
            read for this one.
        whole_stacks: tell faults apart by thread and by whole stack, too: for these views of Blame.

    Attributes:
        inputs: what was read. past: what does not depend on the moment. history: the faults. found: the owners of the
            pages.
        run: of each resident page its row in `inputs.runs`.
        loaded, loader: the pages that their owner copied from another process, and the fault that had loaded each.
        lost: records that the trace lacks. incomplete: what its file lacks besides, in words.
        assumed: the kinds of losses that were not recorded, in words.
    """

    def __init__(
        self, trace: Recorded, at: str | int = "exit", pids: Sequence[int] = (), *, past: Past | None = None,
        number: int = 0, whole_stacks: bool = False,
    ) -> None:  # fmt: skip
        self.trace, self.strings, self.info = trace, trace.strings, trace.info
        self.past = past = past or Past(trace, ((at, pids),), whole_stacks=whole_stacks)
        self.inputs, self.history = past.inputs[number], past.history
        self.lost, self.assumed, self.sampled = past.lost, past.assumed, past.sampled
        self.incomplete = past.incomplete
        pages = ResidentPages(self.inputs)
        self.run = pages.run
        inputs, lossy = self.inputs, bool(self.lost or self.incomplete)
        began = np.zeros(len(inputs.pids), np.bool_)
        began[inputs.began] = True
        began[inputs.descend_from_before()] = False
        parts = [self.history.owners(part, from_before=lambda spaces: ~began[spaces], lossy=lossy)
                 for part in pages.parts()]  # fmt: skip
        loaded = [self.history.loaders(*one) for one in zip(pages.parts(), parts, strict=True)]
        self.loaded = np.concatenate([rows + number * AT_ONCE for number, (rows, _) in enumerate(loaded)])
        self.loader = np.concatenate([faults for _, faults in loaded])
        self.found = Owners(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        self.found.estimated[:] |= bool(self.assumed) & (self.found.fault >= 0)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing that could make a row's bytes another row's."""
        return not (self.lost or self.incomplete or self.past.stacks_lost or self.assumed or self.sampled > 1)

    @cached_property
    def owner(self) -> NDArray[np.intp]:
        """Of each resident page the row of its owner in `inputs.faults`, -1 = not known."""
        fault = self.found.fault
        return np.where(fault >= 0, self.history.faults.order[fault], -1) if len(self.history.faults) else fault

    @staticmethod
    def reason(number: int) -> str:
        """Why the owner of a page is not known, in the words of a row."""
        return f"not known: {REASONS[number]}"

    # -- what tables are summed from ---------------------------------------------------------------------------------

    @cached_property
    def page_cells(self) -> PageCells:
        """The cells of all resident pages."""
        runs = self.inputs.runs
        alike = [runs[name] for name in ("space", "kind", "file", "shares")]
        rows, of = distinct(*alike, self.private)
        return page_cells(self.found, self.history.faults, self.past.causes.of, rows.astype(np.uint32)[of][self.run])

    def samples(self, view: str) -> NDArray[np.intp]:
        """The faults, in the order of the inputs, that stand for others in a view by line, function or package."""
        return self.past.causes.samples(view)

    @cached_property
    def gone_faults(self) -> NDArray[np.bool_]:
        """Of each recorded fault, whether its page arrived by it and is no longer resident."""
        faults = self.history.faults
        left = faults.brings.copy()
        left[self.found.fault[self.found.fault >= 0]] = False
        found = np.zeros(len(left), np.bool_)
        found[faults.order[left]] = True
        return found

    @cached_property
    def gone(self) -> NDArray[np.intp]:
        """Of each cell of faults, how many there are whose own page is not resident."""
        cells, each = self.past.fault_cells, self.inputs.faults.get("sampled")
        rows = np.flatnonzero(self.gone_faults)
        return stood_for(cells.of[rows], len(cells.cause), None if each is None else each[rows])

    @cached_property
    def copies(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Of the copied pages the cell, the cell of the fault that had loaded them, and how many there are."""
        copier, loader = (
            self.page_cells.of[self.loaded],
            self.past.fault_cells.of[self.history.faults.order[self.loader]],
        )
        rows, which = distinct(copier, loader)
        return copier[rows].astype(np.intp), loader[rows].astype(np.intp), np.bincount(which, minlength=len(rows))

    @cached_property
    def origin_ns(self) -> int:
        """The time that the seconds of reports count from: the beginning of the trace, else the first fault."""
        times = self.inputs.faults["time_ns"]
        return self.info.started_ns or int(times.min(initial=np.iinfo(np.uint64).max) if len(times) else 0)

    # -- bytes -------------------------------------------------------------------------------------------------------

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return self.inputs.page_size

    @cached_property
    def private(self) -> NDArray[np.bool_]:
        """Of each run whether no other process has its pages."""
        mask: NDArray[np.bool_] = (self.inputs.runs["flags"] & PAGE_EXCLUSIVE) != 0
        return mask

    @cached_property
    def pss(self) -> NDArray[np.float64] | None:
        """Of each run the proportional share of a page in bytes; None where the number of mappings is not known."""
        shares = self.inputs.runs["shares"]
        exclusive = (self.inputs.runs["flags"] & PAGE_EXCLUSIVE) != 0
        if not self.inputs.shares_known or (shares[~exclusive] == 255).any() or (shares == 0).any():
            return None
        proportional: NDArray[np.float64] = self.page_size / np.where(exclusive, 1, shares)
        return proportional

    def name_of(self, space: int) -> str:
        """`python3 (4711)`."""
        return f"{self.program_of(space)} ({self.inputs.pids[space]})"

    def program_of(self, space: int) -> str:
        """`python3`."""
        code = self.inputs.names.get(space, 0)
        return self.strings[code] if 0 < code < len(self.strings) else "[unknown]"

    def column(self, name: str) -> NDArray[Any]:
        """A column of the runs, of each resident page."""
        values: NDArray[Any] = self.inputs.runs[name][self.run]
        return values
