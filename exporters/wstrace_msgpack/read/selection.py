"""Selection: which rows and columns of a trace are wanted."""

from __future__ import annotations

from typing import NamedTuple

from wstrace_msgpack.format.index import pid_set

#: derived column -> the stored ones it is computed from
DERIVED_FROM = {"file": ("mapping",), "kind": ("mapping",), "pc_file": ("pc_mapping", "flags")}


class Selection(NamedTuple):
    """What is wanted. None: every stream, column and process, no bound; times in ns on the records' clock."""

    stream: str | None = None
    columns: tuple[str, ...] | None = None
    start: int | None = None
    end: int | None = None
    pids: tuple[int, ...] | None = None

    @property
    def stored(self) -> frozenset[str] | None:
        """The stored columns that are needed for it."""
        if self.columns is None:
            return None
        needed = {source for name in self.columns for source in DERIVED_FROM.get(name, (name,))}
        if self.start is not None or self.end is not None:
            needed.add("time_ns")
        if self.pids is not None:
            needed.add("pid")
        return frozenset(needed)

    @property
    def pid_set(self) -> int:
        """Its processes as the index has them."""
        return pid_set(self.pids or ())


#: every row of every stream
EVERYTHING = Selection()
