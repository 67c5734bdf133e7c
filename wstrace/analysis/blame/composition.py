"""Composition: the resident memory of processes at a moment, and by whom each byte of it was brought."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bringers import BEFORE, EXEC, HOWS, KHUGEPAGED, NOT_SEEN, OWN, POPULATED, Found
from wstrace.analysis.blame.cells import Gone, PageCells, gone, page_cells
from wstrace.analysis.blame.moments import Recorded
from wstrace.analysis.blame.past import Past
from wstrace.analysis.blame.resident import AT_ONCE, ResidentPages
from wstrace.analysis.blame.sampling import shared_out
from wstrace.analysis.segments import distinct
from wstrace.schema import KIND_STACK, PAGE_EXCLUSIVE


class Composition:
    """The resident pages of a trace's processes at a moment, each with the fault that made it arrive.

    Args:
        trace: the trace. at, pids: see Snapshots.at().
        past: what is known of the trace at several moments, of which this is the one with that number; None = it is
            read for this one.
        whole_stacks: tell faults apart by thread and by whole stack, too: for these views of Blame.

    Attributes:
        inputs: what was read. past: what does not depend on the moment. history: the faults. found: the bringers of the
            pages.
        run: of each resident page its row in `inputs.runs`.
        loaded, loader: the pages that their bringer copied from another process, and the fault that had loaded each.
        lost: records that the trace lacks. incomplete: what its file lacks besides, in words.
        assumed: the kinds of losses that were not recorded, in words.
    """

    def __init__(
        self, trace: Recorded, at: str | int = "exit", pids: Sequence[int] = (), *, past: Past | None = None,
        number: int = 0, whole_stacks: bool = False,
    ) -> None:  # fmt: skip
        self.trace, self.strings, self.info = trace, trace.strings, trace.info
        self.past = past = past or Past(trace, (at,), pids, whole_stacks=whole_stacks)
        self.inputs, self.history = past.inputs[number], past.history
        self.lost, self.assumed, self.sampled = past.lost, past.assumed, past.sampled
        self.incomplete = past.incomplete
        pages = ResidentPages(self.inputs)
        self.run = pages.run
        parts = [self.history.bringers(part, pages.key) for part in pages.parts()]
        loaded = [self.history.loaders(*one) for one in zip(pages.parts(), parts, strict=True)]
        self.loaded = np.concatenate([rows + number * AT_ONCE for number, (rows, _) in enumerate(loaded)])
        self.loader = np.concatenate([faults for _, faults in loaded])
        found = Found(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        if (found.first == found.second).all():
            found = found._replace(second=found.first)
        found = self._without_more(found)
        if self.sampled > 1:
            each = self.inputs.faults["sampled"][self.history.faults.order]
            found = shared_out(found, self.inputs, self.run, pages.key, self.history.faults.key, each)
        self.found = found

    def _without_more(self, found: Found) -> Found:
        """The bringers; a reason says no more than is known."""
        how, kind = found.how, self.inputs.runs["kind"][self.run]
        began = np.isin(self.inputs.runs["space"], self.inputs.began)[self.run]
        if (until := self.inputs.faults.get("until")) is not None:
            # a fault whose window holds the snapshot brings a page of a process that began in the trace; any other page
            # may have been there before, and have come again only after the snapshot
            brought = np.flatnonzero((found.first >= 0) & ~began)
            late = until[self.history.faults.order[found.first[brought]]]
            found.assumed[brought[late > self.inputs.runs["time"][self.run[brought]]]] = True
        inherits = np.isin(self.inputs.runs["space"], self.inputs.descend_from_before())[self.run]
        how[(how == BEFORE) & began & ~inherits] = NOT_SEEN
        how[(how == EXEC) & (kind != KIND_STACK)] = NOT_SEEN
        how[(how == NOT_SEEN) & (kind == KIND_STACK) & began] = EXEC
        how[(how == NOT_SEEN) & found.populated] = POPULATED
        return found

    @property
    def complete(self) -> bool:
        """Whether nothing is missing that could make a row's bytes another row's."""
        return not (
            self.lost or self.incomplete or self.past.stacks_lost or self.assumed or self.sampled > 1 or self.unsure
        )

    @property
    def unsure(self) -> int:
        """Bytes of pages whose content may have been another one before, as records of that may be missing."""
        return int((self.found.assumed & (self.found.first >= 0)).sum()) * self.page_size

    @cached_property
    def estimated(self) -> NDArray[np.bool_]:
        """Of each resident page, whether its bringer is known but may be another one."""
        found = self.found
        unsure = found.assumed | found.doubted | (self.sampled > 1)
        estimated: NDArray[np.bool_] = (found.first != found.second) | (unsure & (found.first >= 0))
        return estimated

    def reason(self, how: int) -> str:
        """Why no bringer of a page is known, in the words of a row."""
        if how == NOT_SEEN and self.sampled > 1:
            return f"not recorded: one of {self.sampled} faults is, or came without one"
        if how in (NOT_SEEN, POPULATED):
            level = self.info.level_name  # a lesser one does not record all faults
            may = ["lost"] * bool(self.lost or self.incomplete) + [f"not recorded at level {level}"] * (level != "full")
            without = "came without a fault" if how == NOT_SEEN else HOWS[how]
            return ", or ".join([*may, without])
        return "put together by khugepaged" if how == KHUGEPAGED else HOWS[how]

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
        causes = self.past.causes
        of_stacks = causes.samples(view)
        if self.sampled <= 1:
            return of_stacks
        recorded = np.unique(self.history.faults.order[self.found.first[self.found.how == OWN]])
        return np.union1d(of_stacks, recorded[~causes.estimated(view)[causes.of[recorded]]])

    @cached_property
    def gone(self) -> Gone:
        """Of each cell of faults, how many there are whose own page is not resident."""
        each = self.inputs.faults.get("sampled")
        return gone(self.found, self.history.faults, self.past.fault_cells, each, self.past.several)

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
