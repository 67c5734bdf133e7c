"""What a notebook shows of an object: a headline and a table, as markup that does nothing.

It has no script and no link, and every name in it is escaped, for names come from the traced program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wstrace.guard import why
from wstrace.text import number, printable

#: Rows, sentences, and the characters of a name, a cell and a sentence: with all of them escaped, it is below 20 kB.
ROWS, SENTENCES, NAME, CELL, SENTENCE = 10, 4, 60, 16, 200


class Picture(NamedTuple):
    """What is shown of an object.

    sentences: the headline, and what stands below it. heads: those of the columns. rows: the cells of each, the name
    at last; all of them, the largest first; ROWS are shown.
    """

    sentences: Sequence[str]
    heads: Sequence[str] = ()
    rows: Sequence[tuple[str, ...]] = ()


def shown(tell: Callable[[], Picture]) -> str:
    """The markup of what `tell` returns. A representation must not fail: an error becomes a sentence."""
    try:
        return _markup(tell())
    except Exception as error:
        return _markup(Picture([f"it cannot be shown: {why(error)}"]))


def _markup(picture: Picture) -> str:
    first, *others = (_text(sentence, SENTENCE) for sentence in picture.sentences[:SENTENCES])
    head = f"<b>{first}</b>" + "".join(f"<br>{sentence}" for sentence in others)
    if not picture.rows:
        return f"<div>{head}</div>"
    rest = len(picture.rows) - ROWS
    more = f"<p>{number(rest)} more rows</p>" if rest > 0 else ""
    heads = "".join(f"<th>{_text(one, CELL)}</th>" for one in picture.heads)
    rows = "".join(map(_row, picture.rows[:ROWS]))
    return f"<div>{head}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"


def _row(row: tuple[str, ...]) -> str:
    cells = "".join(f'<td style="text-align:right">{_text(cell, CELL)}</td>' for cell in row[:-1])
    return f'<tr>{cells}<td style="text-align:left">{_text(row[-1], NAME)}</td></tr>'


def _text(text: str, limit: int) -> str:
    # What is unprintable grows when it is escaped, so it is shortened again. No text stands in an attribute.
    from html import escape  # 3 ms, which no trace needs that is not shown in a notebook

    return escape(printable(printable(text, limit), limit), quote=False)
