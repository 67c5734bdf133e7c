"""Which frames are the program's own: not the interpreter's library, nor packages that were installed into it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

from wstrace.text import base_name

#: a folder of Python's library, and the folder that holds its `lib`
_LIBRARY = re.compile(r"^(.*/)?lib(?:64)?/(?:python|pypy)\d[\d.]*t?/")
_ZIPPED = re.compile(r"/python\d+\.zip/")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+)")
_PACKAGES_FOLDER = re.compile(r"^.*/(?:site|dist)-packages/")
_SUFFIX = re.compile(r"\.(?:py|pyc|pyx|so)$")
_SCRIPTS = ("bin", "sbin")


class Origin(IntEnum):
    """Whose code a source file is, in the order in which a frame is chosen to answer for its stack."""

    #: no source file is known
    NONE = 0
    LIBRARY = 1
    #: a script that an installer made to start a package: `bin/pytest`
    STARTER = 2
    PACKAGE = 3
    #: code without a file, `<string>` or `<template>`: a user opens the file of what called it
    MADE = 4
    OWN = 5


class OwnRule:
    """Tells by its path whose code a source file is.

    Own is what lies neither below `lib/pythonX.Y`, `site-packages` or `dist-packages`, nor is `<frozen ...>`.

    Args:
        own: files and folders that are the user's own wherever they lie.
        not_own: files and folders that are not; what is named deeper decides.
    """

    def __init__(self, own: Sequence[str] = (), not_own: Sequence[str] = ()) -> None:
        told = [(path, True) for path in own] + [(path, False) for path in not_own]
        self._told = sorted(
            ((folder, is_own) for path, is_own in told for folder in {_slashed(path), _slashed(os.path.abspath(path))}),
            key=lambda one: -len(one[0]),
        )

    def origins(self, files: Iterable[tuple[str, bool]]) -> list[tuple[Origin, str]]:
        """Whose each file is, and the package it belongs to ("" = none).

        Args:
            files: the path of each, and whether nothing but its `<module>` was ever seen to run: only then a script
                beside an interpreter's folders is one that starts a package.
        """
        paths = [(_slashed(file), only_module) for file, only_module in files]
        prefixes = {match[1] or "" for path, _ in paths if (match := _LIBRARY.match(path))}
        return [self._origin(path, prefixes if only_module else set()) for path, only_module in paths]

    def _origin(self, path: str, prefixes: set[str]) -> tuple[Origin, str]:
        if not path:
            return Origin.NONE, ""
        package = package_of(path)
        for folder, is_own in self._told:
            if path == folder or path.startswith(folder.rstrip("/") + "/"):
                return (Origin.OWN, package) if is_own else (Origin.PACKAGE, package or base_name(folder))
        if path.startswith("<"):
            return (Origin.LIBRARY, "") if path.startswith("<frozen") else (Origin.MADE, "")
        if package:
            return Origin.PACKAGE, package
        if _LIBRARY.match(path) or _ZIPPED.search(path):
            return Origin.LIBRARY, ""
        folder, _, name = path.rpartition("/")
        above, _, last = folder.rpartition("/")
        if last in _SCRIPTS and f"{above}/" in prefixes and "." not in name:
            return Origin.STARTER, name
        return Origin.OWN, ""


def short_path(path: str, shared: str = "") -> str:
    """A source file as tables show it: from its package or the library on, or without the folder that all share."""
    path = _slashed(path)
    for known in (_PACKAGES_FOLDER, _LIBRARY):
        if match := known.match(path):
            return path[match.end() :]
    return path.removeprefix(shared)


def shared_folder(paths: Iterable[str]) -> str:
    """The folder that all these files lie in, with its last slash; "" where they share none."""
    folders = [_slashed(path).rpartition("/")[0].split("/") for path in paths]
    shared = []
    for together in zip(*folders, strict=False):
        if len(set(together)) > 1:
            break
        shared.append(together[0])
    return "/".join(shared) + "/" if any(shared) else ""


def package_of(path: str) -> str:
    """The package that a file below `site-packages` or `dist-packages` belongs to; "" elsewhere."""
    found = _PACKAGES.findall(_slashed(path))
    return _SUFFIX.sub("", found[-1]) if found else ""


def _slashed(path: str) -> str:
    return path.replace("\\", "/")
