"""Which frames are the program's own: not the interpreter's library, nor packages that were installed into it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from wstrace.text import base_name

#: a folder of Python's library, and the folder that holds its `lib`
_LIBRARY = re.compile(r"^(.*/)?lib(?:64)?/(?:python|pypy)\d[\d.]*t?/")
_ZIPPED = re.compile(r"/python\d+\.zip/")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+)")
_PACKAGES_FOLDER = re.compile(r"^.*/(?:site|dist)-packages/")
_SUFFIX = re.compile(r"\.(?:py|pyc|pyx|so)$")
_TYPED = ("<stdin>", "<console>", "<python-input", "<ipython-input", "<doctest")
#: what a relative path begins with
_UP = re.compile(r"^(?:\.\.?/)+")
_SCRIPTS = ("bin", "sbin")


class Origin(IntEnum):
    """Whose code a source file is, in the order in which a frame is chosen to answer for its stack."""

    #: no source file is known
    NONE = 0
    #: code without a file that code made: a dataclass's `__init__`, a template
    MADE = 1
    LIBRARY = 2
    #: a script that an installer made to start a package: `bin/pytest`
    STARTER = 3
    PACKAGE = 4
    #: code without a file that a user typed: `python -c`, a console, a notebook; a file that called it comes first
    TYPED = 5
    OWN = 6


class Seen(NamedTuple):
    """What a trace tells of a source file.

    path is its name. only_module is whether nothing but its `<module>` was seen to run: only then a script beside an
    interpreter's folders is one that starts a package. begins is whether its `<module>` was the outermost frame of a
    stack: only then code without a file is what a user typed.
    """

    path: str
    only_module: bool = False
    begins: bool = False


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

    def tells(self, path: str) -> bool:
        """Whether the user said whose this file is."""
        path = _slashed(path)
        return any(_is_below(path, folder) for folder, _ in self._told)

    def origins(self, files: Iterable[Seen]) -> list[tuple[Origin, str]]:
        """Whose each file is, and the package it belongs to ("" = none)."""
        files = [file._replace(path=_slashed(file.path)) for file in files]
        prefixes = {match[1] or "" for file in files if (match := _LIBRARY.match(file.path))}
        return [self._origin(file, prefixes) for file in files]

    def _origin(self, file: Seen, prefixes: set[str]) -> tuple[Origin, str]:
        path = file.path
        if not path:
            return Origin.NONE, ""
        package = package_of(path)
        for folder, is_own in self._told:
            if _is_below(path, folder):
                return (Origin.OWN, package) if is_own else (Origin.PACKAGE, package or base_name(folder))
        if path.startswith("<"):
            if path.startswith("<frozen"):
                return Origin.LIBRARY, ""
            return (Origin.TYPED if file.begins or path.startswith(_TYPED) else Origin.MADE), ""
        if package:
            return Origin.PACKAGE, package
        if _LIBRARY.match(path) or _ZIPPED.search(path):
            return Origin.LIBRARY, ""
        folder, _, name = path.rpartition("/")
        above, _, last = folder.rpartition("/")
        above = _UP.sub("", f"{above}/")
        beside = above in prefixes or any(prefix.endswith(f"/{above}") for prefix in prefixes)
        if file.only_module and last in _SCRIPTS and beside and "." not in name:
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


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _slashed(path: str) -> str:
    return path.replace("\\", "/")
