"""The result of `Trace.blame()` as a notebook shows it."""

from __future__ import annotations

from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.words import first_lines
from wstrace.notebook import Picture, shown
from wstrace.text import size


class BlameInNotebooks(Blame):
    """A Blame that notebooks show: the answer, how complete it is, and who holds the most by line."""

    def _repr_html_(self) -> str:
        return shown(self._picture)

    def _picture(self) -> Picture:
        of = "resident" if self.total else "brought"
        names = dict.fromkeys((of, "private", "brought"))
        rows = self.rows("line", sort=of)
        whole = max(sum(getattr(row, of) for row in rows), 1)
        cells = [(*(size(getattr(row, name)) for name in names), f"{getattr(row, of) / whole:.1%}", row.label)
                 for row in rows]  # fmt: skip
        return Picture(first_lines(self), [*names, "share", "own line"], cells)
