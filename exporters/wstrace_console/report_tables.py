"""Builds the tables of a report from a Summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from wstrace.analysis.place_counts import PlaceCounts
from wstrace.analysis.summary import By, Row, Summary
from wstrace.analysis.symbols import UNKNOWN
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, TextTable, rows_to_show
from wstrace.text import base_name, number, printable, size
from wstrace.trace_info import TraceInfo
from wstrace_console.headline import counters, only_snapshots

TITLES: dict[str, str] = {
    "file": "file of the page",
    "pair": "file of the page  by  module",
    "module": "module of the instruction",
    "process": "process",
    "thread": "thread",
    "kind": "kind of memory",
    "section": "section of the page",
    "function": "function of the instruction",
}


def tables(
    summary: Summary, info: TraceInfo, *, by: str, top: int, places: PlaceCounts | None, pids: Sequence[int] = ()
) -> Iterator[TextTable]:
    """The tables to show: the one of `by`, or those of files, pairs, processes and threads that have something to say.

    Args:
        summary, info: the counts and the description of the trace.
        by: the only table to show; "" = all.
        top: the number of rows per table.
        places: the counts by section or function, replacing the summary's.
        pids: the processes that the user selected; () = all.
    """
    held = _Held(summary, info, pids)
    if counters(summary, info) or (places is None and not by and only_snapshots(summary, info, summary.total)):
        yield resident_table(summary, info, top)
    elif places is not None:
        yield place_table(places, held, top)
    elif by in TITLES:
        yield file_table(summary, held, top) if by == "file" else fault_table(summary, by, top)  # type: ignore[arg-type]
    else:
        yield file_table(summary, held, top)
        yield fault_table(summary, "pair", top)
        yield from _who(summary, top)
    if summary.written() and by in ("", "file"):
        yield written_table(summary, info, top)


def _who(summary: Summary, top: int) -> Iterator[TextTable]:
    """Processes and threads: omitted if there is only one, and threads also if each is its process."""
    threads = summary.top("thread", None)
    if summary.count("process") > 1:
        yield fault_table(summary, "process", top)
    if any(row.key[1] != row.key[2] for row in threads if len(row.key) == 3):
        yield fault_table(summary, "thread", top)


class _Held:
    """The column of pages that are still in memory: which processes it covers, and whether the others are known."""

    def __init__(self, summary: Summary, info: TraceInfo, pids: Sequence[int]) -> None:
        known, traced = summary.snapshots, len(pids) or summary.processes
        self.complete = len(known) >= traced
        self._info = info
        self.head = "still resident"
        if not self.complete and len(known) == 1:
            self.head = f"resident in {printable(known[0].name, 16) or UNKNOWN} ({known[0].pid})"
        elif not self.complete:
            self.head = f"resident in {number(len(known))} of {number(traced)} processes"

    def cell(self, pages: int) -> str:
        """Pages as a size. Pages that no process with a snapshot has may be in another one, so they are not known."""
        return _pages(pages, self._info) if pages or self.complete else "-"


def fault_table(summary: Summary, by: By, top: int) -> TextTable:
    """Faults, faults from disk if there are any, and the share of each row."""
    rows = summary.top(by, top + 1)
    total = _length(summary, by, rows, top + 1)
    rows = rows[: rows_to_show(total, top)]
    disk = summary.major > 0
    heads = ["faults", "from disk"] if disk else ["faults"]
    shown = [(_faults(row.total, row.major, disk=disk), row.total, row.share, _name(by, row)) for row in rows]
    return shares_table(TITLES[by], heads, shown, total=total)


def file_table(summary: Summary, held: _Held, top: int) -> TextTable:
    """Faults by file, with the pages that are still in memory if there is a snapshot."""
    if not summary.resident():
        return fault_table(summary, "file", top)
    pages: dict[str, int] = {}
    for file, _, n in summary.resident():
        pages[file] = pages.get(file, 0) + n
    brought = {row.label: (row.total, row.major) for row in summary.top("file", None)}
    return _beside(TITLES["file"], brought, pages, held, top)


def place_table(places: PlaceCounts, held: _Held, top: int) -> TextTable:
    """Faults by section, with the pages that are still in memory if there is a snapshot; or faults by function."""
    brought = {label: (minor + major, major) for label, (minor, major) in places.faults().items()}
    return _beside(TITLES[places.by], brought, places.resident(), held, top)


def _beside(
    title: str, brought: Mapping[str, tuple[int, int]], pages: Mapping[str, int], held: _Held, top: int
) -> TextTable:
    disk = any(major for _, major in brought.values())
    whole = max(sum(total for total, _ in brought.values()), 1)
    heads = ["faults", *(["from disk"] if disk else []), *([held.head] if pages else [])]
    order = sorted({*brought, *pages}, key=lambda name: (-brought.get(name, (0, 0))[0], -pages.get(name, 0), name))
    rows = []
    for name in order[: rows_to_show(len(order), top)]:
        total, major = brought.get(name, (0, 0))
        cells = [*_faults(total, major, disk=disk), *([held.cell(pages.get(name, 0))] if pages else [])]
        rows.append((cells, total, total / whole, name))
    return shares_table(title, heads, rows, total=len(order))


def resident_table(summary: Summary, info: TraceInfo, top: int) -> TextTable:
    """Resident pages by file, for systems that report no fault addresses."""
    return _page_table("resident", summary.resident(), info, top)


def written_table(summary: Summary, info: TraceInfo, top: int) -> TextTable:
    """Written pages by file."""
    return _page_table("written", summary.written(), info, top)


def _page_table(head: str, rows: Sequence[tuple[str, str, int]], info: TraceInfo, top: int) -> TextTable:
    whole = max(sum(n for _, _, n in rows), 1)
    shown = [([_pages(n, info)], n, n / whole, file) for file, _, n in rows[: rows_to_show(len(rows), top)]]
    return shares_table(f"file of the {head} pages", [head], shown, total=len(rows))


def shares_table(
    title: str, heads: Sequence[str], rows: Sequence[tuple[Sequence[str], float, float, str]], *, total: int
) -> TextTable:
    """A table of numbers, shares and bars with the names at the end; the rows with the most are highlighted.

    Args:
        title: what the names are: `file of the page`.
        heads: the headings of the numbers.
        rows: (numbers as text, value of the bar, share 0..1, name) per row.
        total: the number of rows, shown or not.
    """
    most = max((value for _, value, _, _ in rows), default=0)
    columns = [*(Column(head) for head in [*heads, "share"]), Column("", "bar"), Column(title, "name")]
    cells: list[list[Cell]] = [
        [*numbers, f"{share:6.1%}", Bar(value, most), name] for numbers, value, share, name in rows
    ]
    strong = [number for number, (_, value, _, _) in enumerate(rows) if value == most]
    return TextTable(columns, cells, total, strong)


def _pages(n: int, info: TraceInfo) -> str:
    """Pages as a size if the page size is known."""
    page_size = info.page_size
    return size(n * page_size) if page_size else f"{n:,} pages"


def _faults(total: int, major: int, *, disk: bool) -> list[str]:
    return [number(total), number(major)] if disk else [number(total)]


def _name(by: By, row: Row) -> str:
    """The row's name for people; the files of pairs are shortened to their last part."""
    if by == "pair" and len(row.key) == 2:
        return f"{base_name(str(row.key[0]))}  by  {row.key[1]}"
    if by == "thread" and len(row.key) == 3 and row.key[1] != row.key[2]:
        return f"{row.key[0] or UNKNOWN} (thread {row.key[2]} of {row.key[1]})"
    return row.label


def _length(summary: Summary, by: By, rows: Sequence[Row], top: int) -> int:
    """The number of rows in the whole table. Modules with the same name share a row, so all of them are counted."""
    if len(rows) < top:
        return len(rows)
    return len(summary.top(by, None)) if by in ("module", "pair") else summary.count(by)
