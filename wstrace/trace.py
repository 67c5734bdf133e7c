"""Trace: one type for the records of a session or a file, as batches, tables, counts and files of other formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.errors import Closing, UsageError
from wstrace.schema import DTYPES, Column, Schema
from wstrace.table import Batches, Recorded, Records, Selection

if TYPE_CHECKING:
    from wstrace.analysis.compare import Comparison
    from wstrace.analysis.report import Report

#: Faults that a notebook counts: these take a tenth of a second.
_QUICK = 1_000_000
_TEXTS = ("label", "file", "function", "package", "reason")


class Trace(Closing, Recorded):
    """The records of a session (`session.trace`) or of a file (`wstrace.open_trace`). It is a context manager."""

    def report(self, *, by: str | Sequence[str] = "line", at: str | int = "", sort: str = "") -> Report:
        """The resident bytes and the faults by who brought them: `trace.report(by="package").rows`.

        Args:
            by: a dimension, or several: `line`, `function`, `package`, `file`, `kind`, `process` ...
            at: `peak`, `exit`, `start`, the text of a mark, or a time in ns on the records' clock; "" = the peak of a
                launched command, else the last snapshot.
            sort: the measure by which rows are ordered; "" = resident bytes where pages are known, else faults.

        Raises:
            UsageError: there is no such dimension, measure or mark.
        """
        from wstrace.analysis.report import report

        return report(self, (by,) if isinstance(by, str) else tuple(by), at, lead=sort)

    def report_table(self, *, by: str | Sequence[str] = "line", at: str | int = "", sort: str = "") -> Batches:
        """The rows of report() as a table: `pyarrow.table(trace.report_table())`, `.to_pandas()`; sizes in bytes.

        Args:
            by: as of report(). at: as of report(). sort: as of report().

        Raises:
            UsageError: as report().
        """

        return ReportRecords(self.report(by=by, at=at, sort=sort)).batches("report")

    def diff(self, other: Trace, at: str | int | None = None) -> Comparison:
        """What another run has more in memory than this one: `a.diff(b).rows("package")` has sizes in bytes.

        Args:
            other: the trace of the second run.
            at: the moment, as of report(); None = the peak if both traces recorded it (`-s peak_snapshot`), else
                the last snapshot of each process.

        Raises:
            TraceFileError: a trace has no whole snapshot of resident pages.
            UsageError: there is no such mark.
        """
        from wstrace.analysis.compare import Comparison

        return Comparison(self, other, at)

    def save(
        self,
        path: str,
        *,
        force: bool = False,
        stream: str | None = None,
        columns: Sequence[str] | None = None,
        start: int | None = None,
        end: int | None = None,
        **options: object,
    ) -> int:
        """Writes the trace to a file; the suffix of the path (`.parquet`, `.csv`, ...) selects the format.

        Args:
            path: the file, which appears only once it is complete.
            force: whether to overwrite an existing file.
            stream: the stream to write, if the format takes rows; None = `page_fault`.
            columns: as in batches(), if the format takes rows.
            start: as in batches(), if the format takes rows.
            end: as in batches(), if the format takes rows.
            options: the format's own options.

        Returns:
            The number of rows that were written.

        Raises:
            UsageError: no format has this suffix, or the format has no such option.
            OutputError: the file exists, or cannot be written.
        """
        from wstrace.formats import save

        selection = Selection(stream, None if columns is None else tuple(columns), start, end)
        return save(self, path, selection, options, force=force)

    def html(self, path: str, *, force: bool = False, at: str = "", before: str = "", by: str = "") -> int:
        """Writes a report with pictures in one file that needs no network; returns the number of faults.

        Args:
            path: the file, which ends in `.html`.
            force: whether to overwrite an existing file.
            at: the moment of which the resident pages are shown, as of report(); "" = the peak, or as of diff().
            before: the trace file of an earlier run: the page shows what this one has more. by: the dimension of that.

        Raises:
            UsageError: the path ends otherwise, or there is no such mark.
            OutputError: the file exists, or cannot be written.
        """
        if not path.lower().endswith((".html", ".htm")):
            raise UsageError(f"{path}: a report is a file that ends in .html", f"write {path}.html")
        return self.save(path, force=force, at=at, before=before, by=by)

    def close(self) -> None:
        """Closes the file that it reads from, if any."""

    def _repr_html_(self) -> str:
        from wstrace.notebook import shown

        much = [repr(self), "too many page faults to be counted here: see report()"], (), ()
        quick = self.rows.get("page_fault", 0) <= _QUICK
        return shown(lambda: self.report(by="file").picture() if quick else much)

    def __repr__(self) -> str:
        state = self.state  # before the rows, because determining the state of a file finds missing ones
        rows = ", ".join(f"{n:,} {stream}" for stream, n in sorted(self.rows.items())) or "no rows"
        return f"<{type(self).__name__} {self.name}: {state}; {rows}; {self._lost()}>"

    def _lost(self) -> str:
        """The number of lost records, in words."""
        return f"{sum(n for _, _, n in self.ledger.losses()):,} lost"


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
            values = [self.strings.code(str(value)) for value in values] if column.semantic == "str" else values
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
