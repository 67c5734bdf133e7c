"""Mapped files: which file lies at an address, valid at the time of the record that names the address.

A backend (`linux`, `windows`) has

* `listing(pid, strings)`: all mappings of a process now, as columns start, end, offset, file, dev, ino, flags of
  schema.ADDRESS_SPACE, sorted by start; None when it has ended;
* `build_id(row, name)`: the build-id of the file of a mapping, "" where it is not known;
* `mapped_file(address, pid)`: the path of the file mapped at one address, None where none is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wstrace.hookspecs import hookimpl
from wstrace_plugins.os import backend

if TYPE_CHECKING:
    from wstrace.interfaces import Enricher


@hookimpl
def wstrace_enrichers() -> Sequence[type[Enricher]]:
    """The enricher `mapped_files`."""
    from wstrace_plugins.mapped_files.enricher import MappedFiles

    return [MappedFiles]


def mapped_file(address: int, pid: int | None = None) -> str | None:
    """The path of the file mapped at an address of a process (None = the calling one); None where no file is.

    Raises:
        TargetExited: there is no such process.
        Unavailable: it belongs to someone else, or wstrace captures nothing on this system.
    """
    path: str | None = backend("wstrace_plugins.mapped_files").mapped_file(address, pid)
    return path
