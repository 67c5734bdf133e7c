"""The rows of snapshots as those of other streams: with the time and process that a file has once for all of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wstrace.batch import Batch
from wstrace.schema import Column, Schema

#: What a snapshot's rows have in common; in a file it stands once for all of them.
COMMON = (Column("time_ns", "u64", "ns", "of the snapshot"), Column("pid", "u32", "id", "the process"))


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """The columns that the table of a stream has: a snapshot's rows have its process and time."""
    return (*COMMON, *schema.columns) if schema.snapshot else schema.columns


def stored_names(columns: Iterable[str]) -> list[str]:
    """The columns to read for those: without what stands once for all rows, but at least one that all rows have."""
    return [*(name for name in columns if name not in {column.name for column in COMMON}), "pages"]


def with_time_and_pid(batch: Batch) -> Batch:
    """The rows of a snapshot with its time and process."""
    snapshot = batch.snapshot
    given = {"time_ns": (snapshot.time_ns if snapshot else 0, "<u8"), "pid": (snapshot.pid if snapshot else 0, "<u4")}
    common = {name: np.full(len(batch), value, kind) for name, (value, kind) in given.items()}
    return Batch(batch.schema, {**batch.columns, **common}, strings=batch.strings, snapshot=snapshot, rows=len(batch))
