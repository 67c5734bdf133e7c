"""Who brought the pages of a file into memory, by a trace: the line of the program, and where in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wstrace.analysis.blame.inputs import mapping_rows, of_mapping
from wstrace.errors import UsageError
from wstrace.schema import PAGE_FILE
from wstrace_plugins.working_set.file_heat import Bringer, FileHeat, Holder, Ranges

if TYPE_CHECKING:
    from wstrace.trace import Trace


def of_trace(heat: FileHeat, trace: Trace, at: str, pids: Sequence[int]) -> FileHeat:
    """What of the file the traced processes had in memory at a moment, and who had brought it.

    Args:
        heat: the file as it is now.
        at: `peak`, `exit`, `start` or a mark, as Trace.blame() takes it.
        pids: of these processes alone; () = of all.

    Raises:
        UsageError: no process of the trace has mapped a file of that path, or there is no such mark.
    """
    told = trace.blame(at=at, pids=pids)
    inputs, runs = told.of.inputs, told.of.inputs.runs
    code = trace.strings.code(heat.path)
    mapped = inputs.mappings["file"] == code
    if not mapped.any():
        raise UsageError(f"no process of the trace has mapped {heat.path}", "wstrace report FILE --by file names all")
    known, row = mapping_rows(inputs.mappings, runs["mapping"])
    base = of_mapping(inputs.mappings, "offset", row) - of_mapping(inputs.mappings, "start", row)  # wraps around
    ours = known & (runs["file"] == code)
    page = np.flatnonzero(ours[told.of.run])
    run = told.of.run[page]
    number = page - (np.cumsum(runs["pages"], dtype=np.int64) - runs["pages"])[run]
    size = np.uint64(told.of.page_size)
    start = runs["start"][run] + base[run] + number.astype(np.uint64) * size
    own = (runs["flags"][run] & PAGE_FILE) == 0  # a copy of the process's own
    holders = []
    for space in np.unique(runs["space"][run]).tolist():
        some = runs["space"][run] == space
        pid = int(inputs.pids[space])
        maps = mapped & (inputs.mappings["pid"] == pid)
        begin, offset = inputs.mappings["start"][maps], inputs.mappings["offset"][maps]
        whole = Ranges.union(offset, offset + inputs.mappings["end"][maps] - begin)
        there = start[some & ~own]
        copied = int((some & own).sum()) * told.of.page_size
        holders.append(
            Holder(pid, told.of.name_of(space).rpartition(" (")[0], whole, Ranges.union(there, there + size), copied)
        )
    labels, rows = told.labels_of_pages("line")
    bringers = []
    for label in np.unique(labels[page]).tolist():
        which = labels[page] == label
        its, unsure = start[which], int(told.of.found.estimated[page[which]].sum()) * int(size)
        ranges = Ranges.union(its, its + size)
        bringers.append(Bringer(rows[label].label, rows[label].whole, ranges, len(its) * int(size), unsure))
    bringers.sort(key=lambda one: (-one.resident, one.whole))
    return replace(heat, holders=holders, bringers=bringers, refused=0)
