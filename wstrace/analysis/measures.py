"""Measures: what is summed of faults and pages, the heads of their columns, and how amounts are written."""

from __future__ import annotations

from wstrace.text import number, size

#: measure, in JSON and in `--sort` -> the head of its column; in the order of columns
MEASURES = {
    "grown": "growth",  # resident bytes at the moment less those at the beginning
    "change": "change",  # resident bytes that the second run has more
    "first": "first",  # resident bytes of the first run
    "second": "second",  # resident bytes of the second run
    "resident": "resident",  # bytes in memory at that moment; of several processes each page once
    "rss": "rss",  # of several processes the sum of what each has, where shared pages count once for each
    "private": "private",  # of these, what no other process has
    "shared": "shared",  # of these, what other processes have, too
    "pss": "pss",  # those of shared pages divided by all processes that have them
    "copied": "copied",  # of these, what a child process copied by writing to a page of its parent
    "at_the_end": "at the end",  # the same, while the process ended
    "written": "written",  # bytes of pages that were there already when a fault wrote to them
    "brought": "brought",  # bytes of all pages that arrived, those that are gone again included
    "again": "again",  # bytes of pages that arrived although they had been there before
    "faults": "faults",  # page faults
    "from_disk": "from disk",  # faults that read from disk
    "samples": "samples",  # recorded stacks or faults that stand for the row
    "estimated": "estimated",  # of the resident bytes, or else of the faults, what a rule and no record gives
}
#: those that are no bytes
COUNTS = frozenset(("faults", "from_disk", "samples"))
#: Their columns are shown where all rows have none of them, too.
ALWAYS = frozenset(("resident", "private", "faults"))


def shown(measure: str, amount: float) -> str:
    """An amount as tables show it: `1.5 MiB`, `1,234`."""
    return (number if measure in COUNTS else size)(round(amount))
