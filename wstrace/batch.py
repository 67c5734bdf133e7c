"""Batch: the unit that travels, a schema with read-only columns of equal length; Dictionary: the names behind codes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace.schema import ADDRESS_SPACE, DTYPES, SPACE_MAP, SPACE_REPLACE, Column, Schema
from wstrace.text import well_formed

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: of a batch, or of what becomes one: name -> values, all of one length
Columns = dict[str, "NDArray[Any]"]
#: what a name takes beside its text: its entries in a list and a dict, and its code
_ENTRY_BYTES = 120
#: of a snapshot, in one batch: what fits a frame of a file
ROWS_A_PART = 65_536


class Dictionary:
    """Append-only names: code 0 is "" (unknown), code i is the i-th name that was added. Thread-safe and bounded.

    Paths that are not UTF-8 are held with surrogateescape. Once its limits are reached, a new name reads as unknown (0)
    and is counted in `overflowed`, so that a hostile target cannot make the tracer grow.

    Args:
        most_bytes: of memory that the names take.
    """

    MAX_NAME_CHARS = 65_536
    #: by default: a million names, as many as the parts of a trace file have at most
    MOST_BYTES = 256 << 20
    #: of a trace that is being recorded: 200,000 functions, or paths
    LIVE_BYTES = 48 << 20

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._names: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self.overflowed = 0

    def code(self, name: str) -> int:
        """The code of that name, which is added if it is new; 0 when the dictionary is full."""
        known = self._codes.get(name)
        if known is not None:
            return known
        with self._lock:
            return self._coded(name)

    def _coded(self, name: str) -> int:
        """As code(), with the lock held."""
        known = self._codes.get(name)
        if known is not None:
            return known
        size = sys.getsizeof(name) + _ENTRY_BYTES
        if self._bytes + size > self._most_bytes or len(name) > self.MAX_NAME_CHARS:
            self.overflowed += 1
            return 0
        code = len(self._names)
        self._names.append(name)  # The name comes before the code becomes visible, so readers need no lock.
        self._bytes += size
        self._codes[name] = code
        return code

    def codes(self, names: Iterable[str]) -> list[int]:
        """The code of each of many names, as code() gives it."""
        known = self._codes
        with self._lock:
            return [known.get(name) or self._coded(name) for name in names]

    def __getitem__(self, code: int) -> str:
        return self._names[code]

    def __len__(self) -> int:
        return len(self._names)

    def names(self, start: int, stop: int) -> list[str]:
        """The names of the codes from `start` up to, but not including, `stop`."""
        return self._names[start:stop]


def names_of(column: Column, strings: Dictionary) -> list[str] | None:
    """The texts behind the codes of a column, indexed by code and well-formed; None for a column of numbers."""
    if column.words:
        return [*column.words, *(f"{column.name} {i}" for i in range(len(column.words), 256))]
    if column.semantic == "str":
        return [well_formed(name) for name in strings.names(0, len(strings))]
    return None


#: Maps ids of one id space, shape (n,), to the same ids in another, u32 (n,).
Recoding = Callable[["NDArray[Any]"], "NDArray[Any]"]


class Translation:
    """A Recoding of codes of one Dictionary to codes of another. Each name is looked up once; an unused code gives 0.

    Args:
        source: the dictionary whose codes are passed in.
        target: the dictionary whose codes are returned; names that it lacks are added to it.
        suffix: text that is appended to every name.
    """

    def __init__(self, source: Dictionary, target: Dictionary, suffix: str = "") -> None:
        import numpy as np

        self._source, self._target, self._suffix = source, target, suffix
        self._codes = np.zeros(1, "<i8")  # -1 = not looked up yet; the last element serves codes that have no name.

    def __call__(self, codes: NDArray[Any]) -> NDArray[Any]:
        """The codes in the target, u32, shape (n,)."""
        import numpy as np

        if len(self._codes) <= len(self._source):
            new = np.full(len(self._source) + 2 - len(self._codes), -1, "<i8")
            self._codes = np.concatenate((self._codes[:-1], new))
            self._codes[[0, -1]] = 0
        codes = np.minimum(codes, len(self._codes) - 1)
        for code in set(codes[self._codes[codes] < 0].tolist()):
            name = self._source[code] if code < len(self._source) else ""
            self._codes[code] = self._target.code(name + self._suffix) if name else 0
        found: NDArray[Any] = self._codes[codes].astype("<u4")
        return found


def recoded(schema: Schema, columns: Mapping[str, NDArray[Any]], spaces: Mapping[str, Recoding]) -> Columns:
    """The columns of a stream with their ids translated to other id spaces; all other columns are unchanged.

    Args:
        schema: the schema, which says what each column means.
        columns: name -> array, shape (n,).
        spaces: semantic -> the Recoding for columns of that semantic.
    """
    found = dict(columns)
    for column in schema.columns:
        recoding = spaces.get(column.semantic)
        if recoding is not None and column.name in found:
            found[column.name] = recoding(found[column.name])
    return found


class SnapshotPart(NamedTuple):
    """Identifies the part of a snapshot of a process's pages that a batch holds.

    number: the number of the snapshot, as its source counts them.
    part: the number of the part, from 0; last: whether no further part follows.
    pid: the process. time_ns: when the snapshot was taken. pages: the number of pages in this batch.
    host: in a trace merged from several hosts or boots: the one that the pid belongs to, as in the column `host`.
    """

    pid: int = 0
    number: int = 0
    part: int = 0
    last: bool = True
    time_ns: int = 0
    pages: int = 0
    host: int = 0

    def to_dict(self) -> dict[str, int | bool]:
        """The fields under the names that they have in a trace file."""
        return {"snap": self.number, "part": self.part, "last": self.last, "pid": self.pid, "t": self.time_ns,
                "pages": self.pages, **({"host": self.host} if self.host else {})}  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> SnapshotPart:
        """Restores what to_dict() returned. The file may come from anyone, so a value of a wrong type is read as 0."""
        snap, part, pid, t, pages, host = (
            value if type(value := fields.get(key)) is int else 0
            for key in ("snap", "part", "pid", "t", "pages", "host")
        )
        return cls(pid, snap, part, fields.get("last") is not False, t, pages, host)


class Batch:
    """Read-only 1-D columns of equal length, all of one stream; those of an internal stream may have 2 dimensions.

    Args:
        schema: the stream. Further columns (an enricher's) are allowed; missing ones are absent, never zero.
        columns: name -> array, shape (n,). They become read-only.
        window: (first, last) time in ns that the batch covers.
        lost: records that the kernel dropped just before this batch.
        source: the name of the source.
        strings: the Dictionary that `str` columns point into.
        snapshot: in a stream of snapshots, which part of which snapshot this is.
        rows: the number of rows, needed for a batch without columns. None = the length of the columns.

    Raises:
        ValueError: columns of unequal length, of another length than `rows`, or of more than one dimension.
    """

    __slots__ = ("_columns", "_n", "lost", "schema", "snapshot", "source", "strings", "window")

    def __init__(
        self,
        schema: Schema,
        columns: Mapping[str, NDArray[Any]],
        *,
        window: tuple[int, int] = (0, 0),
        lost: int = 0,
        source: str = "",
        strings: Dictionary | None = None,
        snapshot: SnapshotPart | None = None,
        rows: int | None = None,
    ) -> None:
        sizes = {array.shape[:1] if schema.internal else array.shape for array in columns.values()}
        if rows is not None:
            sizes.add((rows,))
        if len(sizes) > 1 or any(len(shape) != 1 for shape in sizes):
            raise ValueError(f"{schema.name}: columns of unequal shape: {sorted(sizes)}")
        self.schema = schema
        self._columns = {name: _read_only(array) for name, array in columns.items()}
        self._n = sizes.pop()[0] if sizes else 0
        self.window = window
        self.lost = lost
        self.source = source
        self.strings = strings if strings is not None else Dictionary()
        self.snapshot = snapshot

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """name -> read-only array, in the order of the columns."""
        return MappingProxyType(self._columns)

    @property
    def nbytes(self) -> int:
        """The size of its columns in bytes, which is what bounds the queues."""
        return sum(array.nbytes for array in self._columns.values())

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self._columns[column]

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __repr__(self) -> str:
        return f"<Batch {self.schema.name} n={self._n} lost={self.lost} columns={','.join(self._columns)}>"

    def take(self, rows: NDArray[Any] | slice) -> Batch:
        """The batch of those rows (a mask, indices or a slice): the only subsetting. The original keeps the loss."""
        taken = {name: array[rows] for name, array in self._columns.items()}
        return self._like(taken, lost=0, rows=None if taken else _count(rows, self._n))

    def only(self, names: Iterable[str]) -> Batch:
        """The same batch with only these columns; names that it lacks are left out."""
        return self._like(
            {name: self._columns[name] for name in names if name in self._columns}, lost=self.lost, rows=self._n
        )

    def with_columns(self, columns: Mapping[str, NDArray[Any]]) -> Batch:
        """The same batch with further columns. A column that exists is kept: a replayed file knows better."""
        return self._like({**columns, **self._columns}, lost=self.lost, rows=self._n)

    def recode(self, strings: Dictionary | None = None, **spaces: Recoding) -> Batch:
        """The same rows with their ids translated to other id spaces.

        Args:
            strings: the dictionary that `str` columns point into from then on; None = the same one.
            spaces: semantic -> the Recoding for the columns of that semantic (`map=...`, `ns=...`). `str` is
                not needed: names are looked up in `strings`.
        """
        if strings is not None and strings is not self.strings:
            spaces.setdefault("str", Translation(self.strings, strings))
        if not spaces:
            return self
        columns = recoded(self.schema, self._columns, spaces)
        return self._like(columns, lost=self.lost, rows=self._n, strings=strings)

    def _like(
        self, columns: Mapping[str, NDArray[Any]], *, lost: int, rows: int | None, strings: Dictionary | None = None
    ) -> Batch:
        return Batch(
            self.schema,
            columns,
            window=self.window,
            lost=lost,
            source=self.source,
            strings=self.strings if strings is None else strings,
            snapshot=self.snapshot,
            rows=rows,
        )


def checked(batch: Any) -> Batch:
    """Returns the result of a source or an enricher; raises TypeError unless it is a Batch with the schema's types."""
    if not isinstance(batch, Batch):
        raise TypeError(f"it gave {type(batch).__name__}, not a Batch")
    for column in batch.schema.columns:
        if column.name in batch and batch[column.name].dtype != DTYPES[column.type]:
            found = batch[column.name].dtype
            raise TypeError(f"its column {column.name} of {batch.schema.name} is {found}, not {column.type}")
    return batch


def _count(rows: NDArray[Any] | slice, n: int) -> int:
    """The number of rows, out of n, that a mask, indices or a slice selects."""
    if isinstance(rows, slice):
        return len(range(n)[rows])
    return int(rows.sum()) if rows.dtype == bool else len(rows)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


class StackIds:
    """Gives out ids 1, 2, 3, ... up to a limit. Thread-safe, so that trees of several threads never share an id.

    Args:
        limit: the most ids that are given. A trace file holds as many call sites in each of its parts.
    """

    LIMIT = 1 << 20

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._given = 0
        self._lock = threading.Lock()

    def take(self, n: int) -> range:
        """The next n ids, or as many of them as are left."""
        with self._lock:
            first = self._given + 1
            self._given = min(self._given + n, self.limit)
            return range(first, self._given + 1)


def address_space(
    pid: int, time_ns: int, mappings: Mapping[str, NDArray[Any]], strings: Dictionary, source: str
) -> Batch:
    """A batch of all mappings of a process: its first row has the event `replace`, the others have `map`.

    time_ns: the time of the listing on the records' clock. mappings: the columns of schema.ADDRESS_SPACE that the
    system gives, without time_ns, pid and event. strings: the dictionary of the codes in `file`. source: the name of
    the source.
    """
    import numpy as np

    n = len(mappings["start"])
    event = np.full(n, SPACE_MAP, "u1")
    event[:1] = SPACE_REPLACE
    columns = {"time_ns": np.full(n, time_ns, "<u8"), "pid": np.full(n, pid, "<u4"), "event": event, **mappings}
    return Batch(ADDRESS_SPACE, columns, window=(time_ns, time_ns), source=source, strings=strings)


def snapshot_parts(
    schema: Schema, runs: Mapping[str, NDArray[Any]], *, snap: int, pid: int, time_ns: int, strings: Dictionary,
    source: str,
) -> Iterator[Batch]:  # fmt: skip
    """Yields the runs of one process at one time in batches with their SnapshotPart; an empty batch without runs."""
    n = len(runs["start"])
    for part, at in enumerate(range(0, max(n, 1), ROWS_A_PART)):
        some = {name: column[at : at + ROWS_A_PART] for name, column in runs.items()}
        pages = int(some["pages"].sum(dtype="<i8"))
        one = SnapshotPart(pid, snap, part, at + ROWS_A_PART >= n, time_ns, pages)
        yield Batch(schema, some, window=(time_ns, time_ns), source=source, strings=strings, snapshot=one)
