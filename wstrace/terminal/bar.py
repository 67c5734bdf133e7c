"""Bars and shades drawn with block characters, or with ASCII where the encoding lacks those."""

from __future__ import annotations

from typing import NamedTuple

from wstrace.text import encodable

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .-+#"


class Bar(NamedTuple):
    """A value as a fraction of a whole, drawn as a bar. `style` is its colour on a terminal, as rich names it."""

    value: float
    whole: float
    style: str = "cyan"

    def text(self, cells: int, *, unicode: bool) -> str:
        """The bar in at most `cells` cells: blocks with a resolution of 1/8 cell, or `#`; empty only for 0."""
        if self.value <= 0 or self.whole <= 0:
            return ""
        part = min(self.value / self.whole, 1.0)
        if not unicode:
            return "#" * max(round(cells * part), 1)
        full, eighths = divmod(max(int(8 * cells * part), 1), 8)
        return "█" * full + _EIGHTHS[eighths].strip()


def has_blocks(encoding: str | None) -> bool:
    """Whether an encoding has the characters for bars, shades and the ellipsis."""
    needed = f"{_EIGHTHS}{_SHADES}…"
    return encodable(needed, encoding) == needed


def shades(*, unicode: bool) -> str:
    """Five characters from empty to full."""
    return _SHADES if unicode else _PLAIN_SHADES
