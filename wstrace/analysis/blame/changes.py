"""Changes: the rows of two runs side by side, with names and lines that are the same in both paired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wstrace.analysis.blame.alignment import paired, shift_between, unversioned
from wstrace.analysis.blame.rows import BlameRow
from wstrace.analysis.own import short_path
from wstrace.text import base_name


@dataclass(slots=True)
class Amount:
    """Resident bytes, and those of them that no other process has."""

    resident: int = 0
    private: int = 0

    @property
    def shared(self) -> int:
        """Bytes that other processes have too."""
        return self.resident - self.private


@dataclass(slots=True)
class Change:
    """A row: who holds how much in either run.

    label: as tables show it, by its name in the second run. name: the whole label. was: its file, module or label in
    the first run, where that is another one. version, version_was: the release of its package in the second and in the
    first run, "" = not known; of packages, and of lines that import one. estimated: bytes of both runs that may as
    well be another row's. For the others see BlameRow.
    """

    label: str
    name: str
    first: Amount = field(default_factory=Amount)
    second: Amount = field(default_factory=Amount)
    file: str = ""
    line: int = 0
    function: str = ""
    package: str = ""
    kind: str = ""
    reason: str = ""
    was: str = ""
    estimated: int = 0
    version: str = ""
    version_was: str = ""

    @property
    def imports(self) -> bool:
        """Whether it is a line that imports its package."""
        return self.label.startswith("import ")

    @property
    def release(self) -> str:
        """` 2.2.3 -> 2.3.0` of a package that both runs have, ` 2.3.0` where it is the same; "" = not known."""
        one, other = self.version_was, self.version
        if self.first.resident and self.second.resident and one != other:
            return f" {one or '?'} -> {other or '?'}"
        return f" {other or one}" if other or one else ""

    @property
    def change(self) -> int:
        """Resident bytes that the second run has more."""
        return self.second.resident - self.first.resident

    @property
    def private(self) -> int:
        """Private bytes that the second run has more."""
        return self.second.private - self.first.private

    @property
    def shared(self) -> int:
        """Shared bytes that the second run has more."""
        return self.second.shared - self.first.shared

    def as_dict(self) -> dict[str, Any]:
        """The keys of a row in JSON; sizes in bytes."""
        names = ("file", "line", "function", "package", "kind", "reason", "was", "version", "version_was")
        words = {key: getattr(self, key) for key in names}
        return {"name": self.name, "first": self.first.resident, "second": self.second.resident, "change": self.change,
                "private": self.private, "shared": self.shared, "estimated": self.estimated, **words}  # fmt: skip


def changes_between(first: Iterable[BlameRow], second: Iterable[BlameRow], view: str) -> list[Change]:
    """The rows of both runs by a view, each with the one that is the same, the largest change first."""
    found: list[Change] = []
    for one, other in paired(_grouped(first, view), _grouped(second, view), _NAMES):
        before, after = one.rows if one else [], other.rows if other else []
        found += _lines(before, after) if view == "line" and one and other else _each(before, after, view)
    found = [row for row in found if row.first.resident or row.second.resident]
    same = Counter(row.label for row in found)
    for row in found:
        if same[row.label] > 1:
            row.label = row.name if row.name != row.label else f"{row.label} (of {row.was or row.file or 'both'})"
    return sorted(found, key=lambda row: (-abs(row.change), -row.second.resident, row.name))


@dataclass(slots=True)
class _Group:
    """Rows of one function, package or file of a run."""

    place: str
    what: str
    rows: list[BlameRow]


#: what two groups have in common that are the same, the surest first
_NAMES = (
    lambda group: (group.place, group.what),
    lambda group: (short_path(group.place), group.what),
    lambda group: (unversioned(short_path(group.place)), unversioned(group.what)),
    lambda group: (unversioned(base_name(group.place)), unversioned(group.what)),
)


def _grouped(rows: Iterable[BlameRow], view: str) -> list[_Group]:
    """The rows by their function, which has several of a view of lines."""
    groups: dict[tuple[str, str], _Group] = {}
    for row in rows:
        place = row.file or row.package or row.whole
        imported = view == "line" and row.label.startswith("import ")
        what = f"import {row.package}" if imported else row.function or (row.whole if row.whole != place else "")
        groups.setdefault((place, what), _Group(place, what, [])).rows.append(row)
    return list(groups.values())


def _lines(first: list[BlameRow], second: list[BlameRow]) -> list[Change]:
    """The lines of a function, each with the one that it was; one row where that cannot be told."""
    shift = shift_between([row.line for row in first], [row.line for row in second])
    if shift is None:
        merged = _row(first, second)
        before, after = (", ".join(str(n) for n in sorted({row.line for row in rows})[:9]) for rows in (first, second))
        merged.label = f"{merged.label.rpartition(':')[0]} (lines {before}; now {after})"
        merged.name, merged.line = f"{merged.file} {merged.function}", 0
        return [merged]
    lines: dict[int, tuple[list[BlameRow], list[BlameRow]]] = {}
    for row in first:
        lines.setdefault(row.line + shift, ([], []))[0].append(row)
    for row in second:
        lines.setdefault(row.line, ([], []))[1].append(row)
    return [_row(before, after) for before, after in lines.values()]


def _each(first: list[BlameRow], second: list[BlameRow], view: str) -> list[Change]:
    """One row of all; of lines that only one of the runs has, one for each."""
    if view == "line":
        return [_row([row], []) for row in first] + [_row([], [row]) for row in second]
    return [_row(first, second)]


def _row(first: Sequence[BlameRow], second: Sequence[BlameRow]) -> Change:
    shown, before = (second or first)[0], (first or second)[0]
    was = next((one for one, other in ((before.file, shown.file), (before.package, shown.package),
                                       (before.whole, shown.whole)) if one != other), "")  # fmt: skip
    return Change(
        shown.label, shown.whole, _amount(first), _amount(second), shown.file, shown.line, shown.function,
        shown.package, shown.kind, shown.reason, was, sum(row.estimated for row in (*first, *second)),
    )  # fmt: skip


def _amount(rows: Sequence[BlameRow]) -> Amount:
    return Amount(sum(row.resident for row in rows), sum(row.private for row in rows))
