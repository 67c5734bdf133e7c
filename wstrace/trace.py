"""Trace: one type for the records of a session and of a file, as batches, tables, counts and files of other formats."""

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
    """The records of a session (`session.trace`) or of a file (`wstrace.open_trace`). A context manager.

    Attributes:
        strings: the names behind the codes of `str` columns.
        observer: told the rows of each batch that is read through batches() and table(); None = nobody.
        closed: close() was called, and what it read from is gone.
    """

    strings: Dictionary
    observer: Callable[[int], None] | None = None
    closed: bool = False

    # -- what is in it -----------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What it is called where it is shown: the path of a file."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """Of a file `clean`, `incomplete`, `cut` (its end is missing) or `damaged`; of a session its own state."""

    @property
    @abc.abstractmethod
    def rows(self) -> dict[str, int]:
        """stream -> rows; streams without any are left out."""

    @property
    @abc.abstractmethod
    def ledger(self) -> Ledger:
        """What was recorded, and what was lost at which stage."""

    @property
    @abc.abstractmethod
    def info(self) -> TraceInfo:
        """What was traced, how, where and when."""

    @property
    @abc.abstractmethod
    def begin_ns(self) -> int:
        """When it began, on the records' clock."""

    @abc.abstractmethod
    def schema(self, name: str) -> Schema:
        """The schema of a stream."""

    @abc.abstractmethod
    def read(self, selection: Selection) -> Iterator[Batch]:
        """The batches of a selection, in the order in which they came."""

    @property
    def streams(self) -> dict[str, Schema]:
        """stream -> its schema, of those that have rows."""
        return {name: self.schema(name) for name in self.rows}

    def present(self, stream: str) -> dict[str, str]:
        """column -> its type, of all that a batch of the stream has."""
        return types_of(self.read(Selection(stream)))

    def columns_of(self, stream: str, wanted: Sequence[str] | None = None) -> list[Column]:
        """The columns that a stream's batches have here, stored and derived; those wanted only, in that order.

        They are those that any batch has; of a stream without batches, those of its schema.
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
        """The rows of a stream, streamed: nothing of them is held in memory.

        Args:
            stream: "page_fault", "process", "resident", "written", ...
            columns: which ones, stored or derived (file, pc_file, kind); None = all. Others are not even decoded.
            start, end: rows with start <= time_ns < end, in ns on the records' clock; None = no bound.
            pids: rows of these processes; None = of all. Frames of which a file's index says that they have none are
                not read, so what the kernel dropped before them is not in these batches' `lost`.

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
        """The rows of a stream for other libraries; arguments as of batches()."""
        return Table(self.batches(stream, columns, start, end, pids))

    def summary(self) -> Summary:
        """The counts by file, module, thread and process."""
        from wstrace.analysis.summary import Summary

        counted = Summary()
        for batch in self.read(Selection()):
            counted.add(batch)
        return counted

    def save(self, path: str, *, force: bool = False, **options: object) -> int:
        """Writes it to a file of the format that the path ends in (`.parquet`, `.csv`, ...).

        Args:
            path: the file, which appears when it is whole.
            force: an existing file is overwritten.
            options: of rows: stream, columns, start and end, as of batches(); else the format's own.

        Returns:
            The number of rows that were written.

        Raises:
            UsageError: no format has this suffix, or it has no such option.
            OutputError: the file exists, or cannot be written.
        """
        from wstrace.formats import save

        return save(self, path, options, force=force)

    def close(self) -> None:  # noqa: B027  what reads from nothing has nothing to close
        """Closes what it reads from."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.state  # before the rows: a file finds out here that it lacks some
        rows = ", ".join(f"{n:,} {stream}" for stream, n in sorted(self.rows.items())) or "no rows"
        return f"<{type(self).__name__} {self.name}: {state}; {rows}; {self._lost()}>"

    def _lost(self) -> str:
        """How many records were lost, in words."""
        return f"{sum(n for _, _, n in self.ledger.losses()):,} lost"


def types_of(batches: Iterable[Batch]) -> dict[str, str]:
    """column -> its type, of all that one of the batches has."""
    return {name: _type(array) for batch in batches for name, array in batch.columns.items()}


def _type(array: NDArray[Any]) -> str:
    return next((name for name, dtype in DTYPES.items() if array.dtype.newbyteorder("<").str == dtype), "u64")
