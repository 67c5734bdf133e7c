"""Bars and strips of block characters, and the plain characters that stand for them in poorer encodings."""

from __future__ import annotations

from dataclasses import dataclass

from wstrace.text import encodable

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .-+#"


@dataclass(frozen=True, slots=True)
class Bar:
    """How much of the whole a value is; drawn as wide as its column. style is its colour on a terminal."""

    value: float
    whole: float
    style: str = "cyan"

    def text(self, cells: int, *, unicode: bool) -> str:
        """The bar in at most so many cells: blocks to an eighth of a cell, or `#`; never nothing for something."""
        if self.value <= 0 or self.whole <= 0:
            return ""
        part = min(self.value / self.whole, 1.0)
        if not unicode:
            return "#" * max(round(cells * part), 1)
        full, eighths = divmod(max(int(8 * cells * part), 1), 8)
        return "█" * full + _EIGHTHS[eighths].strip()


def has_blocks(encoding: str | None) -> bool:
    """Whether that encoding has what bars, strips and cut names are drawn with."""
    needed = f"{_EIGHTHS}{_SHADES}…"
    return encodable(needed, encoding) == needed


def shades(*, unicode: bool) -> str:
    """Five marks from empty to full."""
    return _SHADES if unicode else _PLAIN_SHADES
