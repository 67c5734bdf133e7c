"""Versions: which release of a package a traced program had, by the metadata beside the package's files.

They are read when traces are compared, so a version is told only where it cannot have become another one since: the
trace is of this machine, and the folder of the metadata has not changed since the trace began. What a program saw in a
root of its own (a container) lies elsewhere, and is not found or, under the same path, taken for its own.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from wstrace.analysis.own import package_of
from wstrace.plugins import own_platform
from wstrace.trace_info import TraceInfo

_FOLDER = re.compile(r"^/.*/(?:site|dist)-packages/(?=[^/]+)")
_METADATA = {".dist-info": ("METADATA", ("top_level.txt", "RECORD")), ".egg-info": ("PKG-INFO", ("top_level.txt",))}
_VERSION = re.compile(r"^Version: ?([A-Za-z0-9.+!_-]{1,40})\s*$", re.MULTILINE)
#: Metadata folders of one environment that are looked at, and bytes of a file that are read.
_MOST_FOLDERS, _MOST_BYTES = 4096, 1 << 20


class Versions:
    """The releases of the packages that a trace names.

    Args:
        info: the description of the trace. files: the paths of source files and libraries in it.
    """

    def __init__(self, info: TraceInfo, files: Iterable[str]) -> None:
        here = not info.hosts and info.host.get("name", platform.node()) == platform.node()
        self._began = info.created_ns if here else 0
        self._files = files

    @cached_property
    def _folders(self) -> dict[str, str]:
        """package -> the folder that holds it; "" where several do."""
        found: dict[str, str] = {}
        for path in self._files:
            if match := _FOLDER.match(path):
                package, folder = package_of(path), match[0]
                found[package] = folder if found.get(package, folder) == folder else ""
        return found

    def of(self, package: str) -> str:
        """The version of a package as it was when the trace began; "" = not known."""
        folder = self._folders.get(package, "") if self._began else ""
        found = {version for path in _owners(folder, package) if (version := self._version(path))} if folder else set()
        return found.pop() if len(found) == 1 else ""

    def _version(self, path: Path) -> str:
        try:
            changed = path.stat().st_ctime_ns
        except OSError:
            return ""
        if changed >= self._began:
            return ""
        found = _VERSION.search(_text(path / _METADATA[path.suffix][0]).partition("\n\n")[0])
        return found[1] if found else ""


def _owners(folder: str, package: str) -> list[Path]:
    """The metadata of the distributions that say that they brought a package."""
    try:
        with os.scandir(folder) as entries:
            listed = [Path(entry.path) for entry, _ in zip(entries, range(_MOST_FOLDERS), strict=False)]
    except OSError:
        return []
    there = [path for path in listed if path.suffix in _METADATA]
    alike = [path for path in there if _normal(path.name.partition("-")[0]) == _normal(package)]
    return [path for path in alike if _brought(path, package, default=True)] or [
        path for path in there if _brought(path, package, default=False)
    ]


def _brought(path: Path, package: str, *, default: bool) -> bool:
    """Whether a distribution lists a package among what it brought. default: where it has no list."""
    top, *records = (_text(path / name) for name in _METADATA[path.suffix][1])
    if top:
        return package in top.split()
    lines = [line for text in records for line in text.splitlines()]
    return any(line.startswith((f"{package}/", f"{package}.")) for line in lines) if lines else default


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(path: Path) -> str:
    """The beginning of a regular file; "" = it cannot be read."""
    if (system := own_platform()) is None:
        return ""
    try:
        with os.fdopen(system.open_named(str(path)), "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    except (OSError, ValueError):
        return ""
