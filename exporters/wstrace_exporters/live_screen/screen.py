"""The screen as text: which rows and numbers of a refresh a view shows, and what keys change. It knows no terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wstrace.analysis.dimensions import Row
from wstrace.terminal import Column, TextTable, start_of, width_of
from wstrace.text import duration, estimate_mark, number, printable, signed, size
from wstrace_exporters.live_screen.refresh import OWNERS, Refresh

_LONGEST = 300
#: Lines that are not rows: title, state, heads, sum, keys.
_AROUND = 5


class Line(NamedTuple):
    """A row: its name, its numbers now and at the moment that it is compared with. Sizes in bytes, rates per second."""

    name: str = ""
    resident: int = 0
    private: int = 0
    pss: int = 0
    faults: float = 0.0
    major: float = 0.0
    before: int = 0
    estimated: int = 0

    @property
    def change(self) -> int:
        """What is resident more than then."""
        return self.resident - self.before

    @classmethod
    def of(cls, row: Row, before: Row | None, span: float) -> Line:
        """The line of an owner or a process; before: its row then. span: seconds in which its faults came."""
        package = row.of("package")
        name = row.label if not package or package in row.label else f"{row.label}  {package}"
        return cls(name, row["resident"], row["private"], row["pss"], row["faults"] / span, row["from_disk"] / span,
                   before["resident"] if before else 0, row["estimated"])  # fmt: skip


#: head -> the text of a cell
_CELLS: dict[str, Callable[[Line], str]] = {
    "FAULTS/S": lambda row: number(round(row.faults)),
    "DISK/S": lambda row: number(round(row.major)),
    "RESIDENT": lambda row: estimate_mark(row.resident, row.estimated) + size(row.resident),
    "SINCE": lambda row: signed(row.change),
    "PRIVATE": lambda row: size(row.private),
    "SHARED": lambda row: f"{1 - row.private / row.resident:.0%}" if row.resident else "",
    "PSS": lambda row: size(row.pss),
}
#: key -> view; view -> its columns, the most important first
VIEWS = {"n": "now", "b": "big", "w": "workers"}
_COLUMNS = {"now": ("FAULTS/S", "DISK/S", "SINCE", "RESIDENT"), "big": ("RESIDENT", "SINCE", "PRIVATE", "FAULTS/S"),
            "workers": ("RESIDENT", "SHARED", "SINCE", "PRIVATE", "FAULTS/S", "PSS")}  # fmt: skip


class Screen:
    """What is shown, and how keys change that.

    name: what is traced. view: the name of the view. by: what the owners are. diff: whether it is on. done: after `q`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.view, self.by = "now", OWNERS[0]
        self.diff = self.done = self._marked = False
        self._latest = self._base = Refresh()  # the latest one, and the one that changes are counted from
        self._offset = 0
        self._shown = 1

    def take(self, latest: Refresh) -> None:
        """Takes the latest refresh."""
        if latest is self._latest or not latest.time_ns:
            return
        self._latest = latest
        # Nothing can have grown since before there was a snapshot, and owners of another kind are others.
        if not self._base.resident or self._base.by != latest.by:
            self._base, self._marked = latest, bool(self._base.resident)

    def press(self, key: str, character: str | None = None) -> None:
        """Answers a key: its name (`space`, `down`, `q`), and the character that it writes."""
        if character in VIEWS:
            self.view, self._offset = VIEWS[character], 0
        elif character == "o":
            self.by = OWNERS[(OWNERS.index(self.by) + 1) % len(OWNERS)]
            self._offset = 0
        elif character == "m":
            self._base, self._marked = self._latest, True
        elif character == "d":
            self.diff, self._offset = not self.diff, 0
        elif character == "q" or key == "ctrl+c":
            self.done = True
        else:
            self._scroll(key)

    def _scroll(self, key: str) -> None:
        step = {"down": 1, "up": -1, "pagedown": self._shown, "pageup": -self._shown, "home": -(1 << 30),
                "end": 1 << 30}.get(key, 0)  # fmt: skip
        self._offset = max(0, self._offset + step)

    def rows(self) -> list[Line]:
        """The rows of the view, in order."""
        now, then = (one.workers if self.view == "workers" else one.owners for one in (self._latest, self._base))
        before = {row.whole: row for row in then}
        rows = [Line.of(row, before.pop(row.whole, None), max(self._latest.span, 1e-9)) for row in now]
        rows += [Line.of(Row(row.labels, {}), row, 1.0) for row in before.values()]
        quiet = self.view != "now" or self._latest.counted  # rows are shown that neither fault nor change
        rows = [row for row in rows if row.faults or row.change or (quiet and row.resident)]
        if self.diff:
            return sorted((row for row in rows if row.change), key=lambda row: (-abs(row.change), row.name))
        if self.view == "now":
            return sorted(rows, key=lambda row: (-row.faults, -abs(row.change), row.name))
        return sorted(rows, key=lambda row: (-row.resident, row.name))

    def lines(self, width: int, height: int) -> list[str]:
        """The whole screen: at most `height` lines of at most `width` characters.

        The third line has the heads of the table, and is the only one that needs to stand out.
        """
        rows = self.rows()
        self._shown = max(1, height - _AROUND)
        self._offset = min(self._offset, max(0, len(rows) - self._shown))
        part = rows[self._offset : self._offset + self._shown]
        hidden = len(rows) - len(part)
        total = f"total of {number(len(rows))}" + f", {number(hidden)} hidden" * bool(hidden)
        sums = Line(total, *(sum(values) for values in list(zip(*rows, strict=True))[1:]))
        heads = [head for head in _COLUMNS[self.view] if head != "PSS" or any(row.pss for row in rows)]
        heads.sort(key=lambda head: self.diff and head != "SINCE")
        owners = "PROCESS" if self.view == "workers" else self._latest.by.upper()
        since = {"SINCE": f"SINCE {'MARK' if self._marked else 'START'}"}
        columns = [*(Column(since.get(head, head)) for head in heads), Column(owners, "name")]
        cells = [[*(_CELLS[head](row) for head in heads), row.name] for row in (*part, sums)]
        head, *table, last = TextTable(columns, cells).lines(width=width, unicode=True)
        if not rows:
            table, last = [self._nothing()], ""
        table += [""] * (self._shown - len(table))
        text = [self._first_line(), self._state(), head, *table, last, self._keys(width)]
        return [_short(one, width) for one in text][:height]

    def _first_line(self) -> str:
        latest = self._latest
        rate = f"{number(round(latest.recent / max(latest.span, 1e-9)))} faults/s"
        words = ["faults not recorded" if latest.counted else rate, f"{size(latest.resident)} resident",
                 f"{number(latest.major)} from disk", f"{number(latest.lost)} lost"]  # fmt: skip
        state = "ENDED" if latest.ended else self.view
        return f"{state}  {'  '.join(words)}  {printable(self.name, 60)}"

    def _state(self) -> str:
        latest = self._latest
        every = f" (refreshed every {duration(latest.span)})" if latest.span > 2 else ""
        return printable(latest.level or f"{latest.completeness}{every}", _LONGEST)

    def _nothing(self) -> str:
        return "nothing to show" if self._latest.time_ns else "waiting for the first snapshot"

    def _keys(self, width: int) -> str:
        long = "n now  b big  w workers  o owners  m mark  d diff  q quit"
        return long if width >= len(long) else long.replace("  ", " ").replace(" owners", "wner")


def _short(text: str, width: int) -> str:
    """The text in at most so many cells of a terminal."""
    return text if width_of(text) <= width else start_of(text, width - 3) + "..."[: max(width, 0)]
