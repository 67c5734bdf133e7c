"""Applies a list: opens each of its files, verifies it, and reads the list's ranges ahead, in order."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NoReturn

from wstrace.text import plural, size
from wstrace_plugins.prefetch.backend import Backend, NotRegular
from wstrace_plugins.prefetch.start_list import File, Range

#: What is read ahead of a list without being told: more may take the memory of everything else.
LIMIT = 1 << 30
_OPEN_AT_ONCE = 64
_HEAD = 4096  # of an ELF file, with the build-id of those that linkers make
_LINKS = "behind a symbolic link"
_REASONS = {errno.ENOENT: "missing", errno.ENOTDIR: "missing", errno.ELOOP: _LINKS, errno.EXDEV: _LINKS,
            errno.EACCES: "not readable", errno.EPERM: "not readable"}  # fmt: skip
_OTHER = "refused by the system"


class _Skipped(Exception):  # noqa: N818 - what becomes of the file
    """A file is not read ahead; the argument says why, as `4 files ...` goes on."""


@dataclass(slots=True)
class Applied:
    """What became of a list.

    n_ranges: of the list. ranges, n_bytes, files: what was read ahead. skipped: of each reason the number of ranges,
    and their files.
    """

    n_ranges: int
    ranges: int = 0
    n_bytes: int = 0
    files: set[bytes] = field(default_factory=set)
    skipped: dict[str, tuple[int, set[bytes]]] = field(default_factory=dict)

    def skip(self, why: str, path: bytes) -> None:
        """Counts a range that is not read ahead."""
        n, files = self.skipped.get(why, (0, set()))
        files.add(path)
        self.skipped[why] = n + 1, files

    @property
    def n_skipped(self) -> int:
        """The number of ranges that were not read ahead."""
        return sum(n for n, _ in self.skipped.values())

    @property
    def note(self) -> str:
        """`7 of 312 ranges skipped: 4 files changed, 1 file missing`; "" when none was."""
        if not self.skipped:
            return ""
        why = ", ".join(f"{plural(len(files), 'file')} {why}" for why, (_, files) in sorted(self.skipped.items()))
        return f"{self.n_skipped:,} of {plural(self.n_ranges, 'range')} skipped: {why}"

    def __str__(self) -> str:
        return f"{size(self.n_bytes)} of {plural(len(self.files), 'file')} in {plural(self.ranges, 'range')}"


def apply(
    ranges: Sequence[Range], system: Backend, *, limit: int = LIMIT, below: Sequence[str] = (), wait: bool = False
) -> Applied:
    """Reads ranges of files ahead, in their order.

    Args:
        ranges: of a list, which anyone may have made.
        limit: of the bytes that are read ahead; the ranges behind it are skipped.
        below: folders, as absolute paths without links; files elsewhere are skipped. () = anywhere.
        wait: whether to return only when all of it is in memory.
    """
    done, opened = Applied(len(ranges)), _Opened(system, [os.fsencode(folder).rstrip(b"/") + b"/" for folder in below])
    begun: list[Range] = []
    with opened.closed():
        for file in islice(dict.fromkeys(one.file for one in ranges), _OPEN_AT_ONCE):
            with suppress(_Skipped):
                opened.open(file)
        for one in ranges:
            file, offset, length = one
            if done.n_bytes + length > limit:
                done.skip(f"past the limit of {size(limit)}", file.path)
                continue
            try:
                system.read_ahead(opened.verified(file), offset, length)
            except _Skipped as why:
                done.skip(str(why), file.path)
            except OSError:
                done.skip(_OTHER, file.path)
            else:
                begun.append(one)
                done.n_bytes += length
                done.files.add(file.path)
        done.ranges = len(begun)
        for file, offset, length in begun if wait else ():
            with suppress(_Skipped):
                system.wait_for(opened.verified(file), offset, length)
    return done


class _Opened:
    """Files of a list, each verified once while it is open; the one that was opened first is closed for another."""

    def __init__(self, system: Backend, below: Sequence[bytes]) -> None:
        self._system, self._below = system, below
        self._fds: dict[File, int] = {}
        self._verified: set[File] = set()
        self._skipped: dict[File, str] = {}

    def open(self, file: File) -> int:
        """Its descriptor, if size and time are the list's; begins to read its build-id. Raises _Skipped."""
        if (why := self._skipped.get(file)) is not None:
            raise _Skipped(why)
        if (known := self._fds.get(file)) is not None:
            return known
        fd = self._opened(file)
        if len(self._fds) >= _OPEN_AT_ONCE:
            oldest = next(iter(self._fds))
            os.close(self._fds.pop(oldest))
            self._verified.discard(oldest)
        self._fds[file] = fd
        status = os.fstat(fd)
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            self._skip(file, "changed")
        if file.build_id:
            with suppress(OSError):
                self._system.read_ahead(fd, 0, min(_HEAD, file.size))
        return fd

    def verified(self, file: File) -> int:
        """Its descriptor, if it is the list's file. Raises _Skipped."""
        fd = self.open(file)
        if file.build_id and file not in self._verified:
            if self._system.stamp(fd, file.path) != file:
                self._skip(file, "changed")
            self._verified.add(file)
        return fd

    def _opened(self, file: File) -> int:
        if self._below and not any(file.path.startswith(folder) for folder in self._below):
            self._skip(file, "outside of the folders that --below names")
        try:
            return self._system.open_file(file.path)
        except NotRegular:
            self._skip(file, "that are not regular")
        except OSError as error:
            self._skip(file, _REASONS.get(error.errno or 0, _OTHER))

    def _skip(self, file: File, why: str) -> NoReturn:
        self._skipped[file] = why
        raise _Skipped(why)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Closes them behind the block."""
        try:
            yield
        finally:
            _close(self._fds.values())


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
