"""Pieces of a trace file that are read apart from each other: by the tasks of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wstrace.batch import Batch
from wstrace.table import Selection
from wstrace_exporters.msgpack.read.trace import TraceFile


class Piece(NamedTuple):
    """Some frames of a part: the byte offsets of the first and the last one, and the rows that all of them have."""

    first: int
    last: int
    rows: int


def cut(trace: TraceFile, selection: Selection, rows: int) -> list[Piece]:
    """The pieces of a part that hold a selection, of about so many rows each, by its index: no frame is read.

    Args:
        trace: one part, opened by itself.
        selection: whose frames are counted; those that the index shows to hold none of it are left out.
        rows: of a piece.
    """
    ((part, decoder),) = trace.decoders(selection)
    entries = part.chosen(decoder.kinds, selection)
    numbers = (np.cumsum(entries["n"], dtype="i8") - entries["n"]) // rows
    return [
        Piece(int(some["offset"][0]), int(some["offset"][-1]), int(some["n"].sum()))
        for some in np.split(entries, np.flatnonzero(np.diff(numbers)) + 1)
        if len(some)
    ]


def read(trace: TraceFile, selection: Selection, piece: Piece) -> Iterator[Batch]:
    """The batches of a piece of a part that was opened by itself."""
    ((part, decoder),) = trace.decoders(selection)
    for frame in part.read(decoder.kinds, selection, after=piece.first - 1):
        if frame.offset > piece.last:
            return
        batch = decoder.batch(frame)
        if batch is not None and len(batch):
            yield batch
