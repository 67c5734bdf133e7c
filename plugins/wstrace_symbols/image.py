"""Image: what is known of an image file, as sorted arrays. `elf` and `pe` make it, `ImageResolver` asks it.

A format is a module with one function,

    read_image(file: ImageFile) -> Image          # raises ImageError when it does not believe the file

and its magic in `resolver.FORMATS`. All addresses are the file's own (link-time) ones, as addr2line takes them: p_vaddr
of an ELF file; ImageBase + RVA of a PE file. An *offset* is what a mapping's `offset` column counts: bytes into the
file for ELF. A PE image is mapped by RVA, so there it is the RVA, and its segments say `offset = RVA`,
`address = ImageBase + RVA`.

A file is hostile input: read through `ImageFile.read`, which is bounded, and check every count before using it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.interfaces import Place

#: which offsets lie at which addresses: file_size bytes of the file, memory_size bytes in memory (the rest is zero)
SEGMENT = np.dtype([("offset", "<u8"), ("file_size", "<u8"), ("address", "<u8"), ("memory_size", "<u8")])
#: sorted by start; number is 1-based, as readelf and the PE section table count
SECTION = np.dtype([("start", "<u8"), ("end", "<u8"), ("number", "<u4")])
#: sorted by start, one row an address; name is an offset into Image.names
SYMBOL = np.dtype([("start", "<u8"), ("end", "<u8"), ("name", "<u4")])

MAX_NAME = 4096
PAGE = 4096
UNKNOWN = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class ImageError(Exception):
    """The file is no image, is cut off, or says what cannot be."""


class Readable(Protocol):
    """What an image is read from: a file, or the headers in a process."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def identity(self) -> tuple[int, int, int, int]: ...  # noqa: D102

    def read(self, offset: int, size: int) -> bytes:
        """Exactly size bytes from offset on; raises ImageError when it has not got them."""


class ImageFile:
    """A regular file, opened without waiting (a path may name a fifo), read in bounded pieces.

    Args:
        path: as whoever has the root calls it.
        root: the folder that is `/` in the path; "" = ours.

    Raises:
        OSError: it cannot be opened.
        ImageError: it is no regular file.
    """

    MAX_READ = 64 << 20

    def __init__(self, path: str, root: str = "") -> None:
        flags = os.O_RDONLY
        for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
            flags |= getattr(os, name, 0)
        if root:
            from wstrace_os.linux.in_root import open_in_root

            fd = open_in_root(root, path, flags)
        else:
            fd = os.open(path, flags)
        self.stream = os.fdopen(fd, "rb")
        status = os.fstat(self.stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            self.stream.close()
            raise ImageError(f"{path} is no regular file")
        self.path = path
        self.size = status.st_size
        #: tells one content from another: device, inode, size, time of the last change in ns
        self.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly size bytes from offset on; ImageError when the file has not got them or they are too many."""
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
        """Gives up the file."""
        self.stream.close()

    def __enter__(self) -> ImageFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """An image file's layout.

    Args:
        segments: SEGMENT rows, shape (n,), in the file's order.
        sections: SECTION rows sorted by start; section_names stands beside them.
        symbols: SYMBOL rows sorted by start, no two with one start.
        names: NUL-terminated names, what SYMBOL.name points into; read-only bytes of the file's string tables.
        build_id: hex, "" when the file has none.
        demangle: a raw name -> what people read.
        complete: False when the file keeps only the names that others link to (a stripped one).
        ask: addresses -> the (name, displacement) of those that somebody else knows a better function of than symbols.
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

    @property
    def nbytes(self) -> int:
        """Bytes that it holds: what the cache counts."""
        return self.segments.nbytes + self.sections.nbytes + self.symbols.nbytes + len(self.names)

    def addresses(self, offsets: NDArray[Any]) -> NDArray[Any]:
        """The link-time address of each offset, u64, shape (n,); UNKNOWN where no segment has it.

        A page that two segments share belongs to the one whose bytes lie there. What lies past a segment's bytes in
        its last page (.bss) goes to that segment only if no other has it.
        """
        found = np.full(len(offsets), UNKNOWN, "<u8")
        for size in ("file_size", "memory_size"):
            for segment in self.segments:
                inside = (found == UNKNOWN) & (offsets >= segment["offset"])
                inside &= offsets - segment["offset"] < segment[size]
                found[inside] = offsets[inside] - segment["offset"] + segment["address"]
        return found

    def places(self, module: str, offsets: NDArray[Any]) -> list[Place]:
        """A Place for each offset (u64, shape (n,)) of the file whose base name is module."""
        addresses = self.addresses(offsets)
        section = covering(self.sections, addresses)
        symbol = covering(self.symbols, addresses)
        functions = {row: self.symbol_name(row) for row in distinct(symbol).tolist() if row >= 0}
        starts, numbers = self.symbols["start"], self.sections["number"]
        asked = self.ask(distinct(addresses)) if self.ask is not None else {}
        places = []
        for row, (address, where, who) in enumerate(
            zip(*(a.tolist() for a in (addresses, section, symbol)), strict=True)
        ):
            if address == int(UNKNOWN):
                places.append(Place(module, address=int(offsets[row])))
                continue
            name, number = (self.section_names[where], int(numbers[where])) if where >= 0 else ("", 0)
            function, displacement = (functions[who], address - int(starts[who])) if who >= 0 else ("", 0)
            function, displacement = asked.get(address, (function, displacement))
            places.append(Place(module, name, number, function, displacement, address))
        return places

    def symbol_name(self, row: int) -> str:
        """The demangled name of a row of symbols."""
        start = int(self.symbols["name"][row])
        end = self.names.find(b"\0", start, start + MAX_NAME)
        raw = self.names[start : end if end >= 0 else start + MAX_NAME]
        return self.demangle(raw.decode("utf-8", "backslashreplace"))


def covering(rows: NDArray[Any], addresses: NDArray[Any]) -> NDArray[Any]:
    """The index of the row [start, end) that covers each address, -1 for none; rows sorted by start."""
    if not len(rows):
        return np.full(len(addresses), -1)
    found = np.searchsorted(rows["start"], addresses, side="right") - 1
    outside = addresses >= rows["end"][found]
    if outside.any():
        # a symbol may lie inside a longer one: then the longest that began before covers what follows
        longest = np.maximum.accumulate(rows["end"])
        longest = np.maximum.accumulate(np.where(rows["end"] == longest, np.arange(len(rows)), 0))
        found[outside] = longest[found[outside]]
        outside = addresses >= rows["end"][found]
    found[outside | (addresses < rows["start"][0])] = -1
    return found
