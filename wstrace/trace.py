"""Trace: one type for the records of a session or a file, as batches, tables, counts and files of other formats."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from wstrace.batch import Batch, Dictionary
from wstrace.ledger import Ledger
from wstrace.schema import DTYPES, Column, Schema
from wstrace.table import Batches, Selection, Table
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.summary import Summary


class Trace(abc.ABC):
    """The records of a session (`session.trace`) or of a file (`wstrace.open_trace`). It is a context manager.

    Attributes:
        strings: the names behind the codes of `str` columns.
        observer: called with the rows of each batch that is read through batches() and table(); None = no observer.
        closed: close() was called, so nothing can be read any more.
    """

    strings: Dictionary
    observer: Callable[[int], None] | None = None
    closed: bool = False

    # -- what is in it -----------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name to show for it; of a file its path."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """`clean`, `incomplete`, `cut` (its end is missing) or `damaged` for a file; a session has its own states."""

    @property
    @abc.abstractmethod
    def rows(self) -> dict[str, int]:
        """stream -> number of rows; streams without rows are left out."""

    @property
    @abc.abstractmethod
    def ledger(self) -> Ledger:
        """The counts of what was recorded, and of what was lost at which stage."""

    @property
    @abc.abstractmethod
    def info(self) -> TraceInfo:
        """A description of the trace: what was traced, how, where and when."""

    @property
    @abc.abstractmethod
    def begin_ns(self) -> int:
        """The time at which the trace began, in ns on the records' clock."""

    @abc.abstractmethod
    def schema(self, name: str) -> Schema:
        """The schema of a stream."""

    @abc.abstractmethod
    def read(self, selection: Selection) -> Iterator[Batch]:
        """The batches of a selection, in the order in which they arrived."""

    @property
    def streams(self) -> dict[str, Schema]:
        """stream -> its schema, for the streams that have rows."""
        return {name: self.schema(name) for name in self.rows}

    def present(self, stream: str) -> dict[str, str]:
        """column -> its type, over all batches of the stream."""
        return types_of(self.read(Selection(stream)))

    def columns_of(self, stream: str, wanted: Sequence[str] | None = None) -> list[Column]:
        """The columns that a stream's batches have here, stored and derived; with `wanted` only those, in that order.

        A column counts if any batch has it. A stream without batches has the columns of its schema.
        """
        schema, present = self.schema(stream), self.present(stream)
        found = {c.name: c for c in schema.columns if not present or c.name in present}
        for name, kind in present.items():
            found.setdefault(name, Column(name, kind, "count"))
        if wanted is None:
            return list(found.values())
        return [found.get(name) or schema.column(name) or Column(name, "u32", "count") for name in wanted]

    # -- its rows ----------------------------------------------------------------------------------------------

    def batches(
        self,
        stream: str,
        columns: Sequence[str] | None = None,
        start: int | None = None,
        end: int | None = None,
        pids: Iterable[int] | None = None,
    ) -> Batches:
        """Streams the rows of one stream; no rows are held in memory.

        Args:
            stream: "page_fault", "process", "resident", "written", ...
            columns: the columns, stored or derived (file, pc_file, kind); None = all. Others are not even decoded.
            start: the first time to include, in ns on the records' clock; None = no bound.
            end: the first time to leave out, in ns on the records' clock; None = no bound.
            pids: rows of these processes; None = of all. Frames of a file that hold none of them according to its index
                are not read, so what the kernel dropped just before those frames is not in these batches' `lost`.

        Returns:
            An iterable of Batch that is also an Arrow stream (`__arrow_c_stream__`, needs wstrace[arrow]).
        """
        wanted = None if columns is None else tuple(columns)
        return Batches(self, Selection(stream, wanted, start, end, None if pids is None else tuple(pids)))

    def table(
        self,
        stream: str = "page_fault",
        columns: Sequence[str] | None = None,
        start: int | None = None,
        end: int | None = None,
        pids: Iterable[int] | None = None,
    ) -> Table:
        """The rows of a stream as a table for other libraries; the arguments are those of batches()."""
        return Table(self.batches(stream, columns, start, end, pids))

    def summary(self) -> Summary:
        """The counts by file, module, thread and process."""
        from wstrace.analysis.summary import Summary

        counted = Summary()
        for batch in self.read(Selection()):
            counted.add(batch)
        return counted

    def save(self, path: str, *, force: bool = False, **options: object) -> int:
        """Writes the trace to a file; the suffix of the path (`.parquet`, `.csv`, ...) selects the format.

        Args:
            path: the file, which appears only once it is complete.
            force: overwrite an existing file.
            options: where the format takes rows: stream, columns, start and end, as in batches(); and the format's own.

        Returns:
            The number of rows that were written.

        Raises:
            UsageError: no format has this suffix, or the format has no such option.
            OutputError: the file exists, or cannot be written.
        """
        from wstrace.formats import save

        return save(self, path, options, force=force)

    def close(self) -> None:  # noqa: B027  what reads from nothing has nothing to close
        """Closes the file that it reads from, if any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.state  # The state comes before the rows: reading it tells a file that it lacks some.
        rows = ", ".join(f"{n:,} {stream}" for stream, n in sorted(self.rows.items())) or "no rows"
        return f"<{type(self).__name__} {self.name}: {state}; {rows}; {self._lost()}>"

    def _lost(self) -> str:
        """The number of lost records, in words."""
        return f"{sum(n for _, _, n in self.ledger.losses()):,} lost"


def types_of(batches: Iterable[Batch]) -> dict[str, str]:
    """column -> its type, over all of the batches."""
    return {name: _type(array) for batch in batches for name, array in batch.columns.items()}


def _type(array: NDArray[Any]) -> str:
    return next((name for name, dtype in DTYPES.items() if array.dtype.newbyteorder("<").str == dtype), "u64")
