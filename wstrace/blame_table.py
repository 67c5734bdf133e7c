"""The rows of a blame as a table for numpy, pandas and whatever takes Arrow streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wstrace.analysis.blame.rows import BlameRow
from wstrace.batch import Batch, Dictionary
from wstrace.schema import DTYPES, Column, Schema
from wstrace.table import Records, Selection, Table

_NAMES = ("file", "function", "package", "kind", "reason", "loaded_by")
_BYTES = ("resident", "private", "shared", "brought", "written", "from_disk", "estimated", "copied", "again")
_COUNTS = ("faults", "major", "samples")
#: The columns of a row; sizes are in bytes. `label` is whole, as in JSON.
BLAME = Schema("blame", (
    Column("label", "u32", "str", "what the row is of, with its full path"),
    *(Column(name, "u32", "str", "see BlameRow") for name in _NAMES),
    Column("line", "u32", "count", "of the file; 0 = none"),
    *(Column(name, "u64", "count", "see BlameRow", unit="bytes") for name in _BYTES),
    Column("pss", "u64", "count", "proportional shares; absent where not known", unit="bytes"),
    *(Column(name, "u64", "count", "see BlameRow") for name in _COUNTS),
    Column("first_ns", "u64", "ns", "of the first fault; 0 = none"),
))  # fmt: skip


def blame_table(rows: Sequence[BlameRow]) -> Table:
    """The rows of a blame as a table; sizes in bytes."""
    return _BlameRecords(rows).table(BLAME.name)


class _BlameRecords(Records):
    """Rows of a blame as the one batch of a stream `blame`."""

    def __init__(self, rows: Sequence[BlameRow]) -> None:
        self.strings = Dictionary()
        columns = {}
        for column in BLAME.columns:
            if column.name == "pss":
                shares = [row.pss for row in rows if row.pss is not None]
                if len(shares) == len(rows):
                    columns["pss"] = np.array(shares).round().astype(DTYPES[column.type])
                continue
            values = [getattr(row, "whole" if column.name == "label" else column.name) for row in rows]
            if column.semantic == "str":
                values = [self.strings.code(value) for value in values]
            columns[column.name] = np.array(values, DTYPES[column.type])
        self._batch = Batch(BLAME, columns, strings=self.strings, rows=len(rows))

    @property
    def name(self) -> str:
        """The name to show for it."""
        return "blame"

    @property
    def rows(self) -> dict[str, int]:
        """stream -> number of rows."""
        return {BLAME.name: len(self._batch)}

    def schema(self, name: str) -> Schema:
        """The schema of the rows, the only one here."""
        return BLAME

    def read(self, selection: Selection) -> Iterator[Batch]:
        """The rows of a selection."""
        if (found := selection.of(self._batch)) is not None:
            yield found
