"""What a notebook shows of an object: the lines that a terminal shows, as markup that does nothing.

It has no script and no link, and every name in it is escaped, for names come from the traced program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wstrace.errors import why
from wstrace.terminal import Column, TextTable
from wstrace.text import printable

#: Rows, and the characters of a sentence and of a line: with all of them escaped, it is below 20 kB.
ROWS, SENTENCE, LINE = 10, 200, 100

#: The headline and what stands below it; the heads of the columns; the cells of each row, the name at last: all rows,
#: the largest first, of which ROWS are shown.
Picture = tuple[Sequence[str], Sequence[str], Sequence[tuple[str, ...]]]


def shown(picture: Callable[[], Picture]) -> str:
    """The markup of a picture. A representation must not fail: an error becomes a sentence."""
    from html import escape  # 3 ms, which no trace needs that is not shown in a notebook

    table: list[str] = []
    try:
        sentences, heads, rows = picture()
        if rows:
            columns = [Column(head, "name" if head == heads[-1] else "number") for head in heads]
            table = ["", *TextTable(columns, rows[:ROWS], len(rows)).lines(width=LINE, unicode=True)]
    except Exception as error:
        sentences = [f"it cannot be shown: {why(error)}"]
    # What is unprintable grows when it is escaped, so it is shortened again.
    first = [printable(printable(sentence, SENTENCE), SENTENCE) for sentence in sentences]
    text = escape("\n".join([*first, *table]), quote=False)
    return f"<pre>{text}</pre>"
