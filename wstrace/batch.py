"""Batch: what travels. A schema, equal-length read-only columns, a header; and Dictionary, the names behind codes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wstrace.schema import Schema

if TYPE_CHECKING:  # a Batch calls only methods of its arrays: numpy is not imported for `--help`
    from numpy.typing import NDArray


class Dictionary:
    """Append-only names: code 0 is "" (unknown), code i is the i-th name given. Thread-safe, bounded.

    Paths that are not UTF-8 are held with surrogateescape. Past its limits a new name reads as unknown (0) and is
    counted in `overflowed`: a hostile target cannot make the tracer grow.
    """

    MAX_NAMES = 1 << 20
    MAX_NAME_CHARS = 65_536
    MAX_CHARS = 32 << 20

    def __init__(self) -> None:
        self._names: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self._chars = 0
        self._lock = threading.Lock()
        self.overflowed = 0

    def code(self, name: str) -> int:
        """The code of that name, given now if it is new; 0 when the dictionary is full."""
        known = self._codes.get(name)
        if known is not None:
            return known
        with self._lock:
            known = self._codes.get(name)
            if known is not None:
                return known
            full = len(self._names) >= self.MAX_NAMES or self._chars + len(name) > self.MAX_CHARS
            if full or len(name) > self.MAX_NAME_CHARS:
                self.overflowed += 1
                return 0
            code = len(self._names)
            self._names.append(name)  # before the code is visible: readers never lock
            self._chars += len(name)
            self._codes[name] = code
            return code

    def __getitem__(self, code: int) -> str:
        return self._names[code]

    def __len__(self) -> int:
        return len(self._names)

    def names(self, start: int, stop: int) -> list[str]:
        """The names of codes start..stop-1."""
        return self._names[start:stop]

    def statistics(self) -> dict[str, int]:
        """names, characters held, and names refused past the limits."""
        return {"names": len(self._names), "characters": self._chars, "overflowed": self.overflowed}


class Batch:
    """Equal-length 1-D read-only columns of one stream, with a header.

    Args:
        schema: the stream; further columns (an enricher's) are allowed, missing ones are absent, never zero.
        columns: name -> array, shape (n,). They become read-only.
        window: (first, last) time in ns that the batch speaks of.
        lost: records that the kernel dropped just before this batch.
        source: the name of the source.
        strings: the Dictionary that `str` columns point into; the batch may read its first `names` codes.
        header: what else belongs to the batch (a snapshot's pid, number and part).

    Raises:
        ValueError: columns of unequal length or more than one dimension.
    """

    __slots__ = ("_columns", "_n", "header", "lost", "names", "schema", "source", "strings", "window")

    def __init__(
        self,
        schema: Schema,
        columns: Mapping[str, NDArray[Any]],
        *,
        window: tuple[int, int] = (0, 0),
        lost: int = 0,
        source: str = "",
        strings: Dictionary | None = None,
        names: int | None = None,
        header: Mapping[str, Any] | None = None,
    ) -> None:
        sizes = {array.shape for array in columns.values()}
        if len(sizes) > 1 or any(len(shape) != 1 for shape in sizes):
            raise ValueError(f"{schema.name}: columns of unequal shape: {sorted(sizes)}")
        self.schema = schema
        self._columns = {name: _read_only(array) for name, array in columns.items()}
        self._n = sizes.pop()[0] if sizes else 0
        self.window = window
        self.lost = lost
        self.source = source
        self.strings = strings if strings is not None else Dictionary()
        self.names = len(self.strings) if names is None else names
        self.header: Mapping[str, Any] = MappingProxyType(dict(header or {}))

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """name -> read-only array, in order."""
        return MappingProxyType(self._columns)

    @property
    def nbytes(self) -> int:
        """Bytes of its columns: what a queue counts."""
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
        """Those rows (a mask, indices or a slice): the only subsetting. Loss stays with the original."""
        return self._like({name: array[rows] for name, array in self._columns.items()}, lost=0)

    def with_columns(self, columns: Mapping[str, NDArray[Any]]) -> Batch:
        """The same batch with further columns; one that stands already is left as it is (a replay knows better)."""
        return self._like({**columns, **self._columns}, lost=self.lost)

    def _like(self, columns: Mapping[str, NDArray[Any]], *, lost: int) -> Batch:
        # names is read anew: an enricher may have coined names since, and the dictionary only grows
        return Batch(
            self.schema,
            columns,
            window=self.window,
            lost=lost,
            source=self.source,
            strings=self.strings,
            header=self.header,
        )


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
