"""Composition: the resident memory of processes at a moment, and by whom each byte of it was brought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bringers import BEFORE, EXEC, HOWS, KHUGEPAGED, NOT_SEEN, Found, PageRows
from wstrace.analysis.blame.causes import Causes
from wstrace.analysis.blame.cells import FaultCells, PageCells, fault_cells, page_cells, still_there
from wstrace.analysis.blame.faults import FORKS, FaultRows
from wstrace.analysis.blame.history import History
from wstrace.analysis.blame.inputs import Recorded, mapping_rows, of_mapping, pages_of, read
from wstrace.analysis.blame.losses import key_of
from wstrace.analysis.segments import distinct
from wstrace.analysis.symbols import Symbolizer
from wstrace.interfaces import Context
from wstrace.ledger import Ledger
from wstrace.plugins import default_plugins
from wstrace.schema import (
    KIND_ANON,
    KIND_FILE,
    KIND_HEAP,
    KIND_SHIFT,
    KIND_STACK,
    LOSS_DISCARDED,
    LOSS_EVENTS,
    LOSS_MOVED,
    LOSS_REPLACED,
    LOSS_UNMAPPED,
    MAP_SHARED,
    MAP_WRITE,
    MAPPING,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_HUGE,
)

#: Without a record of each of these, a fault may have been on what an address held before.
_NEEDED = (LOSS_UNMAPPED, LOSS_REPLACED, LOSS_DISCARDED, LOSS_MOVED)
#: Pages whose bringers are searched at once: what that needs beside the result stays below 20 MiB.
_AT_ONCE = 1 << 17


class Composition:
    """The resident pages of a trace's processes at a moment, each with the fault that made it arrive.

    Args:
        trace: the trace. at, pids: see inputs.read().

    Attributes:
        inputs: what was read. history: the faults. found: the bringers of the pages.
        copyable: whether each recorded fault is on a page that a write after a fork copies.
        run: of each resident page its row in `inputs.runs`.
        loaded, loader: the pages that their bringer copied from another process, and the fault that had loaded each.
        lost: records that the trace lacks. assumed: the kinds of losses that were not recorded, in words.
    """

    def __init__(self, trace: Recorded, at: str | int = "exit", pids: Sequence[int] = ()) -> None:
        self.trace, self.strings, self.info = trace, trace.strings, trace.info
        self.inputs = inputs = read(trace, at, pids)
        stages = Ledger(default_plugins().stages)  # a file does not say which of its stages are a loss
        self.lost = sum(n for stage, _, n in trace.ledger.rows() if stages.is_loss(stage))
        recorded = set(trace.info.content_losses)
        self.assumed = [LOSS_EVENTS[event] for event in _NEEDED if LOSS_EVENTS[event] not in recorded]
        self.sampled = trace.info.sampled
        self.run, self._key = self._pages()
        known, row = mapping_rows(inputs.mappings, inputs.faults["mapping"])
        flags = np.where(known, of_mapping(inputs.mappings, "flags", row), np.uint16(0))
        kind = (flags >> KIND_SHIFT & 15).astype(np.uint8)
        self.fault_file = np.where(known, of_mapping(inputs.mappings, "file", row), 0)
        self.fault_kind = kind
        private = (flags & MAP_SHARED) == 0
        copyable = np.isin(kind, (KIND_ANON, KIND_HEAP, KIND_STACK)) & private
        copyable |= (kind == KIND_FILE) & private & ((flags & MAP_WRITE) != 0)
        self.copyable = copyable
        columns = inputs.faults
        rows = FaultRows(key_of(columns["space"], columns["page"]), columns["time_ns"], columns["flags"], kind)
        lossless = not self.lost and self.sampled <= 1
        del columns["page"], columns["mapping"]  # the history has the keys
        self.history = History(
            rows, copyable, inputs.losses, inputs.ends, self._in_parts(), self._before(), lossless=lossless
        )
        parts = [self.history.bringers(pages, self._key) for pages in self._in_parts()]
        loaded = [self.history.loaders(*one) for one in zip(self._in_parts(), parts, strict=True)]
        self.loaded = np.concatenate([rows + number * _AT_ONCE for number, (rows, _) in enumerate(loaded)])
        self.loader = np.concatenate([faults for _, faults in loaded])
        found = Found(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        if (found.first == found.second).all():
            found = found._replace(second=found.first)
        self.found = self._without_more(found)

    @cached_property
    def symbolizer(self) -> Symbolizer:
        """Names the instructions of faults without a stack."""
        found = Symbolizer(Context(resolvers=default_plugins().make_resolvers(), info=self.info), live=False)
        for batch in self.trace.batches(MAPPING.name):
            found.learn(batch)
        return found

    @cached_property
    def causes(self) -> Causes:
        """The places of the program that faults came from."""
        return Causes(self.inputs, self.symbolizer, self.strings)

    def _pages(self) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Of each resident page its run and its key."""
        inputs = self.inputs
        run, number = pages_of(inputs.runs)
        shift = np.uint64(inputs.page_size.bit_length() - 1)
        first = key_of(inputs.runs["space"], inputs.runs["start"] >> shift)
        return run, first[run] + number.astype(np.uint64)

    def _before(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys and times of pages, not of files, that processes had before the trace in which they forked."""
        losses, runs = self.inputs.losses, self.inputs.before
        parents = losses.other[np.isin(losses.event, FORKS)]
        asked = np.isin(runs["space"], parents) & ((runs["flags"] & PAGE_FILE) == 0)
        runs = {name: column[asked] for name, column in runs.items()}
        run, number = pages_of(runs)
        shift = np.uint64(self.inputs.page_size.bit_length() - 1)
        first = key_of(runs["space"], runs["start"] >> shift)
        return first[run] + number.astype(np.uint64), runs["time"][run]

    def _in_parts(self) -> Iterator[PageRows]:
        """The resident pages, some at a time: a large process has millions; at least one part."""
        inputs, runs = self.inputs, self.inputs.runs
        shift = np.uint64(inputs.page_size.bit_length() - 1)
        known, row = mapping_rows(inputs.mappings, runs["mapping"])
        low, high, offset = (
            np.where(known, of_mapping(inputs.mappings, name, row) >> shift, np.uint64(0))
            for name in ("start", "end", "offset")
        )
        flags = np.where(known, of_mapping(inputs.mappings, "flags", row), np.uint16(0))
        writable = (flags & (MAP_SHARED | MAP_WRITE)) == MAP_SHARED | MAP_WRITE
        noticed = writable & (flags >> KIND_SHIFT & 15 == KIND_FILE)
        file, huge = (runs["flags"] & PAGE_FILE) != 0, (runs["flags"] & PAGE_HUGE) != 0
        columns = runs["time"], file, huge, low, high, offset, noticed
        for begin in range(0, max(len(self.run), 1), _AT_ONCE):
            run = self.run[begin : begin + _AT_ONCE]
            yield PageRows(self._key[begin : begin + _AT_ONCE], *(column[run] for column in columns))

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
        return found

    @property
    def complete(self) -> bool:
        """Whether nothing is missing that could make a row's bytes another row's."""
        return not (self.lost or self.assumed or self.sampled > 1 or self.unsure)

    @property
    def unsure(self) -> int:
        """Bytes of pages whose content may have been another one before, as records of that may be missing."""
        return int((self.found.assumed & (self.found.first >= 0)).sum()) * self.page_size

    def reason(self, how: int) -> str:
        """Why no bringer of a page is known, in the words of a row."""
        if how == NOT_SEEN:
            return "lost, or came without a fault" if self.lost else "came without a fault"
        return "put together by khugepaged" if how == KHUGEPAGED else HOWS[how]

    # -- what tables are summed from ---------------------------------------------------------------------------------

    @cached_property
    def fault_cells(self) -> FaultCells:
        """The cells of all faults."""
        faults = self.inputs.faults
        return fault_cells(self.history.faults, faults["time_ns"], self.causes.of, faults["space"], self.fault_kind,
                           self.fault_file)  # fmt: skip

    @cached_property
    def page_cells(self) -> PageCells:
        """The cells of all resident pages."""
        runs = self.inputs.runs
        alike = [runs[name] for name in ("space", "kind", "file", "shares")]
        rows, of = distinct(*alike, self.private)
        return page_cells(self.found, self.history.faults, self.causes.of, rows.astype(np.uint32)[of][self.run])

    @cached_property
    def still_there(self) -> NDArray[np.intp]:
        """Of each cell of faults, those whose own page is resident."""
        return still_there(self.found, self.history.faults, self.fault_cells)

    @cached_property
    def copies(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Of the copied pages the cell, the cell of the fault that had loaded them, and how many there are."""
        copier, loader = self.page_cells.of[self.loaded], self.fault_cells.of[self.history.faults.order[self.loader]]
        rows, which = distinct(copier, loader)
        return copier[rows].astype(np.intp), loader[rows].astype(np.intp), np.bincount(which, minlength=len(rows))

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
        code = self.inputs.names.get(space, 0)
        name = self.strings[code] if 0 < code < len(self.strings) else "[unknown]"
        return f"{name} ({self.inputs.pids[space]})"

    def column(self, name: str) -> NDArray[Any]:
        """A column of the runs, of each resident page."""
        values: NDArray[Any] = self.inputs.runs[name][self.run]
        return values
