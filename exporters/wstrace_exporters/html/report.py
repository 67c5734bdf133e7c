"""Writes a trace as a report: one page with pictures, with the numbers of `report`."""

from __future__ import annotations

from typing import IO, Any

from wstrace import open_trace
from wstrace.analysis.compare import Comparison
from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label, Row, dimensions
from wstrace.analysis.report import Report, moment_words, why_no_pages
from wstrace.analysis.timeline import Timeline
from wstrace.text import estimate_mark, number, plural, printable, signed, size
from wstrace.trace import Trace
from wstrace_exporters.html.document import document, name
from wstrace_exporters.html.pictures.icicle import growth, icicle
from wstrace_exporters.html.pictures.resident import whole, workers
from wstrace_exporters.html.pictures.timeline import MARKS, Times, marks, spans, timeline

#: The rows of the table of two runs.
ROWS = 100


def write(trace: Trace, file: IO[bytes], *, at: str = "", before: str = "", by: str = "") -> int:
    """Writes the report; returns the number of faults, of two runs that of the rows that differ.

    file: an open binary file. at: the moment of which the resident pages count: `peak`, `exit`, `start` or the text of
    a mark; "" = the peak. before: the trace file of an earlier run, with which this one is compared. by: the dimension
    of that.
    """
    if before:
        with open_trace(before) as first:
            compared = first.diff(trace, at or None)
            rows, data = _difference(compared, by)
        file.write(document(f"wstrace: {compared.first.name} and {compared.second.name}", data))
        return rows
    found = trace.report(at=at)
    of = found.of or Composition(trace, at or "peak")  # without pages: the faults alone
    file.write(document(f"wstrace: {name(trace.info.name)}", _page(trace, found, of)))
    return len(of.fault_cells)


def _page(trace: Trace, found: Report, of: Composition) -> dict[str, Any]:
    """The data of the page. found: the report of the trace, with the moment of the pictures."""
    times = Times(of)
    arrivals = Timeline(of, times.edges)
    time = {**timeline(arrivals, times), **marks(of, times), **spans(of, times)}
    return {
        **_headline(trace, found, of),
        "why": _why(trace, of, times, time),
        "whole": whole(of),
        "time": time,
        "tree": icicle(of),
        "workers": workers(of, times),
    }


def _difference(found: Comparison, by: str) -> tuple[int, dict[str, Any]]:
    """The number of rows that differ, and the data of the page of two runs: the lines and the table of `diff`."""
    report, why = found.report(by), found.why_not("stack")

    def cells(row: Row) -> list[str]:
        amounts = [(size if key in ("first", "second") else signed)(row[key]) for key in report.measures]
        return [estimate_mark(row["change"], row["estimated"]) + amounts[0], *amounts[1:], name(row.label)]

    total = Row([Label(f"Total (of {plural(len(report.rows), 'row')})")], report.total)
    return len(report.rows), {
        "headline": [report.answer, report.completeness],
        "losses": [],
        "notes": report.notes,
        "about": f"first: {found.first.name}; second: {found.second.name}",
        "why": {"stacks": [], "faults": why},
        "weights": [["grown", "more"], ["gone", "less"], ["second", "in the second"], ["first", "in the first"]],
        "growth": [[*report.measures, dimensions()[report.by[0]].title], [*map(cells, (*report.rows[:ROWS], total))]],
        "tree": None if why else growth(found),
    }


def _headline(trace: Trace, found: Report, of: Composition) -> dict[str, Any]:
    """The first lines of `report`, and what was lost."""
    words = " ".join(trace.info.command)
    about = [printable(words, 400), f"pages of {size(of.page_size)}", moment_words(of.inputs.moment)]
    return {
        "headline": [found.answer, found.completeness],
        "losses": [note for note in found.notes if note.startswith("lost ")],
        "notes": [note.removeprefix("note ").lstrip() for note in found.notes if not note.startswith("lost ")],
        "about": "; ".join(part for part in about if part),
    }


def _why(trace: Trace, of: Composition, times: Times, time: dict[str, Any]) -> dict[str, Any]:
    """What each picture cannot show, in words."""
    faults = len(of.fault_cells)
    none = "the trace holds no faults"
    if trace.info.level_name == "counters":
        none = "the system gave only how many faults there were"
    timeline_ = []
    if time["windows"]:
        timeline_.append(
            "faults have no times of their own here: each stands at the beginning of the window in which it was read"
        )
    if not of.rss:
        timeline_.append(f"what is still resident is not known: {why_no_pages(trace)}")
    if time["all_marks"] > MARKS:
        timeline_.append(f"the first {MARKS} of {number(time['all_marks'])} marks are drawn")
    if len(time["spans"]) < time["seen_spans"]:
        timeline_.append(f"the longest {len(time['spans'])} of {number(time['seen_spans'])} spans are drawn")
    if outside := time["all_spans"] - time["seen_spans"]:
        timeline_.append(
            f"{plural(outside, 'span')} not drawn: outside of the time from the first fault to the last one"
        )
    stacks = []
    if faults and not len(of.inputs.names.tree):
        stacks.append("no stacks were recorded: below a process and thread stands the function of the instruction")
    pages = why_no_pages(trace) if not of.rss else ""
    return {"pages": pages, "faults": none, "times": "its faults have no times" if faults else none,
            "timeline": timeline_, "stacks": stacks}  # fmt: skip
