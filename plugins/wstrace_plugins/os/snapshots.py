"""Batches of a snapshot: the mappings of a process, then runs of its pages in parts that fit a frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.schema import ADDRESS_SPACE, SPACE_MAP, SPACE_REPLACE, Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_A_PART = 65_536


def address_space(
    pid: int, time_ns: int, mappings: Mapping[str, NDArray[Any]], strings: Dictionary, source: str
) -> Batch:
    """A batch of all mappings of a process: its first row has the event `replace`, the others have `map`.

    time_ns: the time of the listing on the records' clock. mappings: the columns of schema.ADDRESS_SPACE that the
    system gives, without time_ns, pid and event. strings: the dictionary of the codes in `file`. source: the name of
    the source.
    """
    n = len(mappings["start"])
    event = np.full(n, SPACE_MAP, "u1")
    event[:1] = SPACE_REPLACE
    columns = {"time_ns": np.full(n, time_ns, "<u8"), "pid": np.full(n, pid, "<u4"), "event": event, **mappings}
    return Batch(ADDRESS_SPACE, columns, window=(time_ns, time_ns), source=source, strings=strings)


def parts(
    schema: Schema, runs: Mapping[str, NDArray[Any]], *, snap: int, pid: int, time_ns: int, strings: Dictionary,
    source: str,
) -> Iterator[Batch]:  # fmt: skip
    """Yields the runs of one process at one time in batches with their SnapshotPart; an empty batch without runs."""
    n = len(runs["start"])
    for part, at in enumerate(range(0, max(n, 1), ROWS_A_PART)):
        some = {name: column[at : at + ROWS_A_PART] for name, column in runs.items()}
        pages = int(some["pages"].sum(dtype=np.int64))
        one = SnapshotPart(pid, snap, part, at + ROWS_A_PART >= n, time_ns, pages)
        yield Batch(schema, some, window=(time_ns, time_ns), source=source, strings=strings, snapshot=one)
