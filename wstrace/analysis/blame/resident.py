"""The resident pages of a moment, as the search for their bringers takes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import PageRows
from wstrace.analysis.blame.inputs import Columns, Inputs, mapping_rows, of_mapping, pages_of
from wstrace.analysis.losses import LAST_PAGE, key_of
from wstrace.schema import KIND_FILE, KIND_SHIFT, MAP_SHARED, MAP_WRITE, PAGE_FILE, PAGE_HUGE

#: Pages whose bringers are searched at once: what that needs beside the result stays below 20 MiB.
AT_ONCE = 1 << 17


class ResidentPages:
    """The resident pages of a moment.

    Attributes:
        run: of each page its row in `inputs.runs`. key: of each its key, ascending.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self.run, self.key = keys_of(inputs.runs, inputs.page_size)

    def parts(self) -> Iterator[PageRows]:
        """The pages, AT_ONCE at a time, as a large process has millions; at least one part."""
        inputs, runs = self._inputs, self._inputs.runs
        shift = np.uint64(inputs.page_size.bit_length() - 1)
        known, row = mapping_rows(inputs.mappings, runs["mapping"])
        low, high, offset = (
            np.where(known, of_mapping(inputs.mappings, name, row) >> shift, np.uint64(0))
            for name in ("start", "end", "offset")
        )
        flags = np.where(known, of_mapping(inputs.mappings, "flags", row), np.uint16(0))
        noticed = (flags & MAP_WRITE != 0) & (flags & MAP_SHARED != 0) & (flags >> KIND_SHIFT & 15 == KIND_FILE)
        file, huge = (runs["flags"] & PAGE_FILE) != 0, (runs["flags"] & PAGE_HUGE) != 0
        columns = runs["time"], file, huge, low, high, offset, noticed
        for begin in range(0, max(len(self.run), 1), AT_ONCE):
            run = self.run[begin : begin + AT_ONCE]
            yield PageRows(self.key[begin : begin + AT_ONCE], *(column[run] for column in columns))


def keys_of(runs: Columns, page_size: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Of each page of resident runs its run, and its key."""
    run, number = pages_of(runs)
    first = key_of(runs["space"], runs["start"] >> np.uint64(page_size.bit_length() - 1))
    keys = first[run] + number.astype(np.uint64)
    last = first | LAST_PAGE
    if (first + runs["pages"].astype(np.uint64) > last + np.uint64(1)).any():
        keys = np.minimum(keys, last[run])  # a damaged file's run past the last address is no other process's
    return run, keys
