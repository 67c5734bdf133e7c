"""Comparison: what a second run has more or less in memory than a first one, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np

from wstrace.analysis.blame.alignment import unversioned
from wstrace.analysis.blame.changes import Amount, Change, changes_between
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.inputs import Inputs, read
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.blame.versions import Versions
from wstrace.analysis.moments import Recorded
from wstrace.analysis.symbols import UNKNOWN
from wstrace.errors import TraceFileError, UsageError
from wstrace.schema import HOW_NOT_YET, KINDS, PAGE_EXCLUSIVE, PAGE_FAULT
from wstrace.text import base_name, number, plural, printable, size

ChangeBy = Literal["package", "function", "line", "file", "module", "kind"]
VIEWS: tuple[str, ...] = get_args(ChangeBy)
#: the views that tell who touched the pages; the others tell what the pages belong to
CAUSES = ("package", "function", "line")
#: A composition of less than this share of a peak does not tell whose the peak was.
_SEEN = 0.95
#: What came before stacks were read is a doubt from this share of the change, and this many bytes, on.
_DOUBTFUL, _LEAST = 0.01, 1 << 16
_NAME_LIMIT = 60


class Compared(Recorded, Protocol):
    """What is asked of the trace of a run; wstrace.trace.Trace has it."""

    @property
    def name(self) -> str:
        """The name to show for it."""

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each stream."""

    @property
    def state(self) -> str:
        """`cut`, `damaged` or `incomplete` where something is missing."""


class Run:
    """One of the two runs: its resident pages at a moment.

    Args:
        trace: its trace. at: see Snapshots.at().

    Raises:
        TraceFileError: it has no whole snapshot.
    """

    def __init__(self, trace: Compared, at: str | int) -> None:
        self.trace, self.info, self._at = trace, trace.info, at
        self.name = printable(base_name(trace.name), _NAME_LIMIT)
        #: whether there are faults, so that it is known who touched the pages
        self.told = bool(trace.rows.get(PAGE_FAULT.name))
        if not len(self.inputs.runs["start"]):
            raise TraceFileError(
                f"{printable(trace.name)} holds no whole snapshot",
                "record one: wstrace report -o FILE -- COMMAND, wstrace snapshot PID -o FILE, or -s working_set",
            )

    @cached_property
    def blame(self) -> Blame:
        """The pages by who brought them."""
        return Blame(Composition(self.trace, self._at))

    @cached_property
    def inputs(self) -> Inputs:
        """The resident pages."""
        return self.blame.of.inputs if self.told else read(self.trace, self._at)

    @property
    def amount(self) -> Amount:
        """The sum over all processes."""
        runs = self.inputs.runs
        pages = runs["pages"].astype(np.int64)
        own = (runs["flags"] & PAGE_EXCLUSIVE) != 0
        return Amount(int(pages.sum()) * self.inputs.page_size, int(pages[own].sum()) * self.inputs.page_size)

    @property
    def processes(self) -> int:
        """The number of processes that have pages."""
        return len(np.unique(self.inputs.runs["space"]))

    @property
    def total(self) -> int:
        """Resident bytes."""
        return self.amount.resident

    @property
    def private(self) -> int:
        """Private bytes."""
        return self.amount.private

    @property
    def stacked(self) -> bool:
        """Whether any fault has a Python stack."""
        return bool(self.inputs.faults["stack"].any())

    @cached_property
    def versions(self) -> Versions:
        """The releases of the packages whose code ran."""
        tree, strings = self.inputs.tree, self.trace.strings
        sources = [tree.text(code) for code in np.unique(tree.column("file")).tolist()]
        mapped = [strings[code] for code in np.unique(self.inputs.mappings["file"]).tolist() if code < len(strings)]
        return Versions(self.info, [*sources, *mapped])

    @cached_property
    def stackless(self) -> tuple[int, int]:
        """Resident bytes whose faults have no Python stack, and those of them that came before stacks were read."""
        of = self.blame.of
        faults, how = self.inputs.faults, of.owner[of.owner >= 0]
        without = faults["stack"][how] == 0
        late = without & (faults["stack_how"][how] == HOW_NOT_YET)
        return int(without.sum()) * of.page_size, int(late.sum()) * of.page_size

    @property
    def seen(self) -> float:
        """The share of the peak that the pages are, where they are to be those of the peak."""
        return min(self.total / self.inputs.of_peak, 1) if self.inputs.of_peak else 1.0

    def rows(self, view: str) -> list[BlameRow]:
        """The rows of a view."""
        if view in CAUSES:
            return self.blame.rows(view)
        runs, strings = self.inputs.runs, self.trace.strings
        pages = runs["pages"].astype(np.float64)
        codes, of = np.unique(runs["kind" if view == "kind" else "file"], return_inverse=True)
        resident = np.bincount(of, pages, len(codes))
        private = np.bincount(of, pages * ((runs["flags"] & PAGE_EXCLUSIVE) != 0), len(codes))
        rows = []
        for code, *sums in zip(codes.tolist(), resident.tolist(), private.tolist(), strict=True):
            if view == "kind":
                name = label = KINDS[min(code, len(KINDS) - 1)]
            else:
                name = (strings[code] if code < len(strings) else "") or UNKNOWN
                label = base_name(name)
            n, own = (int(amount) * self.inputs.page_size for amount in sums)
            row = BlameRow(label, name if view == "file" else label, resident=n, private=own, shared=n - own)
            row.file, row.kind = (name, "") if view == "file" else ("", name) if view == "kind" else ("", "")
            rows.append(row)
        return rows

    @property
    def doubts(self) -> list[str]:
        """Why its numbers may be others than they seem."""
        found = []
        if (state := self.trace.state) in ("cut", "damaged", "incomplete"):
            found.append(f"{self.name} is {state}: what it lacks is not known here")
        if not self.told:
            return found
        of = self.blame.of
        if of.lost:
            found.append(f"{self.name} lacks {plural(of.lost, 'record')}")
        if of.past.stacks_lost:
            found.append(f"{self.name} lacks {plural(of.past.stacks_lost, 'sampled stack')}")
        if of.sampled > 1:
            found.append(f"{self.name} has one of {number(of.sampled)} faults")
        if of.assumed:
            found.append(f"{self.name} does not tell what was {', '.join(of.assumed)}")
        return found


class Comparison:
    """What the second of two runs has more or less in memory.

    Args:
        first, second: their traces.
        at: the moment, as of Snapshots.at(); None = the peak if both have looked for it (`-s peak_snapshot`), else the
            last snapshot of each process.

    Attributes:
        first, second: the runs. moment: as `at`.

    Raises:
        TraceFileError: a trace has no whole snapshot.
        UsageError: there is no such mark.
    """

    def __init__(self, first: Compared, second: Compared, at: str | int | None = None) -> None:
        if at is None:
            at = "peak" if all("peak_snapshot" in trace.info.extra for trace in (first, second)) else "exit"
        self.moment = at
        self.first, self.second = Run(first, at), Run(second, at)

    @property
    def change(self) -> int:
        """Resident bytes that the second run has more: the difference of both totals."""
        return self.second.total - self.first.total

    @property
    def whole(self) -> bool:
        """Whether what is compared is all that was there: a short peak may not have been seen whole."""
        return min(self.first.seen, self.second.seen) >= _SEEN

    @property
    def sizes(self) -> tuple[int, int]:
        """Resident bytes of both runs; of a peak that was not seen whole as the system itself counts them."""
        if self.whole:
            return self.first.total, self.second.total
        one, other = (run.inputs.of_peak or run.total for run in (self.first, self.second))
        return one, other

    @cached_property
    def programs(self) -> tuple[str, str] | None:
        """What ran, where that was not the same program twice; None = it was, or is not known."""
        one, other = (_program(run.info.command) for run in (self.first, self.second))
        shared = min(len(one), len(other))
        if not shared or [unversioned(word) for word in one[:shared]] == [unversioned(word) for word in other[:shared]]:
            return None
        return " ".join(one), " ".join(other)

    @cached_property
    def doubts(self) -> list[str]:
        """Why numbers may be others than they seem; [] = nothing is known to be missing."""
        found = [doubt for run in (self.first, self.second) for doubt in run.doubts]
        found += [
            doubt for pair in ((self.first, self.second), (self.second, self.first)) for doubt in self._late(*pair)
        ]
        if self.programs:
            one, other = (printable(program, _NAME_LIMIT) for program in self.programs)
            found.insert(0, f"different programs ({one}; {other}): their rows are paired by name alone")
        return found

    def _late(self, run: Run, other: Run) -> list[str]:
        """That a run's first faults came before its stacks were read: more of them than Python's own start has.

        What has no line in either run, as the start of Python, is compared by its instructions in both.
        """
        if not (run.told and other.told and run.stacked and other.stacked):
            return []
        (without, late), (usual, _) = run.stackless, other.stackless
        doubtful = min(late, without - usual)
        if doubtful < max(_DOUBTFUL * abs(self.change), _LEAST):
            return []
        return [f"{run.name}: {size(doubtful)} came before its Python stacks were read: by line, function and package, "
                "these may be others'"]  # fmt: skip

    def why_not(self, view: str) -> str:
        """Why the runs cannot be compared by a view; "" = they can."""
        for run in () if self.whole else (self.first, self.second):
            if run.seen < _SEEN:
                return (f"{run.name} shows only {run.seen:.0%} of its peak, which was too short to be seen whole; "
                        "--at exit compares the ends")  # fmt: skip
        if view not in CAUSES:
            return ""
        for run, other in ((self.first, self.second), (self.second, self.first)):
            if not run.told:
                return f"{run.name} has no faults, so who touched its pages is not known"
            if other.stacked and not run.stacked:
                return f"{run.name} has no Python stacks, {other.name} has: they are told by different names"
        return ""

    def rows(self, view: str) -> list[Change]:
        """All rows by a view, the largest change first. Each column sums to that of the totals.

        Raises:
            UsageError: the runs cannot be compared so.
        """
        if why := self.why_not(view):
            raise UsageError(f"not compared by {view}: {why}")
        found = changes_between(self.first.rows(view), self.second.rows(view), view)
        for row in found if view in ("package", "line") else ():
            if row.package and row.change and (view == "package" or row.imports):
                row.version_was = self.first.versions.of(row.package) if row.first.resident else ""
                row.version = self.second.versions.of(row.package) if row.second.resident else ""
        return found


def _program(command: Sequence[str]) -> list[str]:
    """A command line's program, and of Python its script or module."""
    if not command:
        return []
    name = base_name(command[0])
    found = [name.removesuffix(".exe")]
    if not unversioned(name).startswith(("python", "pypy")):
        return found
    words = iter(command[1:])
    for word in words:
        if word in ("-X", "-W"):
            next(words, "")
        elif word in ("-c", "-m"):
            return [*found, word, next(words, "") if word == "-m" else ""]
        elif not word.startswith("-"):
            return [*found, base_name(word)]
    return found


def as_dict(found: Comparison, view: str, *, everything: bool = False) -> dict[str, Any]:
    """The comparison for JSON: `schema` 1; with `everything` the rows sum to the totals in every column."""
    why = found.why_not(view)
    rows = [] if why else found.rows(view)
    first, second = found.sizes
    private = found.second.private - found.first.private if found.whole else None
    return {
        "schema": 1,
        "by": view,
        "at": found.moment,
        "first": first,
        "second": second,
        "change": second - first,
        "private": private,
        "shared": None if private is None else second - first - private,
        "complete": not (found.doubts or why),
        "doubts": found.doubts,
        "cannot_tell": why,
        "owners": [row.as_dict() for row in rows if everything or row.change or row.private],
    }
