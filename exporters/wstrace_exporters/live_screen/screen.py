"""The screen as text: which rows and numbers of a look a view shows, and what keys change. It knows no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wstrace.analysis.compare import held
from wstrace.analysis.dimensions import Row as Owner
from wstrace.terminal.elide import elide, start_of, width_of
from wstrace.text import duration, estimate_mark, number, printable, signed, size
from wstrace_exporters.live_screen.look import OWNERS, Look

#: key -> view
VIEWS = {"n": "now", "b": "big", "w": "workers"}
#: Columns are left out from the right until a name has so many characters.
_LEAST_NAME = 20
_LONGEST_NAME, _LONGEST_FILTER = 300, 60
#: Lines that are not rows: title, state, heads, sum, keys.
_AROUND = 5


class Column(NamedTuple):
    """A column of numbers: its head, and the text of a row's cell."""

    head: str
    cell: Callable[[Row], str]


@dataclass(slots=True)
class Row:
    """A row: its name, its numbers now and at the moment that it is compared with. Sizes in bytes."""

    name: str
    resident: int = 0
    private: int = 0
    pss: float | None = None
    faults: float = 0.0
    major: float = 0.0
    before: int = 0
    estimated: int = 0

    @property
    def change(self) -> int:
        """What is resident more than then."""
        return self.resident - self.before


class Screen:
    """What is shown, and how keys change that.

    Args:
        name: what is traced.

    Attributes:
        view: the name of the view. by: what the owners are. frozen, diff: whether these are on. done: after `q`.
        typing: whether keys are letters of the filter.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.view, self.by = "now", OWNERS[0]
        self.frozen = self.diff = self.done = self.typing = False
        self.filter = ""
        self._look = self._first = Look()
        self._mark: Look | None = None
        self._offset = 0
        self._shown = 1

    def take(self, look: Look) -> None:
        """Takes the latest look, unless the screen is frozen."""
        if self.frozen or look is self._look or not look.time_ns:
            return
        if not self._first.resident:  # nothing can have grown since before a look at pages
            self._first = look
        self._look = look

    # -- keys --------------------------------------------------------------------------------------------------------

    def press(self, key: str, character: str | None = None) -> None:
        """Answers a key: its name (`space`, `down`, `q`), and the character that it writes."""
        if self.typing:
            self._type(key, character)
        elif character in VIEWS:
            self.view, self._offset = VIEWS[character], 0
        elif character == "o":
            self.by = OWNERS[(OWNERS.index(self.by) + 1) % len(OWNERS)]
            self.frozen, self._offset = False, 0
        elif character == " " or key == "space":
            self.frozen = not self.frozen
        elif character == "m":
            self._mark = self._look
        elif character == "d":
            self.diff, self._offset = not self.diff, 0
        elif character == "/":
            self.typing, self.filter, self._offset = True, "", 0
        elif key == "escape":
            self.filter = ""
        elif character == "q" or key == "ctrl+c":
            self.done = True
        else:
            self._scroll(key)

    def _type(self, key: str, character: str | None) -> None:
        if key == "ctrl+c":
            self.done = True
        elif key in ("enter", "escape"):
            self.typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key in ("backspace", "ctrl+h"):
            self.filter = self.filter[:-1]
        elif character and character.isprintable() and len(self.filter) < _LONGEST_FILTER:
            self.filter += character

    def _scroll(self, key: str) -> None:
        step = {"down": 1, "up": -1, "pagedown": self._shown, "pageup": -self._shown, "home": -(1 << 30),
                "end": 1 << 30}.get(key, 0)  # fmt: skip
        self._offset = max(0, self._offset + step)

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def base(self) -> Look:
        """The look that changes are counted from: the mark, or the first one where no mark knows these owners."""
        mark, owned = self._mark, self.view != "workers"
        return self._first if mark is None or (owned and mark.owned(self._look.by) is None) else mark

    def rows(self) -> list[Row]:
        """The rows of the view, in order, without those that the filter leaves out."""
        rows = self._owners()
        if self.filter:
            rows = [row for row in rows if self.filter.lower() in row.name.lower()]
        if self.diff:
            return sorted((row for row in rows if row.change), key=lambda row: (-abs(row.change), row.name))
        if self.view == "now":
            return sorted(rows, key=lambda row: (-row.faults, -abs(row.change), row.name))
        return sorted(rows, key=lambda row: (-row.resident, row.name))

    def _owners(self) -> list[Row]:
        look, base = self._look, self.base
        rows_now, then = (one.workers if self.view == "workers" else one.owned(look.by) or [] for one in (look, base))
        before = {row.whole: row for row in then}
        rows = [_row(row, before.pop(row.whole, None), look.span) for row in rows_now]
        gone = [_row(Owner(row.labels, {}), row, 1.0) for row in before.values() if row["resident"]]
        rows = [row for row in (*rows, *gone) if row.resident or row.faults or row.change]
        return [row for row in rows if row.faults or row.change] if self.view == "now" and not look.counted else rows

    # -- text --------------------------------------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> list[str]:
        """The whole screen: at most `height` lines of at most `width` characters.

        The third line has the heads of the table, and is the only one that needs to stand out.
        """
        rows = self.rows()
        self._shown = max(1, height - _AROUND)
        self._offset = min(self._offset, max(0, len(rows) - self._shown))
        part = rows[self._offset : self._offset + self._shown]
        columns = self._columns(width)
        total = _total(rows)
        texts = [[column.head, *(column.cell(row) for row in (*part, total))] for column in columns]
        widths = [max(map(len, column)) for column in texts]
        while columns[1:] and width - sum(w + 2 for w in widths) < _LEAST_NAME:
            columns, widths = columns[:-1], widths[:-1]

        def line(cells: Sequence[str], name: str) -> str:
            return "".join(f"{cell:>{w}}  " for cell, w in zip(cells, widths, strict=True)) + name

        names = elide([printable(row.name, _LONGEST_NAME) for row in part], width - sum(w + 2 for w in widths))
        cells = [[column.cell(row) for column in columns] for row in part]
        table = [line(*row) for row in zip(cells, names, strict=True)]
        if not rows:
            table = [self._nothing()]
        table += [""] * (self._shown - len(table))
        hidden = len(rows) - len(part)
        sums = line([column.cell(total) for column in columns],
                    f"total of {number(len(rows))}" + f", {number(hidden)} hidden" * bool(hidden))  # fmt: skip
        head = line([column.head for column in columns], self._title())
        text = [self._first_line(), self._state(), head, *table, sums if rows else "", self._keys(width)]
        return [_short(one, width) for one in text][:height]

    def _columns(self, width: int) -> list[Column]:
        """The columns of the view, the most important first."""
        since = "MARK" if self.base is self._mark else "START"
        rate = Column("FAULTS/S", lambda row: number(round(row.faults)))
        major = Column("DISK/S", lambda row: number(round(row.major)))
        held = Column("RESIDENT", lambda row: estimate_mark(row.resident, row.estimated) + size(row.resident))
        change = Column(f"SINCE {since}", lambda row: signed(row.change))
        private = Column("PRIVATE", lambda row: size(row.private))
        pss = Column("PSS", lambda row: "" if row.pss is None else size(row.pss))
        shared = Column("SHARED", lambda row: f"{1 - row.private / row.resident:.0%}" if row.resident else "")
        known = [] if self._look.counted else [rate, major]
        found = {"now": [*known, change, held], "big": [held, change, private, *known[:1]],
                 "workers": [held, shared, change, private, *known[:1], pss]}[self.view]  # fmt: skip
        has_pss = self.view == "workers" and any("pss" in row.values for row in self._look.workers)
        found = [one for one in found if one is not pss or has_pss]
        return [change, *(one for one in found if one is not change)] if self.diff else found

    def _title(self) -> str:
        owners = "PROCESS" if self.view == "workers" else self.by.upper()
        return f"{owners}  (filter: {printable(self.filter)})" if self.filter or self.typing else owners

    def _first_line(self) -> str:
        look = self._look
        words = [f"{number(round(look.recent / max(look.span, 1e-9)))} faults/s", f"{size(look.resident)} resident",
                 f"{number(look.major)} from disk", f"{number(look.lost)} lost"]  # fmt: skip
        state = "ENDED" if look.ended else "FROZEN" if self.frozen else self.view
        return f"{state}  {'  '.join(words)}  {printable(self.name, 60)}"

    def _state(self) -> str:
        look = self._look
        if look.level:
            lacks = "who took these faults is not known; " if look.counted else ""
            return printable(f"{lacks}{look.level}", _LONGEST_NAME)
        every = f" (a look every {duration(look.span)})" if look.span > 2 else ""
        return printable(look.completeness, _LONGEST_NAME) + every

    def _nothing(self) -> str:
        if not self._look.time_ns:
            return "waiting for the first look"
        if self.filter:
            return "no row has the filter's text; Esc clears it"
        if self.diff:
            return f"nothing has changed since the {'mark' if self.base is self._mark else 'start'}"
        return "no fault and no growth" if self.view == "now" else "no page is known"

    def _keys(self, width: int) -> str:
        if self.typing:
            return f"filter: {printable(self.filter)}_   Enter keeps it, Esc clears it"
        long = "n now  b big  w workers  o owners  space freeze  m mark  d diff  / filter  q quit"
        short = "n b w o views  space m d / q"
        return (
            long if width >= len(long) else long.replace("  ", " ").replace(" owners", "wner") if width >= 80 else short
        )


def _row(row: Owner, before: Owner | None, span: float) -> Row:
    if row.of("reason"):
        return Row(row.whole, held(row), row["private"], before=held(before) if before else 0)
    package = row.of("package")
    name = row.label if not package or package in row.label else f"{row.label}  {package}"
    span = max(span, 1e-9)
    return Row(name, held(row), row["private"], row.values.get("pss"), row["faults"] / span, row["from_disk"] / span,
               held(before) if before else 0, row["estimated"])  # fmt: skip


def _total(rows: Sequence[Row]) -> Row:
    total = Row("")
    for row in rows:
        total.resident, total.private, total.before = (
            total.resident + row.resident, total.private + row.private, total.before + row.before)  # fmt: skip
        total.faults, total.major = total.faults + row.faults, total.major + row.major
        total.pss = total.pss if row.pss is None else (total.pss or 0) + row.pss
    return total


def _short(text: str, width: int) -> str:
    """The text in at most so many cells of a terminal."""
    return text if width_of(text) <= width else start_of(text, width - 3) + "..."[: max(width, 0)]
