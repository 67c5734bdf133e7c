"""Rows of a trace: streamed as batches, or as a table for numpy, pandas and anything that takes Arrow streams."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from wstrace.batch import Batch, Dictionary, names_of
from wstrace.errors import missing
from wstrace.ledger import Ledger
from wstrace.schema import DTYPES, Column, Schema
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

#: The number of rows that become text at once, which bounds the memory: a name has up to 4,096 bytes.
_TEXT_ROWS = 4096


class Selection(NamedTuple):
    """Which rows to read. None = every stream, column or process, no bound; times in ns on the records' clock."""

    stream: str | None = None
    columns: tuple[str, ...] | None = None
    start: int | None = None
    end: int | None = None
    pids: tuple[int, ...] | None = None

    def of(self, batch: Batch) -> Batch | None:
        """The selected part of a batch; None when nothing in it is selected."""
        import numpy as np

        if self.stream is not None and batch.schema.name != self.stream:
            return None
        keep = np.ones(len(batch), bool)
        if "time_ns" in batch:
            keep &= batch["time_ns"] >= np.uint64(self.start or 0)
            keep &= batch["time_ns"] < np.uint64((1 << 64) - 1 if self.end is None else self.end)
        if self.pids is not None:
            pids = batch.snapshot.pid if batch.snapshot is not None else 0
            keep &= np.isin(batch.columns.get("pid", pids), self.pids)
        found = batch if keep.all() else batch.take(keep)
        if self.columns is not None:
            found = found.only(self.columns)
        return found if len(found) else None


class Records(abc.ABC):
    """The rows of a trace by stream, which can be read as often as needed.

    Attributes:
        strings: the names behind the codes of `str` columns.
        observer: called with the rows of each batch that is read through batches(); None = no observer.
        closed: close() was called, so nothing can be read any more.
    """

    strings: Dictionary
    observer: Callable[[int], None] | None = None
    closed: bool = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name to show for it; of a file its path."""

    @property
    @abc.abstractmethod
    def rows(self) -> dict[str, int]:
        """stream -> number of rows; streams without rows are left out."""

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
        batches = self.read(Selection(stream))
        return {name: _type(array) for batch in batches for name, array in batch.columns.items()}

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

    def batches(
        self,
        stream: str = "page_fault",
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
            An iterable of Batch, which numpy, pandas and what takes Arrow streams get as a table.
        """
        wanted = None if columns is None else tuple(columns)
        return Batches(self, Selection(stream, wanted, start, end, None if pids is None else tuple(pids)))


class Recorded(Records):
    """The records of a trace with what describes them: all that an analysis reads."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """`clean`, `incomplete`, `cut` (its end is missing) or `damaged` for a file; a session has its own states."""

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


class Batches:
    """The rows of a selection, streamed; they are read only on request, and as often as needed.

    Anything that takes Arrow streams takes them directly: `pyarrow.table(b)`, `polars.DataFrame(b)`, DuckDB.
    """

    def __init__(self, trace: Records, selection: Selection) -> None:
        self.trace = trace
        self.selection = selection

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self.selection.stream or "page_fault"

    @property
    def columns(self) -> list[Column]:
        """The columns, in order; where a batch lacks one, its values are unknown for those rows."""
        return self.trace.columns_of(self.stream, self.selection.columns)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.trace.read(self.selection):
            yield batch
            if self.trace.observer is not None:
                self.trace.observer(len(batch))

    def to_numpy(self) -> NDArray[Any]:
        """One structured array, shape (n,); names are codes into the trace's `strings`, unknown values are 0."""
        import numpy as np

        columns = self.columns
        dtype = np.dtype([(column.name, DTYPES[column.type]) for column in columns])
        parts = []
        for batch in self:
            part = np.zeros(len(batch), dtype)
            for column in columns:
                if column.name in batch:
                    part[column.name] = batch[column.name]
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame in which names and kinds are plain text, as categories.

        Raises:
            Unavailable: pandas is not installed, or cannot be loaded.
        """
        try:
            import pandas
        except ImportError as error:
            raise missing("pandas", error, "pip install pandas") from None
        rows = self.to_numpy()
        frame: dict[str, object] = {}
        for column in self.columns:
            names = names_of(column, self.trace.strings)
            frame[column.name] = rows[column.name] if names is None else _categories(rows[column.name], names, pandas)
        return pandas.DataFrame(frame)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from wstrace.arrow import Converter

        return Converter(self.columns, self.trace.strings, self).reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        begin, end = self.selection.start, self.selection.end
        window = "" if begin is None and end is None else f" from {begin or 0} to {end or 'the end'} ns"
        columns = ", ".join(column.name for column in self.columns)
        return f"<{type(self).__name__} of {self.stream} in {self.trace.name}{window}: {columns}>"


def _type(array: NDArray[Any]) -> str:
    return next((name for name, dtype in DTYPES.items() if array.dtype.newbyteorder("<").str == dtype), "u64")


def _categories(codes: NDArray[Any], names: Sequence[str], library: Any) -> object:
    """The codes as a pandas Categorical; names that read the same share one category."""
    import numpy as np

    present, inverse = np.unique(codes, return_inverse=True)
    texts = [names[code] if code < len(names) else "" for code in present.tolist()]
    position = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    places = np.array([position[text] for text in texts], "<i8")[inverse]
    return library.Categorical.from_codes(places, list(position))


#: (rows, a column, the names behind its codes; None = it has numbers) -> a text for each row
Cells = Callable[[Batch, Column, "list[str] | None"], Iterable[str]]


def write_text(rows: Batches, file: IO[bytes], cells: Cells, begin: str, end: str) -> int:
    """Writes a line for each row: its cells, with commas between, after `begin` and before `end`; returns how many."""
    columns, strings, n = rows.columns, rows.trace.strings, 0
    for batch in rows:
        names = [names_of(column, strings) for column in columns]
        for start in range(0, len(batch), _TEXT_ROWS):
            part = batch.take(slice(start, start + _TEXT_ROWS))
            texts = [cells(part, column, known) for column, known in zip(columns, names, strict=True)]
            file.write("".join(f"{begin}{','.join(row)}{end}" for row in zip(*texts, strict=True)).encode())
        n += len(batch)
    return n
