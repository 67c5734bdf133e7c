"""Resolves addresses: the mappings of a trace, and the section and function of an address in an image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wstrace.analysis.tally import distinct, numbered
from wstrace.batch import Batch, Columns, Dictionary
from wstrace.errors import log
from wstrace.interfaces import OWN_KERNEL, Context, MappedFile, Place
from wstrace.plugins import default_plugins
from wstrace.schema import KIND_ANON, KIND_SHIFT, MAPPING
from wstrace.text import base_name
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A place is the code of its file above so many bits of its offset there: 16 TiB, and a million files.
_OF_OFFSET = 44
OFFSET = np.uint64((1 << _OF_OFFSET) - 1)
#: of a mapping that is not known this is all of an address that is the same wherever its file is mapped
_IN_PAGE, _NOT_KNOWN = np.uint64(4095), np.uint64(1 << (_OF_OFFSET - 1))

UNKNOWN = "[unknown]"
PlaceBy = Literal["section", "function"]
_FIELDS = {"id": np.uint32, "pid": np.uint32, "start": np.uint64, "end": np.uint64, "offset": np.uint64,
           "file": np.uint32, "dev": np.uint64, "ino": np.uint64, "build_id": np.uint32, "flags": np.uint16,
           "time_ns": np.uint64}  # fmt: skip
_FILE_KEYS = ("file", "build_id", "dev", "ino")  # These distinguish a file from another one that had its name.


class MappingTable:
    """The last mappings by id, in bounded memory.

    Past the limit the older half is dropped. Those of ended processes are kept as long: a forked child may still use
    its parent's.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: Columns = {
            name: np.zeros(1, dtype) for name, dtype in _FIELDS.items()
        }  # by id; that of 0 is unknown
        self._new: list[Columns] = []
        self._new_rows = 0

    def add(self, batch: Batch) -> None:
        """Adds rows of the stream MAPPING."""
        self._new.append(
            {
                name: batch[name].astype(dtype) if name in batch else np.zeros(len(batch), dtype)
                for name, dtype in _FIELDS.items()
            }
        )
        self._new_rows += len(batch)
        if self._new_rows > self.limit // 4:
            self._settle()

    def find(self, ids: NDArray[Any]) -> tuple[NDArray[np.bool_], Columns]:
        """Which ids are known, shape (n,), and the mappings of those, with the columns of MAPPING."""
        at = self._at(ids)
        known = at > 0
        return known, {name: column[at[known]] for name, column in self._rows.items()}

    def columns(self, ids: NDArray[Any], *names: str) -> list[NDArray[Any]]:
        """These columns of MAPPING for each id, shape (n,); 0 of one that is not known."""
        at = self._at(ids)
        return [self._rows[name][at] for name in names]

    def _at(self, ids: NDArray[Any]) -> NDArray[np.intp]:
        """The row of each id, 0 = not known."""
        self._settle()
        at = np.minimum(self._rows["id"].searchsorted(ids), len(self._rows["id"]) - 1)
        return np.where(self._rows["id"][at] == ids, at, 0)

    def _settle(self) -> None:
        if not self._new:
            return
        rows = {name: np.concatenate([self._rows[name], *(new[name] for new in self._new)]) for name in _FIELDS}
        self._new, self._new_rows = [], 0
        if len(rows["id"]) > self.limit:
            rows = {name: np.append(column[:1], column[-self.limit // 2 :]) for name, column in rows.items()}
        # By id; a later row with the same id wins.
        _, last = np.unique(rows["id"][::-1], return_index=True)
        for name, column in rows.items():
            rows[name] = column[::-1][last]
            rows[name][0] = 0
        self._rows = rows


class Symbolizer:
    """Names the addresses of batches. The distinct offsets in each file are resolved once per batch.

    context: provides the resolver `sections`. live: the processes are alive, so files are read as they see them; None =
    live if the context says so. mappings: the mappings of the trace so far.
    """

    def __init__(self, context: Context, *, live: bool | None = None) -> None:
        self._resolver = context.resolvers.get("sections")
        # A pid from a trace file may belong to any process by now.
        self._live = context.live if live is None else live
        self._info = context.info
        self.mappings = MappingTable(1 << 20 if self._live else 1 << 22)

    @property
    def _of_known_boot(self) -> bool:
        """Whether all records are of one boot, which is known: only that one's kernel has its functions there."""
        return not self._info.recorded or (bool(self._info.boot_id) and not self._info.hosts)

    def _as_of_ns(self) -> int:
        info = self._info
        return info.clock.wall(info.ended_ns) if info.recorded and info.ended_ns and not self._live else 0

    def learn(self, batch: Batch) -> bool:
        """Takes mappings; returns False for any other stream."""
        if batch.schema.name == MAPPING.name:
            self.mappings.add(batch)
        return batch.schema.name == MAPPING.name

    def of(self, batch: Batch, address: str, mapping: str, file: str) -> list[Place | str]:
        """The places of the addresses in a batch's column, one per row; see coded()."""
        index, places = self.coded(batch, address, mapping, file)
        return [places[number] for number in index.tolist()]

    def coded(
        self, batch: Batch, address: str, mapping: str, file: str
    ) -> tuple[NDArray[np.intp], Sequence[Place | str]]:
        """The places of the addresses in a batch's column.

        batch: rows with mapping ids. address, mapping, file: the columns: "va", "mapping", "file", or "pc",
        "pc_mapping", "pc_file". Returns for each row an index into the places. A place is a Place in an image or other
        file, or the name (`[heap]`, `[kernel]`, `[unknown]`) where there is no file offset.
        """
        columns, unknown = batch.columns, np.zeros(len(batch), np.uint32)
        known, rows = self.mappings.find(columns.get(mapping, unknown))
        codes = columns.get(file, unknown)
        index, places = np.empty(len(batch), np.intp), list[Place | str]()
        strings = batch.strings
        for code in distinct(codes[~known]).tolist():
            index[(codes == code) & ~known] = len(places)
            places.append(_name(strings, code))
        offsets = batch[address][known] - rows["start"] + rows["offset"]
        self._name_offsets(index, places, np.flatnonzero(known), rows, offsets, strings)
        return index, places

    def at_offsets(
        self, mappings: NDArray[Any], offsets: NDArray[Any], strings: Dictionary, *, lines: bool
    ) -> tuple[NDArray[np.intp], Sequence[Place | str]]:
        """The places at offsets in the files of mappings, as call sites give them.

        mappings: ids, shape (n,). offsets: in the file of each, u64, shape (n,). strings: the dictionary that the
        mappings' names are codes of. lines: find their source lines, too. Returns as coded() does; an unknown mapping
        has the name `[unknown]`.
        """
        known, rows = self.mappings.find(mappings)
        index, places = np.zeros(len(mappings), np.intp), list[Place | str]([UNKNOWN])
        self._name_offsets(index, places, np.flatnonzero(known), rows, offsets[known], strings, lines=lines)
        return index, places

    def _name_offsets(
        self,
        index: NDArray[np.intp],
        places: list[Place | str],
        where: NDArray[np.intp],
        rows: Columns,
        offsets: NDArray[Any],
        strings: Dictionary,
        *,
        lines: bool = False,
    ) -> None:
        """Adds the places of offsets in known mappings, and their numbers to the index."""
        order = np.lexsort([rows[name] for name in reversed(_FILE_KEYS)])
        keys = np.stack([rows[name][order].astype(np.uint64) for name in _FILE_KEYS])
        for part in np.split(order, np.flatnonzero(np.diff(keys).any(axis=0)) + 1) if len(order) else ():
            path = _name(strings, int(rows["file"][part[0]]))
            if path.startswith("[") and not (path in OWN_KERNEL and self._of_known_boot):
                index[where[part]] = len(places)
                places.append(path)
                continue
            distinct_offsets, which = numbered(offsets[part])
            index[where[part]] = len(places) + which
            if path in OWN_KERNEL:
                found = self._resolve(MappedFile(path, boot_id=self._info.boot_id), distinct_offsets, lines=False)
                places += [place if place.function or place.number else path for place in found]
                continue
            first = part[0]
            mapped = MappedFile(
                path,
                pid=int(rows["pid"][first]) if self._live else 0,
                build_id=strings[int(rows["build_id"][first])],
                dev=int(rows["dev"][first]),
                ino=int(rows["ino"][first]),
                as_of_ns=self._as_of_ns(),
            )
            places += self._resolve(mapped, distinct_offsets, lines=lines)

    def _resolve(self, file: MappedFile, offsets: NDArray[Any], *, lines: bool) -> Sequence[Place]:
        if self._resolver is not None:
            try:
                places = self._resolver.resolve(file, offsets)
                if not lines:
                    return places
                found = self._resolver.lines(file, offsets)
                return [place._replace(lines=tuple(own)) for place, own in zip(places, found, strict=True)]
            # Anyone may have written the resolver; if it fails, the module and the offset in it are still right.
            except Exception:
                log().debug("resolver %s", self._resolver.name, exc_info=True)
        name = base_name(file.path)
        return [Place(name, address=offset) for offset in offsets.tolist()]


def symbolizer_of(info: TraceInfo, mappings: Iterable[Batch]) -> Symbolizer:
    """One for a recorded trace: with its mappings, and the resolvers that are installed."""
    found = Symbolizer(Context(resolvers=default_plugins().make_resolvers(), info=info), live=False)
    for batch in mappings:
        found.learn(batch)
    return found


def _name(strings: Dictionary, code: int) -> str:
    return (strings[code] if code < len(strings) else "") or UNKNOWN


def label_of(place: Place | str, by: PlaceBy) -> str:
    """The label that a place counts under: its function, else its section, else its module."""
    if isinstance(place, str):
        return place
    if by == "function" and place.function:
        return f"{place.module}!{place.function}"
    return str(place) if place.number else place.module


class Instructions:
    """Gives each instruction of a file its place, the same one in all processes.

    Processes have a file at different addresses, of which only the place in a page is the same, and a program has many
    instructions at each place of a page: of a postgres, 4,077 faults of `fork` were counted as 8,914.
    limit: how many mappings are known. Of further ones the place in a page is all that tells instructions apart.
    """

    LIMIT = 1 << 22

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._moved = np.zeros(1, np.uint64)  # by the id of a mapping: what makes an address an offset in its file
        self._known = np.zeros(1, np.bool_)

    def learn(self, batch: Batch) -> None:
        """Takes mappings."""
        zero = np.zeros(len(batch), np.uint64)
        ids, start, offset, flags = (batch.columns.get(name, zero) for name in ("id", "start", "offset", "flags"))
        rows = np.flatnonzero((ids != 0) & (ids < self._limit))
        ids = ids[rows]
        if (more := int(ids.max(initial=0)) + 1 - len(self._known)) > 0:
            more = max(more, min(len(self._known), self._limit - len(self._known)))
            self._moved = np.append(self._moved, np.zeros(more, np.uint64))
            self._known = np.append(self._known, np.zeros(more, np.bool_))
        # Code without a file is no other process's, and keeps its address where its mapping is split or extended.
        anonymous = flags[rows] >> KIND_SHIFT & 15 == KIND_ANON
        self._moved[ids], self._known[ids] = np.where(anonymous, np.uint64(0), offset[rows] - start[rows]), True

    def of(self, batch: Batch) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The place of each fault's instruction: its file and the offset there; and its mapping, 0 = not known."""
        pc, columns = batch["pc"].astype(np.uint64), batch.columns
        mapping = columns.get("pc_mapping", np.zeros(len(pc), np.uint32))
        at = np.where(mapping < len(self._known), mapping, 0)
        places, known = (pc + self._moved[at]) & OFFSET, self._known[at]
        if not known.all():
            places = np.where(known, places, pc & _IN_PAGE | _NOT_KNOWN)
        if (file := columns.get("pc_file")) is not None:
            places |= file.astype(np.uint64) << np.uint64(_OF_OFFSET)
        return places, np.where(known, at, 0).astype(np.uint32)
