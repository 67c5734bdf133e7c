"""What a notebook shows of an object: a headline and a table, as markup that does nothing.

It has no script and no link, and every name in it is escaped, for names come from the traced program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wstrace.errors import why
from wstrace.text import number, printable

#: Rows, sentences, and the characters of a name, a cell and a sentence: with all of them escaped, it is below 20 kB.
ROWS, SENTENCES, NAME, CELL, SENTENCE = 10, 4, 60, 16, 200


#: The headline and what stands below it; the heads of the columns; the cells of each row, the name at last: all rows,
#: the largest first, of which ROWS are shown.
Picture = tuple[Sequence[str], Sequence[str], Sequence[tuple[str, ...]]]


def shown(picture: Callable[[], Picture]) -> str:
    """The markup of a picture. A representation must not fail: an error becomes a sentence."""
    try:
        sentences, heads, rows = picture()
    except Exception as error:
        sentences, heads, rows = [f"it cannot be shown: {why(error)}"], (), ()
    text = "<br>".join(_text(sentence, SENTENCE) for sentence in sentences[:SENTENCES])
    if not rows:
        return f"<div>{text}</div>"
    rest = len(rows) - ROWS
    more = f"<p>{number(rest)} more rows</p>" if rest > 0 else ""
    head = "".join(f"<th>{_text(one, CELL)}</th>" for one in heads)
    body = "".join(map(_row, rows[:ROWS]))
    return f"<div>{text}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"


def _row(row: tuple[str, ...]) -> str:
    cells = "".join(f'<td style="text-align:right">{_text(cell, CELL)}</td>' for cell in row[:-1])
    return f'<tr>{cells}<td style="text-align:left">{_text(row[-1], NAME)}</td></tr>'


def _text(text: str, limit: int) -> str:
    # What is unprintable grows when it is escaped, so it is shortened again. No text stands in an attribute.
    from html import escape  # 3 ms, which no trace needs that is not shown in a notebook

    return escape(printable(printable(text, limit), limit), quote=False)
