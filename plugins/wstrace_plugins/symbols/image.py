"""Image: the layout of an image file as sorted arrays. `elf` and `pe` build it, `ImageResolver` queries it.

A format is a module with one function,

    read_image(file: ImageFile) -> Image          # raises ImageError when the file cannot be trusted

which `resolver.read_image` chooses by the file's magic. All addresses are the file's own (link-time) ones, as addr2line
takes them: p_vaddr in an ELF file, ImageBase + RVA in a PE file. An *offset* is what a mapping's `offset` counts: for
ELF, bytes into the file. A PE image is mapped by RVA, so there an offset is an RVA, and its segments have
`offset = RVA` and `address = ImageBase + RVA`.

A file is hostile input: read it through `ImageFile.read`, which is bounded, and check every count before using it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.errors import Closing, Unavailable
from wstrace.interfaces import Place
from wstrace.plugins import own_platform

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: which offset is at which address: file_size bytes come from the file, the rest of memory_size bytes is zero
SEGMENT = np.dtype([("offset", "<u8"), ("file_size", "<u8"), ("address", "<u8"), ("memory_size", "<u8")])
#: sorted by start; number is 1-based, as readelf and the PE section table count
SECTION = np.dtype([("start", "<u8"), ("end", "<u8"), ("number", "<u4")])
#: sorted by start, one row per address; name is an offset into Image.names
SYMBOL = np.dtype([("start", "<u8"), ("end", "<u8"), ("name", "<u4")])

MAX_NAME = 4096
#: of a mangled name, and of what a reader can still use
MAX_MANGLED, MAX_READABLE = 2048, 4096
#: suffixes that LLVM adds to a local name that it makes visible to other units (ThinLTO), and any suffix of a Rust
#: name: they mean nothing to a reader
_SUFFIX = re.compile(r"(?<=17h[0-9a-f]{16}E)\..*|(?<=^_R)([^.]*)\..*|\.llvm\.[0-9A-Fa-f]+")
UNKNOWN = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class ImageError(ValueError):
    """The file is no image, is cut off, or contradicts itself."""


class ImageFile(Closing):
    """A regular file, read in bounded pieces and never mapped: one that shrinks would end us by SIGBUS.

    path: the path as seen from root. root: the folder that is `/` for the path; "" = ours. inode: the number that it
    must have; 0 = any. Raises OSError: it is no regular file, or cannot be opened; ValueError: the path has a null
    byte.
    """

    MAX_READ = 64 << 20

    def __init__(self, path: str, root: str = "", inode: int = 0) -> None:
        if (system := own_platform()) is None:
            raise OSError("files are opened on Linux and Windows")
        self.stream = os.fdopen(system.open_named(path, root, inode), "rb")
        status = os.fstat(self.stream.fileno())
        self.path = path
        self.size = status.st_size
        #: wall time in ns of the last change: on Unix nobody can set it (st_ctime), on Windows st_ctime is the creation
        self.changed_ns = status.st_mtime_ns if os.name == "nt" else status.st_ctime_ns
        #: distinguishes one content from another: device, inode, size, time of the last change in ns
        self.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly size bytes from offset on; raises ImageError when the file has fewer or size is too large."""
        if offset < 0 or size < 0 or size > self.MAX_READ or offset + size > self.size:
            raise ImageError(f"{self.path}: {size} bytes at {offset} are not in a file of {self.size}")
        parts: list[bytes] = []
        self.stream.seek(offset)
        while size:
            part = self.stream.read(size)
            if not part:
                raise ImageError(f"{self.path} became shorter while it was read")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Closes the file."""
        self.stream.close()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Image:
    """An image file's layout.

    Args:
        segments: SEGMENT rows, shape (n,), in the file's order.
        sections: SECTION rows sorted by start; section_names are their names, in the same order.
        symbols: SYMBOL rows sorted by start, with distinct starts.
        names: the NUL-terminated names that SYMBOL.name points into; read-only bytes of the file's string tables.
        build_id: hex, "" when the file has none.
        demangle: a raw name -> a readable one.
        complete: False when the file is stripped and keeps only the names that others link to.
        ask: addresses -> (name, displacement) of those for which another source knows a better function than symbols;
            raises Unavailable, with the words of Place.why, where that source is lost.
        why: why it has no functions, in the words of Place.why; "" when nothing is missing.
    """

    segments: NDArray[Any]
    sections: NDArray[Any]
    section_names: tuple[str, ...]
    symbols: NDArray[Any]
    names: bytes
    build_id: str = ""
    demangle: Callable[[str], str] = str
    complete: bool = True
    ask: Callable[[NDArray[Any]], Mapping[int, tuple[str, int]]] | None = None
    why: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes that it holds, for the cache's bound."""
        return self.segments.nbytes + self.sections.nbytes + self.symbols.nbytes + len(self.names)

    def addresses(self, offsets: NDArray[Any]) -> NDArray[Any]:
        """The link-time address of each offset, u64, shape (n,); UNKNOWN where no segment contains it.

        A page that two segments share belongs to the one with bytes there. What follows a segment's bytes in its
        last page (.bss) belongs to that segment only if no other segment contains it.
        """
        found = np.full(len(offsets), UNKNOWN, "<u8")
        for size in ("file_size", "memory_size"):
            for segment in self.segments:
                inside = (found == UNKNOWN) & (offsets >= segment["offset"])
                inside &= offsets - segment["offset"] < segment[size]
                found[inside] = offsets[inside] - segment["offset"] + segment["address"]
        return found

    def places(self, module: str, offsets: NDArray[Any]) -> list[Place]:
        """A Place for each offset (u64, shape (n,)) in the file; module is the file's base name."""
        addresses = self.addresses(offsets)
        section = covering(self.sections, addresses)
        symbol = covering(self.symbols, addresses)
        functions = {row: self.symbol_name(row) for row in distinct(symbol).tolist() if row >= 0}
        starts, numbers = self.symbols["start"], self.sections["number"]
        better, why = self._better(addresses)
        places = []
        for row, (address, where, who) in enumerate(
            zip(*(a.tolist() for a in (addresses, section, symbol)), strict=True)
        ):
            if address == int(UNKNOWN):
                places.append(Place(module, address=int(offsets[row])))
                continue
            name, number = (self.section_names[where], int(numbers[where])) if where >= 0 else ("", 0)
            function, displacement = (functions[who], address - int(starts[who])) if who >= 0 else ("", 0)
            function, displacement = better.get(address, (function, displacement))
            places.append(Place(module, name, number, function, displacement, address, "" if function else why))
        return places

    def _better(self, addresses: NDArray[Any]) -> tuple[Mapping[int, tuple[str, int]], str]:
        """What the other source knows, and why there may be functions that nothing names."""
        if self.ask is None:
            return {}, self.why
        try:
            return self.ask(distinct(addresses)), self.why
        except Unavailable as no_source:
            return {}, self.why or no_source.why

    def symbol_name(self, row: int) -> str:
        """The demangled name of a symbol row."""
        start = int(self.symbols["name"][row])
        end = self.names.find(b"\0", start, start + MAX_NAME)
        raw = self.names[start : end if end >= 0 else start + MAX_NAME]
        return self.demangle(raw.decode("utf-8", "backslashreplace"))


def covering(rows: NDArray[Any], addresses: NDArray[Any]) -> NDArray[Any]:
    """The index of the row [start, end) that covers each address, -1 where none does; rows are sorted by start."""
    if not len(rows):
        return np.full(len(addresses), -1)
    found = np.searchsorted(rows["start"], addresses, side="right") - 1
    outside = addresses >= rows["end"][found]
    if outside.any():
        # a symbol may lie inside a longer one; behind it, the longer one covers the addresses again
        longest = np.maximum.accumulate(rows["end"])
        longest = np.maximum.accumulate(np.where(rows["end"] == longest, np.arange(len(rows)), 0))
        found[outside] = longest[found[outside]]
        outside = addresses >= rows["end"][found]
    found[outside | (addresses < rows["start"][0])] = -1
    return found


@lru_cache(maxsize=16_384)
def demangle(name: str) -> str:
    """The name as its programmer wrote it; the name itself when it is not mangled or cannot be read.

    A readable name of more than MAX_READABLE characters is of no use to a reader: it stays mangled too.
    """
    if not name.startswith(("_R", "_Z", "___Z")) or len(name) > MAX_MANGLED:
        return name
    import demangle as library  # 30 ms

    short = _SUFFIX.sub(r"\1", name)
    readable = library.demangle(short, language=["itanium", "rust"], style="gnu")
    return name if readable == short or not 0 < len(readable) <= MAX_READABLE else readable
