"""Tables of the commands: rich on a terminal, plain text in a pipe; bars by kind, a strip of residency per mapping."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.schema import (
    PAGE_COPY_ON_WRITE,
    PAGE_EXECUTE,
    PAGE_HUGE,
    PAGE_LOCKED,
    PAGE_SHARED,
    PAGE_SWAPPED,
    PAGE_WRITE,
    PAGE_ZERO,
)
from wstrace.text import encodable, printable
from wstrace_os.intervals import overlap
from wstrace_working_set.working_set import WorkingSet

BAR = 20
STRIP = 24
RICH_ROWS = 400  # rich takes a millisecond a row: longer tables are printed as text everywhere
_STYLES = {"file": "blue", "anon": "yellow", "heap": "red", "stack": "magenta", "shared memory": "cyan"}
Row = Sequence[str]


def table(heads: Row, rows: Iterable[Row], *, left: int = 1) -> str:
    """Columns aligned as text: the last `left` columns to the left, all others to the right."""
    cells = [list(heads), *(list(row) for row in rows)]
    width = [max(map(len, column)) for column in zip(*cells, strict=True)]
    first = len(heads) - left
    form = "  ".join(f"{{:{'>' if i < first else '<'}{w}}}" for i, w in enumerate(width[:-1])) + "  {}"
    return "\n".join(form.format(*row).rstrip() for row in cells)


def show(heads: Row, rows: Sequence[Row], *, left: int = 1, kinds: Sequence[str] = ()) -> None:
    """Prints a table to standard output; on a terminal the last column is cut to its width.

    Args:
        heads, rows: cells as text, names printable already.
        left: columns at the end that are aligned to the left.
        kinds: kind of memory of each row: the colour of its last but one cell, the bar.
    """
    if not sys.stdout.isatty() or len(rows) > RICH_ROWS:
        write(table(heads, rows, left=left))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    width = [max(map(len, column)) for column in zip(*[list(heads), *(list(row) for row in rows)], strict=True)]
    room = max(console.width - sum(width[:-1]) - 2 * (len(width) - 1), 16)
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i, head in enumerate(heads[:-1]):
        grid.add_column(head, justify="right" if i < len(heads) - left else "left", no_wrap=True, min_width=width[i])
    grid.add_column(heads[-1], no_wrap=True)
    for row, kind in zip_longest(rows, kinds[: len(rows)], fillvalue=""):
        cells = [Text(cell) for cell in row[:-1]]
        cells[-1].stylize(_STYLES.get(str(kind), ""))
        grid.add_row(*cells, Text(printable(row[-1], room)))
    console.print(grid)


def write(text: str) -> None:
    """Prints lines to standard output, in what its encoding has."""
    import click

    click.echo(encodable(text, sys.stdout.encoding))


def blocks() -> str:
    """Five marks from empty to full, in what standard output's encoding has."""
    marks = " ░▒▓█"
    return marks if encodable(marks, sys.stdout.encoding) == marks else " .-+#"


def bar(part: int, whole: int) -> str:
    """How much of the whole, as a bar of at most 20 cells."""
    return blocks()[-1] * (max(round(BAR * part / whole), 1 if part else 0) if whole else 0)


def strips(taken: WorkingSet) -> list[str]:
    """A strip for each mapping: its addresses from left to right, dark where pages are resident."""
    start, end = taken.mappings["start"], taken.mappings["end"]
    low = taken.runs["start"][taken.resident]
    high = low + taken.runs["pages"][taken.resident].astype("<u8") * np.uint64(taken.page_size)
    steps = np.arange(STRIP + 1, dtype="<u8")
    cells = start[:, None] + (end - start)[:, None] // np.uint64(STRIP) * steps[None, :]
    cells[:, -1] = end
    lengths = (cells[:, 1:] - cells[:, :-1]).astype(np.int64).ravel()
    filled = overlap(cells[:, :-1].ravel(), cells[:, 1:].ravel(), low, high)
    shade = np.ceil(filled * 4 / np.maximum(lengths, 1)).astype(int).reshape(-1, STRIP)
    marks = blocks()
    return ["".join(marks[cell] for cell in row) for row in shade.tolist()]


def protections(flags: NDArray[Any]) -> list[str]:
    """RO, RW or CW (copy on write) of each run."""
    cow, write = (flags & PAGE_COPY_ON_WRITE) != 0, (flags & PAGE_WRITE) != 0
    names: list[str] = np.select([cow, write], ["CW", "RW"], "RO").tolist()
    return names


def details(taken: WorkingSet, *, pages: bool = False) -> list[list[str]]:
    """The article's details list: address, size in KiB, S/P, RO/RW/CW, E, further attributes, owner; by address."""
    runs = taken.runs
    repeat = runs["pages"].astype(np.int64) if pages else np.ones(len(runs["start"]), np.int64)
    each = np.repeat(np.arange(len(repeat)), repeat)
    nth = (np.arange(len(each)) - np.repeat(np.cumsum(repeat) - repeat, repeat)).astype("<u8")
    start = runs["start"][each] + nth * np.uint64(taken.page_size)
    n_pages = np.ones(len(each), np.int64) if pages else runs["pages"].astype(np.int64)
    flags = runs["flags"][each]
    more = (PAGE_HUGE, "huge"), (PAGE_ZERO, "zero"), (PAGE_SWAPPED, "swapped"), (PAGE_LOCKED, "locked")
    words = {f: " ".join(word for bit, word in more if f & bit) for f in np.unique(flags).tolist()}
    names = {row: printable(taken.owner(row)) for row in np.unique(runs["row"]).tolist()}
    shares = runs["shares"][each].tolist() if "shares" in runs else None
    rows = [
        [f"{at:x}", f"{kib:,}", "S" if f & PAGE_SHARED else "P", p, "E" if f & PAGE_EXECUTE else "", words[f], names[r]]
        for at, kib, f, p, r in zip(
            start.tolist(), (n_pages * taken.page_size // 1024).tolist(), flags.tolist(), protections(flags),
            runs["row"][each].tolist(), strict=True,
        )
    ]  # fmt: skip
    if shares is not None:
        for row, count in zip(rows, shares, strict=True):
            row.insert(5, "" if count == 255 else str(count))
    return rows
