"""The rows of a report as a table for numpy, pandas and whatever takes Arrow streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.schema import DTYPES, Column, Schema
from wstrace.table import Records, Selection

if TYPE_CHECKING:
    from wstrace.analysis.report import Report

_TEXTS = ("label", "file", "function", "package", "reason")


class ReportRecords(Records):
    """The rows of a report as the one batch of a stream `report`; sizes in bytes, `label` as tables show it."""

    def __init__(self, report: Report) -> None:
        self.strings = Dictionary()
        rows = [row.as_dict(report.by, report.total) for row in report.rows]
        texts = dict.fromkeys((*_TEXTS, *report.by))
        numbers = {"line": "u32"} | dict.fromkeys(report.total, "i64")
        self._schema = Schema("report", (
            *(Column(name, "u32", "str", "see the keys of `report --json`") for name in texts if name not in numbers),
            *(Column(name, kind, "count", "see the keys of `report --json`") for name, kind in numbers.items()),
        ))  # fmt: skip
        columns = {}
        for column in self._schema.columns:
            values = [row[column.name] for row in rows]
            values = [self.strings.code(value) for value in values] if column.semantic == "str" else values
            columns[column.name] = np.array(values, DTYPES[column.type])
        self._batch = Batch(self._schema, columns, strings=self.strings, rows=len(rows))

    @property
    def name(self) -> str:
        """The name to show for it."""
        return "report"

    @property
    def rows(self) -> dict[str, int]:
        """stream -> number of rows."""
        return {"report": len(self._batch)}

    def schema(self, name: str) -> Schema:
        """The schema of the rows, the only one here."""
        return self._schema

    def read(self, selection: Selection) -> Iterator[Batch]:
        """The rows of a selection."""
        if (found := selection.of(self._batch)) is not None:
            yield found
