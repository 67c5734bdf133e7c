"""Reads a frame's body by its schema: it creates only objects that are wanted, within the limits.

A plain `unpackb` turns a hostile 16 MB body of nested arrays into a gigabyte of lists. This reader looks at each
object's first byte, and takes scalars only or skips.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

from wstrace.text import well_formed
from wstrace_exporters.msgpack.format.layout import LIMITS, FrameError, Limits

#: All errors that msgpack raises on bytes: OutOfData, FormatError, StackError, UnicodeDecodeError ...
_MALFORMED = (ValueError, TypeError, OverflowError, msgpack.UnpackException)
#: The first bytes of arrays, maps and extensions.
_NESTED = frozenset((*range(0x80, 0xA0), *range(0xDC, 0xE0), *range(0xC7, 0xCA), *range(0xD4, 0xD9)))


def packb(value: Any) -> bytes:
    """One value as msgpack. Text from another file that is not UTF-8 becomes bin; in a key, U+FFFD replaces it."""
    try:
        return bytes(msgpack.packb(value, use_bin_type=True))
    except UnicodeEncodeError:
        return bytes(msgpack.packb(_in_utf8(value), use_bin_type=True))


def _in_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {well_formed(key) if isinstance(key, str) else key: _in_utf8(item) for key, item in value.items()}
    return [_in_utf8(item) for item in value] if isinstance(value, list | tuple) else value


def text(name: str) -> str | bytes:
    """The form of a name in the file: str, or bin if it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        try:
            return name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return name.encode("utf-8", "surrogatepass")  # A lone surrogate in a Windows name.
    return name


class Body:
    """A cursor over one body.

    data: the body's bytes. limits: the limits to enforce. Every method raises FrameError for malformed bytes.
    """

    def __init__(self, data: Any, limits: Limits = LIMITS) -> None:
        self.data = memoryview(data)
        self.limits = limits
        self._unpacker = msgpack.Unpacker(
            None, max_buffer_size=max(len(data), 1), use_list=True, unicode_errors="surrogateescape"
        )
        self._unpacker.feed(self.data)
        self._items = limits.free_items

    def _call(self, name: str) -> Any:
        try:
            return getattr(self._unpacker, name)()
        except _MALFORMED as error:
            raise FrameError(f"not msgpack as expected: {type(error).__name__}") from None

    def map(self) -> Iterator[str]:
        """The keys of the map at the cursor; the caller takes or skips the value of each."""
        for _ in range(self._call("read_map_header")):
            key = self.scalar()
            if isinstance(key, str):
                yield key
            else:
                self.skip()

    def array(self, most: int) -> int:
        """The length of the array at the cursor."""
        n = self._call("read_array_header")
        if n > most:
            raise FrameError(f"an array of {n:,} where at most {most:,} are allowed")
        return int(n)

    def scalar(self) -> Any:
        """A None, bool, int, float, str or bytes; never an array, a map or an extension."""
        try:  # in one function: a frame has sixty of them
            if self.data[self._unpacker.tell()] not in _NESTED:
                return self._unpacker.unpack()
        except IndexError:
            raise FrameError("the body ends early") from None
        except _MALFORMED as error:
            raise FrameError(f"not msgpack as expected: {type(error).__name__}") from None
        raise FrameError("an array, a map or an extension where a plain value belongs")

    def uint(self, most: int = (1 << 64) - 1) -> int:
        """An integer from 0 to most."""
        value = self.scalar()
        if type(value) is not int or not 0 <= value <= most:
            raise FrameError("no integer in its range where one belongs")
        return value

    def text(self) -> str:
        """A string; bytes are read as a path that is not UTF-8 (surrogateescape)."""
        value = self.scalar()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if not isinstance(value, str):
            raise FrameError("no string where one belongs")
        if len(value) > self.limits.string:
            raise FrameError(f"a string of {len(value):,} characters")
        return value

    def binary(self) -> bytes:
        """A byte string."""
        value = self.scalar()
        if not isinstance(value, bytes):
            raise FrameError("no bytes where they belong")
        return value

    def value(self, depth: int = 0) -> Any:
        """Any value of bounded size and depth, for the unknown keys of marks and headers."""
        self._items -= 1
        if self._items < 0 or depth > self.limits.free_depth:
            raise FrameError("a value that is too large or too deep")
        at = self._unpacker.tell()
        first = self.data[at] if at < len(self.data) else 0
        if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
            return {key: self.value(depth + 1) for key in self.map()}
        if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(self.array(self.limits.free_items))]
        return self.scalar()

    def skip(self) -> None:
        """Skips one object of any kind without creating it."""
        self._call("skip")

    def end(self) -> None:
        """Checks that the body ends here."""
        if self._unpacker.tell() != len(self.data):
            raise FrameError("bytes after the body's map")
