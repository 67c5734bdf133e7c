"""Rows of a trace: streamed as batches, or as a table for numpy, pandas and anything that takes Arrow streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace.batch import Batch, names_of
from wstrace.errors import Unavailable
from wstrace.schema import DTYPES, Column

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

    from wstrace.trace import Trace


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
            whose = batch.snapshot.pid if batch.snapshot is not None else 0
            keep &= np.isin(batch.columns.get("pid", whose), self.pids)
        found = batch if keep.all() else batch.take(keep)
        if self.columns is not None:
            found = found.only(self.columns)
        return found if len(found) else None


class Batches:
    """The rows of a selection, streamed. Iterate it as often as needed, or pass it on as an Arrow stream."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
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

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from wstrace.arrow import Converter

        stream: object = Converter(self).reader().__arrow_c_stream__(requested_schema)
        return stream

    def __repr__(self) -> str:
        begin, end = self.selection.start, self.selection.end
        window = "" if begin is None and end is None else f" from {begin or 0} to {end or 'the end'} ns"
        columns = ", ".join(column.name for column in self.columns)
        return f"<{type(self).__name__} of {self.stream} in {self.trace.name}{window}: {columns}>"


class Table:
    """The rows of a selection for other libraries. They are read only on request.

    Anything that takes Arrow streams takes a Table directly: `pyarrow.table(t)`, `polars.DataFrame(t)`, DuckDB.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.batches.columns]

    def __len__(self) -> int:
        """The number of rows."""
        first = self.columns[:1]
        selection = self.batches.selection._replace(columns=tuple(first))
        return sum(len(batch) for batch in self.batches.trace.read(selection))

    def to_numpy(self) -> NDArray[Any]:
        """One structured array, shape (n,); names are codes into the trace's `strings`, unknown values are 0."""
        import numpy as np

        columns = self.batches.columns
        dtype = np.dtype([(column.name, DTYPES[column.type]) for column in columns])
        parts = []
        for batch in self.batches:
            part = np.zeros(len(batch), dtype)
            for column in columns:
                if column.name in batch:
                    part[column.name] = batch[column.name]
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame in which names and kinds are plain text, as categories.

        Raises:
            Unavailable: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise Unavailable("the package pandas is not installed", "pip install pandas") from None
        rows = self.to_numpy()
        frame: dict[str, object] = {}
        for column in self.batches.columns:
            names = names_of(column, self.batches.trace.strings)
            frame[column.name] = rows[column.name] if names is None else _categories(rows[column.name], names, pandas)
        return pandas.DataFrame(frame)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.batches.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.batches.stream} in {self.batches.trace.name}: {', '.join(self.columns)}>"
        )


def _categories(codes: NDArray[Any], names: Sequence[str], library: Any) -> object:
    """The codes as a pandas Categorical; names that read the same share one category."""
    import numpy as np

    present, inverse = np.unique(codes, return_inverse=True)
    texts = [names[code] if code < len(names) else "" for code in present.tolist()]
    position = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    places = np.array([position[text] for text in texts], "<i8")[inverse]
    categorical: object = library.Categorical.from_codes(places, list(position))
    return categorical
