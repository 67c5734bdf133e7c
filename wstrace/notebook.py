"""What a notebook shows of an object: a headline, a bar of the whole and a table, as markup that does nothing.

It has no script and no link, and every name in it is escaped, for names come from the traced program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wstrace.guard import why
from wstrace.text import number, printable

#: Rows, sentences, and the characters of a name, a cell and a sentence: with all of them escaped, it is below 20 kB.
ROWS, SENTENCES, NAME, CELL, SENTENCE = 10, 4, 60, 16, 200
_WIDTH = 1000


class Row(NamedTuple):
    """A row of a table: its name, its cells, and how large its part of the bar is."""

    name: str
    cells: tuple[str, ...]
    part: float


class Picture(NamedTuple):
    """What is shown of an object.

    sentences: the headline, and what stands below it. heads: those of the cells, and at last that of the names. rows:
    all of them, the largest first; ROWS are shown.
    """

    sentences: Sequence[str]
    heads: Sequence[str] = ()
    rows: Sequence[Row] = ()


def shown(tell: Callable[[], Picture]) -> str:
    """The markup of what `tell` returns. A representation must not fail: an error becomes a sentence."""
    try:
        return _markup(tell())
    except Exception as error:
        return _markup(Picture([f"it cannot be shown: {why(error)}"]))


def _markup(picture: Picture) -> str:
    first, *others = (_text(sentence, SENTENCE) for sentence in picture.sentences[:SENTENCES])
    told = "".join(f"<br>{sentence}" for sentence in others)
    if not picture.rows:
        return f"<div><b>{first}</b>{told}</div>"
    rest = len(picture.rows) - ROWS
    more = f"<p>{number(rest)} more rows</p>" if rest > 0 else ""
    heads = "".join(f"<th>{_text(head, CELL)}</th>" for head in picture.heads)
    rows = "".join(map(_row, picture.rows[:ROWS]))
    bar = _bar(picture.rows)
    return (
        f"<div><b>{first}</b>{told}{bar}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"
    )


def _row(row: Row) -> str:
    cells = "".join(f'<td style="text-align:right">{_text(cell, CELL)}</td>' for cell in row.cells)
    return f'<tr>{cells}<td style="text-align:left">{_text(row.name, NAME)}</td></tr>'


def _bar(rows: Sequence[Row]) -> str:
    """The parts of the whole beside each other in the order of the rows, each fainter than the one before."""
    whole, at, parts = sum(row.part for row in rows), 0.0, []
    for place, row in enumerate(rows[:ROWS]):
        width = _WIDTH * row.part / whole if whole > 0 else 0.0
        if width > 0:
            parts.append(
                f'<rect x="{at:.1f}" width="{width:.1f}" height="20" fill="currentColor" fill-opacity="'
                f'{0.8 - 0.07 * place:.2f}" stroke="white"><title>{_text(row.name, NAME)}</title></rect>'
            )
        at += width
    return (f'<svg viewBox="0 0 {_WIDTH} 20" width="100%" height="20" preserveAspectRatio="none" role="img">'
            f"{''.join(parts)}</svg>")  # fmt: skip


def _text(text: str, limit: int) -> str:
    # What is unprintable grows when it is escaped, so it is shortened again. No text stands in an attribute.
    from html import escape  # 3 ms, which no trace needs that is not shown in a notebook

    return escape(printable(printable(text, limit), limit), quote=False)
