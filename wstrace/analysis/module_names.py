"""What Python modules are imported as, as far as their files show."""

from __future__ import annotations

import re
from collections.abc import Iterable

from wstrace.analysis.own import short_path

_FROZEN = re.compile(r"^<frozen (?!importlib)([\w.]+)>$")
_ARCHIVE = re.compile(r"^.*\.(?:zip|whl|egg|pyz)/(?=.)")
_EXTENSION = re.compile(r"^(?:\w+\.(?:cpython|pypy|graalpy|abi3|cp\d+)[\w.-]*|(?!lib)\w+)\.(?:so|pyd)$")


class ModuleNames:
    """Names modules by their files.

    Args:
        files: all source files of a trace; an `__init__.py` among them tells that its folder is a package.
        programs: files that were run and not imported: modules beside them are imported by their path from there.
    """

    def __init__(self, files: Iterable[str], programs: Iterable[str] = ()) -> None:
        split = (_slashed(file).rpartition("/") for file in files)
        self._packages = {folder for folder, _, name in split if folder and name.startswith("__init__.")}
        self._roots = {folder for folder in (_slashed(file).rpartition("/")[0] for file in programs) if folder}
        self._names: dict[str, str] = {}

    def of(self, file: str) -> str:
        """`pandas.core.frame`; "" where the file shows none."""
        if file not in self._names:
            self._names[file] = self._of(_slashed(file))
        return self._names[file]

    def _of(self, file: str) -> str:
        if file.startswith("<"):
            frozen = _FROZEN.match(file)
            return frozen[1] if frozen else ""
        inside = _ARCHIVE.sub("", file)
        if inside == file:
            inside = short_path(file).removeprefix("lib-dynload/")
        if inside == file:
            folder = self._root(file.rpartition("/")[0])
            inside = file.removeprefix(f"{folder}/")
        *folders, name = inside.split("/")
        name = name.partition(".")[0]
        return ".".join([*folders, name] if name != "__init__" or not folders else folders)

    def _root(self, folder: str) -> str:
        """The folder from which a module in a folder is imported: outside of its packages, or that of a program."""
        above = folder
        while above in self._packages:
            above = above.rpartition("/")[0]
        if above == folder:
            above = max((root for root in self._roots if folder.startswith(f"{root}/")), key=len, default=folder)
        return above


def is_extension(file: str) -> bool:
    """Whether a file is named as extension modules are: `_json.cpython-311-x86_64-linux-gnu.so`."""
    return _EXTENSION.match(_slashed(file).rpartition("/")[2]) is not None


def _slashed(path: str) -> str:
    return path.replace("\\", "/")
