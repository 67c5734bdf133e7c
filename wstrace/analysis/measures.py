"""Measures: what is summed of faults and pages, what that is called, and how it is written."""

from __future__ import annotations

from wstrace.hookspecs import Measure
from wstrace.plugins import default_plugins
from wstrace.text import duration, number, size

_ALL = (
    Measure("grown", "growth", "resident bytes at the moment less those at the beginning"),
    Measure("change", "change", "resident bytes that the second run has more"),
    Measure("first", "first", "resident bytes of the first run"),
    Measure("second", "second", "resident bytes of the second run"),
    Measure("resident", "resident", "bytes in memory at that moment; of several processes each page once", always=True),
    Measure("rss", "rss", "of several processes the sum of what each has, where shared pages count once for each"),
    Measure("private", "private", "of these, what no other process has", always=True),
    Measure("shared", "shared", "of these, what other processes have, too"),
    Measure("pss", "pss", "those of shared pages divided by all processes that have them"),
    Measure("copied", "copied", "of these, what a child process copied by writing to a page of its parent"),
    Measure("at_the_end", "at the end", "the same, while the process ended"),
    Measure("written", "written", "bytes of pages that were there already when a fault wrote to them"),
    Measure("brought", "brought", "bytes of all pages that arrived, those that are gone again included"),
    Measure("again", "again", "bytes of pages that arrived although they had been there before"),
    Measure("faults", "faults", "page faults", "count", always=True),
    Measure("from_disk", "from disk", "faults that read from disk", "count"),
    Measure("samples", "samples", "recorded stacks or faults that stand for the row", "count"),
    Measure("estimated", "estimated", "of the resident bytes, or else of the faults, what a rule and no record gives"),
)  # fmt: skip


def measures() -> dict[str, Measure]:
    """name -> measure, in the order of columns: those of wstrace, then those of plugins."""
    found = {one.name: one for one in _ALL}
    for one in default_plugins().measures:
        found.setdefault(one.name, one)
    return found


def shown(measure: Measure, amount: float) -> str:
    """An amount as tables show it: `1.5 MiB`, `1,234`, `2.5 ms`."""
    if measure.unit == "bytes":
        return size(round(amount))
    return number(round(amount)) if measure.unit == "count" else duration(amount / 1e9)
