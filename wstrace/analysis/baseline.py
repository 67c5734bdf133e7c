"""What a test or a command took of memory when its baseline was recorded, and whether it takes more now."""

from __future__ import annotations

import json
import os
import platform
import stat
import sys
import sysconfig
from typing import TYPE_CHECKING

from wstrace.errors import UsageError
from wstrace.text import json_safe

if TYPE_CHECKING:
    from wstrace.interfaces import Platform

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from wstrace.analysis.alignment import paired, unversioned
from wstrace.text import number, printable, size

#: Where it is, from the folder of the project on.
PLACE = os.path.join(".wstrace", "baseline.json")
_VERSION = 1
#: More than any baseline has; a larger file is not read.
_MOST_BYTES = 64 << 20
#: Recorded, but figures do not depend on it: runners of one CI have several.
_NOT_COMPARED = frozenset(("cpu",))

#: The figures of a baseline; the others, and a limit's, are of the moment. In bytes, but for the faults.
FIGURES = ("peak", "new", "faults")
#: Names that are kept of what brought the memory.
NAMES = 20
#: A change is judged past the largest of: so many times the spread, this share, so many pages.
_SPREADS, _SHARE, _PAGES = 3, 0.01, 64
#: A spread past this share of its figure says nothing any more, unless the pages above cover it.
_NOISY = 0.03
_LINE = re.compile(r":\d+$")


class Bytes(NamedTuple):
    """Memory by name: `load app.py:12`, or a file."""

    label: str
    bytes: int


def written(figure: str, value: int) -> str:
    """A figure as it is read: `8.0 MiB`, `3,000`."""
    return number(value) if figure in ("faults", "major") else size(value)


def named(figure: str, value: int) -> str:
    """A figure with its name: `peak 8.0 MiB`, `3,000 faults`, `2 major faults`."""
    if figure in ("faults", "major"):
        return f"{written(figure, value)} {'major ' * (figure == 'major')}faults"
    return f"{figure} {written(figure, value)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is recorded of a test.

    figures: name -> the least of all runs, in bytes or faults. spread: name -> by how much the largest was more. runs:
    how many there were. by: who brought the memory, most first. level: `line` or `file`, by what they are named.
    """

    figures: Mapping[str, int]
    spread: Mapping[str, int]
    runs: int
    by: Sequence[Bytes] = ()
    level: str = "file"

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, int]], by: Sequence[Bytes] = (), level: str = "file") -> Self:
        """From the figures of each run."""
        known = [name for name in FIGURES if all(name in run for run in runs)]
        least = {name: min(run[name] for run in runs) for name in known}
        spread = {name: max(run[name] for run in runs) - least[name] for name in known}
        return cls(least, spread, len(runs), tuple(by[:NAMES]), level)

    def allowed(self, figure: str, page_size: int) -> int:
        """How much more than the recorded figure is no growth."""
        floor = _PAGES * (1 if figure == "faults" else page_size)
        return max(_SPREADS * self.spread.get(figure, 0), int(self.figures[figure] * _SHARE), floor)

    def noisy(self, figure: str, page_size: int) -> bool:
        """Whether its runs differ too much to tell a growth from chance."""
        spread, floor = self.spread.get(figure, 0), _PAGES * (1 if figure == "faults" else page_size)
        return spread > self.figures[figure] * _NOISY and _SPREADS * spread > floor

    def judged(self, measured: Mapping[str, int], page_size: int) -> Judgement:
        """What of the measured figures is past the recorded ones."""
        found = Judgement()
        for figure in FIGURES:
            if figure not in self.figures or figure not in measured:
                continue
            was, now = self.figures[figure], measured[figure]
            found.limit[figure] = limit = was + self.allowed(figure, page_size)
            if self.noisy(figure, page_size):
                share = self.spread[figure] / was if was else 1
                found.noisy.append(f"{figure}: too noisy to judge, its runs differ by {share:.0%}")
            elif now > limit:
                more = f"+{(now - was) / was:.1%}" if was else f"+{written(figure, now)}"
                found.broken.append(f"{named(figure, now)}, {more} over the baseline of {written(figure, was)} "
                                    f"(allowed: {written(figure, limit)})")  # fmt: skip
        return found

    def learned(self, later: Entry, page_size: int) -> Entry:
        """What is recorded after a later measurement: a figure within what is allowed only widens its spread."""
        figures, spread, runs = dict(later.figures), dict(later.spread), later.runs
        for figure, now in later.figures.items():
            if figure in self.figures and abs(now - self.figures[figure]) <= self.allowed(figure, page_size):
                was = self.figures[figure]
                figures[figure] = min(was, now)
                most = max(was + self.spread.get(figure, 0), now + later.spread.get(figure, 0))
                spread[figure] = most - figures[figure]
                runs = later.runs + self.runs
        return replace(later, figures=figures, spread=spread, runs=runs)

    def as_dict(self) -> dict[str, Any]:
        """The keys of a baseline file."""
        return {**self.figures, "spread": dict(self.spread), "runs": self.runs, "level": self.level,
                "by": [list(row) for row in self.by]}  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From as_dict(). Raises KeyError, TypeError or ValueError where it is none."""
        figures = {name: _count(data[name]) for name in FIGURES if name in data}
        if not figures:
            raise ValueError("no figure")
        spread = {name: _count(data["spread"][name]) for name in figures}
        by = [Bytes(str(label), _count(amount)) for label, amount in data.get("by", ())]
        return cls(figures, spread, _count(data["runs"]), tuple(by[:NAMES]), str(data.get("level", "file")))


@dataclass(slots=True)
class Judgement:
    """What came of a comparison: the largest figures that are allowed, and in words those past them or too noisy."""

    limit: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    noisy: list[str] = field(default_factory=list)


def grew(before: Entry, after: Entry) -> list[tuple[str, int, int]]:
    """(label, bytes before, bytes after) of what brings more than before, the largest growth first.

    Lines are paired also where they have moved, libraries where they have another version.
    """
    if before.level != after.level:
        return [(row.label, 0, row.bytes) for row in after.by]
    names = (lambda row: row.label, lambda row: _LINE.sub("", row.label), lambda row: unversioned(row.label))
    rows = [(new.label, old.bytes if old else 0, new.bytes) for old, new in paired(before.by, after.by, names) if new]
    return sorted((row for row in rows if row[2] > row[1]), key=lambda row: (row[1] - row[2], row[0]))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{printable(repr(value), 40)} is no count")
    return value


@dataclass(frozen=True, slots=True)
class Machine:
    """Where figures are measured.

    key: implementation, version, system and page size; figures of another one are not compared. versions: what else
    figures depend on, name -> text.
    """

    key: str
    versions: Mapping[str, str]

    @classmethod
    def this(cls, system: Platform) -> Self:
        """The running one."""
        python = sys.version_info
        name = f"{sys.implementation.name}-{python[0]}.{python[1]}-{sysconfig.get_platform()}-{system.page_size}"
        seed = {"hash seed": value} if (value := os.environ.get("PYTHONHASHSEED")) else {}
        return cls(name, {"python": platform.python_version(), **system.versions(), **seed})


@dataclass(slots=True)
class Environment:
    """What is recorded of one kind of environment."""

    versions: dict[str, str] = field(default_factory=dict)
    tests: dict[str, Entry] = field(default_factory=dict)


@dataclass(slots=True)
class Baseline:
    """A file of baselines; `environments` is empty where there is none yet."""

    path: str
    environments: dict[str, Environment] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str) -> Self:
        """Reads it. Raises UsageError: it cannot be read, or is no baseline."""
        try:
            with open(path, "rb", opener=_opened) as file:
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                text = file.read(_MOST_BYTES + 1) if regular else b""
        except FileNotFoundError:
            return cls(path)
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
        from wstrace.output_file import (
            in_folder,
            make_folders,
            refused,
            whole_file,  # it imports much, and most runs write nothing
        )

        with refused(self.path):
            if name := os.path.dirname(self.path):
                make_folders(name)
            with in_folder(self.path, None) as folder, whole_file(self.path, force=True, folder=folder) as file:
                file.write(self._text().encode())

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
            self.environments[machine.key] = Environment()
        one = self.environments[machine.key]
        one.versions = dict(machine.versions)
        for name, entry in entries.items():
            earlier = one.tests.get(name)
            one.tests[name] = earlier.learned(entry, page_size) if earlier else entry


def _opened(path: str, flags: int) -> int:
    """Opens a file for reading; a FIFO that nobody writes to is not waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _parsed(text: bytes) -> tuple[int, dict[str, Environment]]:
    """The version and, if it is ours, the environments of a file. Raises what a wrong value raises."""
    if len(text) > _MOST_BYTES:
        raise ValueError("it is too large")
    data = json.loads(text)
    version = int(data["version"])
    return version, {
        str(key): Environment(
            {str(name): str(value) for name, value in one["versions"].items()},
            {str(name): Entry.from_dict(entry) for name, entry in one["tests"].items()},
        )
        for key, one in (data["environments"] if version == _VERSION else {}).items()
    }


def _json(value: Any) -> str:
    return json.dumps(json_safe(value))
