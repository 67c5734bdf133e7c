"""Finds the files of a trace, whose parts each name their predecessor, and the objects that a URL stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.format.layout import SESSION_BYTES, name_and_number, parts_prefix, parts_there
from wstrace_exporters.msgpack.read.part import OTHER_VERSION, first_header
from wstrace_exporters.msgpack.storage.urls import Place, StoredObject, fixed_prefix, is_pattern, is_url, shown


def files_of(paths: Iterable[str]) -> list[Place]:
    """The paths of all parts of the named traces, each file once even if it is named twice.

    A URL of an object means its parts too, as a path does, and one with wildcards all objects that match, in the order
    of their numbers; either costs one listing, and no object is opened.
    Raises TraceFileError: a part cannot be read, or a bucket cannot be listed, or has no such object; Unavailable: the
    package that a store needs is not installed.
    """
    found: dict[object, Place] = {}
    for path in paths:
        if path.startswith(("http://", "https://")):
            raise TraceFileError(
                "no trace is read from a web server", "download it, or pipe it: curl URL | wstrace ... -"
            )
        if is_url(path):
            for stored in objects_of(path):
                found.setdefault(stored.url, stored)
            continue
        for part in parts_of(path):
            found.setdefault(_resolved(part), part)
    return list(found.values())


def _resolved(part: str) -> str:
    """The path without links; as it was given in a working directory that was deleted."""
    try:
        return os.path.realpath(part)
    except FileNotFoundError:
        return part


def objects_of(url: str) -> list[StoredObject]:
    """The objects that a URL stands for: see files_of()."""
    from wstrace_exporters.msgpack.storage.store import StoreError, store_of

    bucket = store_of(url)
    if is_pattern(url):
        found = bucket.listing(fixed_prefix(url), lambda name: _matches(name, url))
    else:
        name, _ = name_and_number(url)
        found = bucket.listing(parts_prefix(name), lambda other: name_and_number(other)[0] == name)
        if url != name:  # a numbered part alone
            found = [one for one in found if one.url == url]
    if not found:
        folder = shown(url).rpartition("/")[0]
        raise StoreError(f"cannot read {shown(url)}: there is no such object", f"list {folder}/", "missing")
    return sorted(found, key=lambda one: name_and_number(one.url))


def _matches(name: str, pattern: str) -> bool:
    """Whether the folders and the name of an object each match those of a pattern; `*` stands for no `/`."""
    names, patterns = name.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def parts_of(path: str) -> list[str]:
    """The paths of a file and of the parts that follow it; rotation with `keep` may have removed the first ones.

    Raises TraceFileError: a part cannot be read.
    """
    beside = [part for part in parts_there(path) if part != path]
    if not beside:
        return [path]
    return _chain([path, *beside] if os.path.exists(path) else beside)


def _chain(paths: list[str]) -> list[str]:
    """The paths of the first one's session, and of those that went on with it. A part without a header is kept.

    A part belongs to the session that its id begins with; that of another session, to the part that it names by `prev`.
    """
    found, before, n = list[str](), b"", SESSION_BYTES
    for path in paths:
        header = first_header(path)
        if not header or not before or header.prev == before or header.id[:n] == before[:n]:
            found.append(path)
            before = header.id if header else b""
    return found


def id_of(path: str) -> bytes | None:
    """The file id of a part; None when its header is damaged.

    Raises TraceFileError: the part cannot be read, or is of another version.
    """
    header = first_header(path)
    if header is not None and (why := header.refused()):
        raise TraceFileError(f"{path}: {why}", OTHER_VERSION)
    return header.id if header is not None else None
