"""Builds the tables of a report from a Summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from wstrace.analysis.headline import counters, only_snapshots
from wstrace.analysis.place_counts import PlaceCounts
from wstrace.analysis.sampled import Estimates
from wstrace.analysis.summary import By, Row, Summary, place_rows
from wstrace.analysis.symbols import UNKNOWN
from wstrace.analysis.tally import NO_SAMPLE, first_rows
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, TextTable, rows_to_show
from wstrace.text import base_name, number, printable, size
from wstrace.trace_info import TraceInfo

Sort = Literal["", "resident", "faults", "major"]
#: The figures of a row of pages and faults.
_RESIDENT, _FAULTS, _SAMPLES, _MAJOR = range(4)

TITLES: dict[str, str] = {
    "file": "file of the page",
    "pair": "file of the page  by  module",
    "module": "module of the instruction",
    "process": "process",
    "thread": "thread",
    "kind": "kind of memory",
    "cgroup": "control group",
    "section": "section of the page",
    "function": "function of the instruction",
}


def tables(
    summary: Summary,
    info: TraceInfo,
    *,
    by: str,
    top: int,
    places: PlaceCounts | None,
    pids: Sequence[int] = (),
    sort: Sort = "",
    sampled: Estimates | None = None,
) -> Iterator[TextTable]:
    """The tables to show: the one of `by`, or those of files, pairs, processes and threads that have something to say.

    Args:
        summary, info: the counts and the description of the trace.
        by: the only table to show; "" = all.
        top: the number of rows per table.
        places: the counts by section or function, replacing the summary's.
        pids: the processes that the user selected; () = all.
        sort: what the rows are in order of; "" = resident bytes where they are known of all processes, else faults.
        sampled: what makes estimates of rows of samples; None = each fault was recorded.
    """
    held = _Held(summary, info, pids)
    if counters(summary, info) or (places is None and not by and only_snapshots(summary, info, summary.total)):
        yield resident_table(summary, info, top)
    elif places is not None:
        yield place_table(places, held, top, sort, sampled)
    elif by in TITLES:
        if by == "file":
            yield file_table(summary, held, top, sort, sampled)
        else:
            yield fault_table(summary, by, top, sort, sampled)  # type: ignore[arg-type]
    else:
        yield file_table(summary, held, top, sort, sampled)
        yield fault_table(summary, "pair", top, sort, sampled)
        yield from _who(summary, top, sort, sampled)
    if summary.written() and by in ("", "file"):
        yield written_table(summary, info, top)


def _who(summary: Summary, top: int, sort: Sort, sampled: Estimates | None) -> Iterator[TextTable]:
    """Control groups, processes, threads: omitted if there is only one, and threads also if each is its process."""
    threads = summary.top("thread", None)
    if summary.count("cgroup") > 1:
        yield fault_table(summary, "cgroup", top, sort, sampled)
    if summary.count("process") > 1:
        yield fault_table(summary, "process", top, sort, sampled)
    if any(row.key[1] != row.key[2] for row in threads if len(row.key) == 3):
        yield fault_table(summary, "thread", top, sort, sampled)


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


def fault_table(summary: Summary, by: By, top: int, sort: Sort = "", sampled: Estimates | None = None) -> TextTable:
    """Faults, those from disk if there are any, and the share of each row; samples if these are
    estimates.
    """
    if sort == "major" or sampled is not None:
        rows = summary.top(by, None) if sampled is None else sampled.rows(summary.top(by, None))
        total = len(rows)
        if sort == "major":
            rows = sorted(rows, key=lambda row: (row.label == NO_SAMPLE, -row.major, -row.total, row.label))
    else:
        rows = summary.top(by, top + 1)
        total = _length(summary, by, rows, top + 1)
    whole = summary.total if sampled is None else sampled.total
    major = summary.major if sampled is None else sum(row.major for row in rows)
    rows = first_rows(rows, rows_to_show(total, top))
    disk, told = summary.major > 0, sampled is not None
    heads = ["faults", *["samples"] * told, *["from disk"] * disk]

    def cells(faults: int, samples: int, of_disk: int) -> list[str]:
        return [number(faults), *[number(samples)] * told, *[number(of_disk)] * disk]

    shown = [(cells(row.total, row.samples, row.major), row.total, row.share, _name(by, row)) for row in rows]
    totals = cells(whole, summary.total, major)
    return shares_table(TITLES[by], heads, shown, total=total, totals=totals)


def file_table(summary: Summary, held: _Held, top: int, sort: Sort = "", sampled: Estimates | None = None) -> TextTable:
    """Faults by file, with the pages that are still in memory if there is a snapshot."""
    if not summary.resident():
        return fault_table(summary, "file", top, sort, sampled)
    pages: dict[str, int] = {}
    for file, _, n in summary.resident():
        pages[file] = pages.get(file, 0) + n
    rows = summary.top("file", None)
    return _beside(TITLES["file"], rows if sampled is None else sampled.rows(rows), pages, held, top, sort)


def place_table(
    places: PlaceCounts, held: _Held, top: int, sort: Sort = "", sampled: Estimates | None = None
) -> TextTable:
    """Faults by section, with the pages that are still in memory if there is a snapshot; or faults by function."""
    rows = place_rows(places)
    rows = rows if sampled is None else sampled.rows(rows)
    return _beside(TITLES[places.by], rows, places.resident(), held, top, sort)


def _beside(
    title: str, brought: Sequence[Row], pages: Mapping[str, int], held: _Held, top: int, sort: Sort
) -> TextTable:
    """Faults and resident pages; what the rows are in order of comes first, and the shares are of it."""
    faults = {row.label: (row.total, row.samples, row.major) for row in brought}
    names = {*faults, *pages}
    figures = {name: (pages.get(name, 0), *faults.get(name, (0, 0, 0))) for name in names}
    whole = [sum(figure[column] for figure in figures.values()) for column in range(4)]
    if not sort:
        sort = "resident" if pages and held.complete else "faults"
    shown = [_RESIDENT, _FAULTS] if sort == "resident" else [_FAULTS]
    shown += [figure for figure in (_SAMPLES, _MAJOR) if whole[figure]]
    shown += [_RESIDENT] if pages and sort != "resident" else []
    first = {"resident": _RESIDENT, "major": _MAJOR}.get(sort, _FAULTS)
    order = sorted(
        names,
        key=lambda name: (name == NO_SAMPLE, -figures[name][first], *(-figures[name][n] for n in shown), name),
    )
    n_shown = rows_to_show(len(order), top)
    order = [*order[:n_shown], *[NO_SAMPLE] * (NO_SAMPLE in order[n_shown:])]

    def cells(figure: Sequence[int]) -> list[str]:
        return [(held.cell if n == _RESIDENT else number)(figure[n]) for n in shown]

    share_of = first if first in shown else _FAULTS
    rows = [(cells(figure := figures[name]), figure[share_of], figure[share_of] / max(whole[share_of], 1), name)
            for name in order]  # fmt: skip
    words = {_RESIDENT: held.head, _FAULTS: "faults", _SAMPLES: "samples", _MAJOR: "from disk"}
    return shares_table(title, [words[n] for n in shown], rows, total=len(names), totals=cells(whole))


def resident_table(summary: Summary, info: TraceInfo, top: int) -> TextTable:
    """Resident pages by file, for systems that report no fault addresses."""
    return _page_table("resident", summary.resident(), info, top)


def written_table(summary: Summary, info: TraceInfo, top: int) -> TextTable:
    """Written pages by file."""
    return _page_table("written", summary.written(), info, top)


def _page_table(head: str, rows: Sequence[tuple[str, str, int]], info: TraceInfo, top: int) -> TextTable:
    whole = max(sum(n for _, _, n in rows), 1)
    shown = [([_pages(n, info)], n, n / whole, file) for file, _, n in rows[: rows_to_show(len(rows), top)]]
    return shares_table(f"file of the {head} pages", [head], shown, total=len(rows), totals=[_pages(whole, info)])


def shares_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[tuple[Sequence[str], float, float, str]],
    *,
    total: int,
    totals: Sequence[str] = (),
) -> TextTable:
    """A table of numbers, shares and bars with the names at the end; the rows with the most are highlighted.

    Args:
        title: what the names are: `file of the page`.
        heads: the headings of the numbers.
        rows: (numbers as text, value of the bar, share 0..1, name) per row.
        total: the number of rows, shown or not.
        totals: the numbers of all rows together, for a last row where there is more than one; () = none.
    """
    most = max((value for _, value, _, _ in rows), default=0)
    columns = [*(Column(head) for head in [*heads, "share"]), Column("", "bar"), Column(title, "name")]
    cells: list[list[Cell]] = [
        [*numbers, f"{share:6.1%}", Bar(value, most), name] for numbers, value, share, name in rows
    ]
    strong = [place for place, (_, value, _, _) in enumerate(rows) if value == most]
    if totals and total > 1:
        rest = f" (of {number(total)} rows)" if total > len(rows) else ""
        cells.append([*totals, "100.0%", Bar(0, most), f"Total{rest}"])
        total = len(cells)
    return TextTable(columns, cells, total, strong)


def _pages(n: int, info: TraceInfo) -> str:
    """Pages as a size if the page size is known."""
    page_size = info.page_size
    return size(n * page_size) if page_size else f"{n:,} pages"


def _name(by: By, row: Row) -> str:
    """The row's name for people; the files of pairs are shortened to their last part."""
    if by == "pair" and len(row.key) == 2:
        return f"{base_name(str(row.key[0]))}  by  {row.key[1]}"
    if by == "thread" and len(row.key) == 3 and row.key[1] != row.key[2]:
        return f"{row.key[0] or UNKNOWN} (thread {row.key[2]} of {row.key[1]})"
    return f"{row.label}, {row.role}" if row.role else row.label


def _length(summary: Summary, by: By, rows: Sequence[Row], top: int) -> int:
    """The number of rows in the whole table. Modules with the same name share a row, so all of them are counted."""
    if len(rows) < top:
        return len(rows)
    return len(summary.top(by, None)) if by in ("module", "pair") else summary.count(by)
