"""Past: what is known of the faults of a trace, whatever the moment that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import History, PageSize
from wstrace.analysis.blame.causes import Causes
from wstrace.analysis.blame.cells import FaultCells, fault_cells
from wstrace.analysis.blame.inputs import Asked, mapping_rows, of_mapping, read_all
from wstrace.analysis.blame.resident import ResidentPages, keys_of
from wstrace.analysis.faults import FORKS, FaultRows
from wstrace.analysis.losses import key_of
from wstrace.analysis.moments import Recorded
from wstrace.analysis.symbols import Symbolizer, symbolizer_of
from wstrace.ledger import OF_FILES
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
    PAGE_FILE,
)

#: Without a record of each of these, a fault may have been on what an address held before.
_NEEDED = (LOSS_UNMAPPED, LOSS_REPLACED, LOSS_DISCARDED, LOSS_MOVED)
#: Faults of each process without a record that are those of its exec, or of what it read at its start.
_OF_EXECS = 16


class Past:
    """The faults of a trace, read once for all the moments that are asked for.

    Args:
        trace: the trace. moments, whole_stacks: see inputs.read_all().

    Attributes:
        inputs: what was read, for each moment. history: the faults. whole_stacks: as it was asked for.
        file: of each recorded fault the code of the file of its page, 0 = not known.
        copyable: whether each recorded fault is on a page that a write after a fork copies.
        lost: records that the trace lacks. incomplete: what its file lacks besides, in words.
        stacks_lost: sampled stacks that it lacks.
        assumed: the kinds of losses that were not recorded, in words.
        sampled: one fault out of so many was recorded.
    """

    def __init__(self, trace: Recorded, moments: Sequence[Asked], *, whole_stacks: bool = False) -> None:
        self._trace, self.whole_stacks = trace, whole_stacks
        self.inputs = read_all(trace, moments, whole_stacks=whole_stacks)
        inputs = self.inputs[0]
        ledger = trace.ledger
        self.lost = ledger.lost
        unread = "parts of the file cannot be read" if any(map(ledger.get, OF_FILES)) else ""
        self.incomplete = trace.info.incomplete or unread
        self.stacks_lost = ledger.get("stacks_lost")
        recorded = set(trace.info.content_losses)
        self.assumed = [LOSS_EVENTS[event] for event in _NEEDED if LOSS_EVENTS[event] not in recorded]
        self.sampled = trace.info.sampled
        known, row = mapping_rows(inputs.mappings, inputs.faults["mapping"])
        flags = np.where(known, of_mapping(inputs.mappings, "flags", row), np.uint16(0))
        kind = (flags >> KIND_SHIFT & 15).astype(np.uint8)
        self.file, self._kind = np.where(known, of_mapping(inputs.mappings, "file", row), 0), kind
        private = (flags & MAP_SHARED) == 0
        copyable = np.isin(kind, (KIND_ANON, KIND_HEAP, KIND_STACK)) & private
        copyable |= (kind == KIND_FILE) & private & ((flags & MAP_WRITE) != 0)
        self.copyable = copyable
        columns = inputs.faults
        rows = FaultRows(key_of(columns["space"], columns["page"]), columns["time_ns"], columns["flags"], kind,
                         _places(columns))  # fmt: skip
        #: of each recorded fault its row in inputs.mappings, -1 = not known; only where whole stacks are wanted
        self.mapping = np.where(known, row, -1).astype(np.int32) if whole_stacks else np.zeros(0, np.int32)
        mapped = None
        if _unrecorded(trace) > _OF_EXECS * len(inputs.pids):
            mapped = np.where(known, of_mapping(inputs.mappings, "time_ns", row), np.uint64(0))
        del columns["page"], columns["mapping"]  # the history has the keys
        seen = (part for one in self.inputs for part in ResidentPages(one).parts())
        self.history = History(rows, copyable, inputs.losses, inputs.ends, seen, self._before(),
                               size=PageSize.of(inputs.page_size, trace.info.extra), mapped=mapped)  # fmt: skip
        if n := self.history.copies.uncounted:
            uncounted = f"what {n:,} processes copied is not counted: they forked too often, with too many pages"
            self.incomplete = "; ".join(filter(None, (self.incomplete, uncounted)))

    @cached_property
    def symbolizer(self) -> Symbolizer:
        """Names the instructions of faults without a stack."""
        return symbolizer_of(self._trace.info, self._trace.batches(MAPPING.name))

    @cached_property
    def causes(self) -> Causes:
        """The places of the program that faults came from."""
        return Causes(self.inputs[0], self.symbolizer, self._trace.strings, whole_stacks=self.whole_stacks)

    @cached_property
    def fault_cells(self) -> FaultCells:
        """The cells of all faults."""
        faults = self.inputs[0].faults
        return fault_cells(self.history.faults, faults["time_ns"], self.causes.of, faults["space"], self._kind,
                           self.file, faults.get("sampled"), faults.get("cgroup"))  # fmt: skip

    def _before(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys and times of pages, not of files, that processes had before the trace in which they forked."""
        losses, runs = self.inputs[0].losses, self.inputs[0].before
        parents = losses.other[np.isin(losses.event, FORKS)]
        asked = np.isin(runs["space"], parents) & ((runs["flags"] & PAGE_FILE) == 0)
        runs = {name: column[asked] for name, column in runs.items()}
        run, keys = keys_of(runs, self.inputs[0].page_size)
        return keys, runs["time"][run]


def _unrecorded(trace: Recorded) -> int:
    """How many more faults the kernel accounted to the processes than it made records of.

    It makes none where it brings pages itself: direct I/O, a write by another task (mm_account_fault() in mm/memory.c).
    """
    usage, counted = trace.info.usage.faults, trace.ledger.get("counted")
    return usage - counted if usage and counted else 0


def _places(faults: Mapping[str, NDArray[Any]]) -> NDArray[np.uint32]:
    """Of each fault the place of the program that it came from: its stack, or its instruction where it has none."""
    return np.where(faults["stack"] != 0, faults["stack"], ~faults["pc"].astype(np.uint32))
