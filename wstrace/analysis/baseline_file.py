"""The file of baselines that is committed beside the tests: `.wstrace/baseline.json`.

`{"version": 1, "environments": {"cpython-3.12-linux-x86_64-4096": {"versions": {...}, "tests": {ID: {...}}}}}`, sorted,
with a line for each test, so that two branches that measure different tests can be merged.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from wstrace.analysis.baseline import Entry
from wstrace.errors import OutputError, UsageError
from wstrace.text import json_safe, printable

if TYPE_CHECKING:
    from wstrace.conditions import Conditions
    from wstrace.interfaces import Platform

#: Where it is, from the folder of the project on.
PLACE = os.path.join(".wstrace", "baseline.json")
_VERSION = 1
#: More than any baseline has; a larger file is not read.
_MOST_BYTES = 64 << 20
#: Recorded, but figures do not depend on it: runners of one CI have several.
_NOT_COMPARED = frozenset(("cpu",))


@dataclass(frozen=True, slots=True)
class Machine:
    """Where figures are measured.

    key: implementation, version, system and page size; figures of another one are not compared. versions: what else
    figures depend on, name -> text.
    """

    key: str
    versions: Mapping[str, str]

    @classmethod
    def this(cls, system: Platform, conditions: Conditions) -> Self:
        """The running one, with the conditions under which it measures."""
        python = sys.version_info
        name = f"{sys.implementation.name}-{python[0]}.{python[1]}-{sysconfig.get_platform()}-{system.page_size}"
        return cls(name, {"python": platform.python_version(), **system.versions(), **conditions.versions})


@dataclass(slots=True)
class Recorded:
    """What is recorded of one kind of environment."""

    versions: dict[str, str] = field(default_factory=dict)
    tests: dict[str, Entry] = field(default_factory=dict)


@dataclass(slots=True)
class Baseline:
    """A file of baselines; `environments` is empty where there is none yet."""

    path: str
    environments: dict[str, Recorded] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str) -> Self:
        """Reads it.

        Raises:
            UsageError: it cannot be read, or is no baseline.
        """
        try:
            with _folder(path) as folder, open(path, "rb", opener=partial(_opened, folder=folder)) as file:
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                text = file.read(_MOST_BYTES + 1) if regular else b""
        except FileNotFoundError:
            return cls(path)
        except _Foreign as why:
            raise UsageError(f"cannot read the baseline {path}: {why}", "remove it, or name another") from None
        except OSError as error:
            raise UsageError(f"cannot read the baseline {path}: {error.strerror}") from None
        if not regular:
            raise UsageError(f"cannot read the baseline {path}: it is no regular file", "remove it, or name another")
        anew = "record it anew: --wstrace-update in pytest, --update of wstrace check"
        if any(line.startswith((b"<<<<<<< ", b"=======", b">>>>>>> ")) for line in text.splitlines()):
            raise UsageError(f"the baseline {path} has a merge conflict in it", f"take one side of each, or {anew}")
        try:
            version, found = _parsed(text)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            what = f"{type(error).__name__}: {printable(str(error), 80)}"
            raise UsageError(f"{path} is no baseline ({what})", anew) from None
        if version != _VERSION:
            raise UsageError(f"the baseline {path} has version {version}, and this wstrace knows {_VERSION}", anew)
        return cls(path, found)

    def save(self) -> None:
        """Writes it, and makes its folder. Raises OutputError."""
        from wstrace.output_file import whole_file  # it imports much, and most runs write nothing
        from wstrace.output_folder import in_folder, make_folders
        from wstrace.output_refusals import refused

        try:
            with refused(self.path):
                if name := os.path.dirname(self.path):
                    make_folders(name)
                # Links above the folder itself are found by in_folder(), for root; _folder() looks at the last one.
                with _folder(self.path) as folder, in_folder(self.path, None) as held:
                    at = folder if held is None else held
                    with whole_file(self.path, force=True, folder=at) as file:
                        file.write(self._text().encode())
        except _Foreign as why:
            raise OutputError(f"cannot write the baseline {self.path}: {why}", "remove it, or name another") from None

    def _text(self) -> str:
        lines = []
        for key in sorted(self.environments):
            one = self.environments[key]
            versions = _json(dict(sorted(one.versions.items())))
            tests = [f"    {_json(name)}: {_json(one.tests[name].as_dict())}" for name in sorted(one.tests)]
            inside = "{\n" + ",\n".join(tests) + "\n   }" if tests else "{}"
            lines.append(f'  {_json(key)}: {{\n   "versions": {versions},\n   "tests": {inside}\n  }}')
        return f'{{"version": {_VERSION}, "environments": {{\n' + ",\n".join(lines) + "\n}}\n"

    def why_not(self, machine: Machine) -> str:
        """Why figures of this machine are not compared with it; "" = they are."""
        one = self.environments.get(machine.key)
        if one is None:
            if not self.environments:
                return f"there is no baseline ({self.path})"
            others = ", ".join(printable(key, 60) for key in sorted(self.environments)[:3])
            return f"{self.path} has no baseline for {machine.key}, only for {others}"
        there, here = one.versions, machine.versions
        other = [
            f"{printable(name, 40)} {printable(there.get(name, '?'), 60)} there, {here.get(name, '?')} here"
            for name in sorted({*there, *here} - _NOT_COMPARED)
            if there.get(name) != here.get(name)
        ]
        return f"{self.path} was recorded with other versions: {', '.join(other)}" if other else ""

    def record(self, machine: Machine, entries: Mapping[str, Entry], page_size: int) -> None:
        """Takes measurements in; what was recorded with other versions is not kept, nor compared with them."""
        if self.why_not(machine):
            self.environments[machine.key] = Recorded()
        one = self.environments[machine.key]
        one.versions = dict(machine.versions)
        for name, entry in entries.items():
            earlier = one.tests.get(name)
            one.tests[name] = earlier.learned(entry, page_size) if earlier else entry


class _Foreign(Exception):  # noqa: N818 - whose it is
    """The folder is not that of the name, or a link that another user has made; the argument says so."""


@contextmanager
def _folder(path: str) -> Iterator[int | None]:
    """A descriptor of the folder of a file, which is held: who may write beside it may exchange it at any time.

    None where the system has no such descriptors (Windows), and where the path has no folder. Raises _Foreign, OSError.
    """
    folder, flags = os.path.dirname(path), getattr(os, "O_DIRECTORY", None)
    if not folder or flags is None:
        yield None
        return
    fd = os.open(folder, flags | getattr(os, "O_PATH", os.O_RDONLY))
    try:
        held, named, there = os.fstat(fd), os.lstat(folder), os.stat(folder)  # noqa: PTH116
        link = stat.S_ISLNK(named.st_mode)
        if link and named.st_uid not in (0, getattr(os, "geteuid", int)()):
            raise _Foreign(f"{folder} is a symbolic link of another user")
        if not os.path.samestat(held, there if link else named):
            raise _Foreign(f"{folder} was exchanged meanwhile")
        yield fd
    finally:
        os.close(fd)


def _opened(path: str, flags: int, folder: int | None) -> int:
    """Opens a file for reading; a FIFO that nobody writes to is not waited for."""
    name = path if folder is None else os.path.basename(path)
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0), dir_fd=folder)


def _parsed(text: bytes) -> tuple[int, dict[str, Recorded]]:
    """The version and, if it is ours, the environments of a file. Raises what a wrong value raises."""
    if len(text) > _MOST_BYTES:
        raise ValueError("it is too large")
    data = json.loads(text)
    version = int(data["version"])
    return version, {
        str(key): Recorded(
            {str(name): str(value) for name, value in one["versions"].items()},
            {str(name): Entry.from_dict(entry) for name, entry in one["tests"].items()},
        )
        for key, one in (data["environments"] if version == _VERSION else {}).items()
    }


def _json(value: Any) -> str:
    return json.dumps(json_safe(value))
