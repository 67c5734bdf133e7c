"""Unshared: the pages that processes copied, which they had shared since a fork, and which writes did it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.composition import Composition, Past, keys_of
from wstrace.analysis.dimensions import Row, most_of, name_of, rows_of
from wstrace.analysis.inputs import Inputs
from wstrace.analysis.losses import space_of
from wstrace.analysis.report import Report, completeness, notes_of
from wstrace.analysis.tally import begins, numbered
from wstrace.schema import FRAME_CUT, HOW_NO_PYTHON, PAGE_EXCLUSIVE
from wstrace.table import Recorded
from wstrace.text import duration, plural, size, unit_of

_NEVER = np.iinfo(np.uint64).max
_CUT = np.int64(-1)


def unshared(trace: Recorded, by: Sequence[str] = ("line",)) -> Report:
    """The copies of pages that processes shared since a fork, as a report: `copied`, and of these `at_the_end`.

    Raises UsageError: there is no such dimension.
    """
    found = Unshared(Composition(trace, by=by))
    if found.earlier and (report := _of_earlier_forks(trace, by)) is not None:
        return report
    past = found.of.past
    total = {"copied": found.total, "at_the_end": found.at_the_end}
    rows = found.rows(*by)
    words = completeness(trace, past, None, {name: past.cube.measure(name) for name in past.cube.sums})
    if found.total and found.ended:
        words += "; what they copied while they ended counts too"  # an interpreter's end writes to what it frees
    answer = found.answer(rows if tuple(by) == ("line",) else found.rows("line"))
    more = {"forks": found.forks(), "at_least": found.at_least, "estimated": found.estimated}
    return Report(tuple(by), "copied", answer, words, notes_of(trace), total, rows,
                  facts=trace.info.to_dict(), ledger=trace.ledger.as_dict(), more=more)  # fmt: skip


class Unshared:
    """The copies of shared pages in a trace.

    A copy is a fault that made one more page: of k processes that hold a page at most k - 1 copy it, because the last
    one takes it over. So the sum is what the copies cost in memory, and not the number of writes.
    of: the trace's composition; the snapshots that it read show pages that no fault was on. copies: faults, as places
    in the history's faults. total: bytes that were copied. at_the_end: those of them that ending interpreters copied.
    pages: of each how many copies it stands for; more than itself where one of several faults was recorded.
    """

    def __init__(self, of: Composition) -> None:
        self.of = of
        faults = of.history.faults
        self.copies, self._fork = of.history.copies.faults, of.history.copies.fork
        #: Whether all numbers are estimates: one of several faults was recorded, and stands for the others.
        self.estimated = of.past.sampled > 1
        rows, each = faults.order[self.copies], of.inputs.faults.get("sampled")
        self.pages = np.ones(len(rows), np.intp) if each is None else each[rows].astype(np.intp)
        self._cell, self._space = of.fault_cells[rows], space_of(faults.key[self.copies])
        ending, self._known = at_the_end(of.inputs)
        self._ending = ending[rows]
        self._bytes = {"copied": self.pages * of.page_size, "at_the_end": self.pages * of.page_size * self._ending}
        self.total, self.at_the_end = (int(one.sum()) for one in self._bytes.values())

    def rows(self, *views: str) -> list[Row]:
        """The rows by these dimensions together: bytes that were `copied`, and those of them `at_the_end`."""
        labels = self.of.past.labels(*views)
        sums = {name: np.bincount(self._cell, one, len(labels.of)) for name, one in self._bytes.items()}
        return sorted(rows_of(labels, sums), key=lambda row: (-_ran(row), -row["copied"], row.whole))

    def forks(self) -> list[dict[str, Any]]:
        """Each fork with copies, the largest first: child, parent, pid of the child, time_ns, copied, at_the_end."""
        losses, inputs = self.of.history.losses, self.of.inputs
        forks, of = numbered(self._fork)
        copied, end = (np.bincount(of, one, len(forks)).astype(np.intp) for one in self._bytes.values())
        found = []
        for at, fork in enumerate(forks.tolist()):
            row = losses.row[fork]
            child, parent = int(losses.rows.space[row]), int(losses.rows.other[row])
            found.append({"pid": int(inputs.pids[child]), "child": self.of.name_of(child),
                          "parent": self.of.name_of(parent), "time_ns": int(losses.time[fork]),
                          "copied": int(copied[at]), "at_the_end": int(end[at])})  # fmt: skip
        return sorted(found, key=lambda one: (-one["copied"], one["time_ns"]))

    @property
    def ended(self) -> bool:
        """Whether what a process copied as it ended is among the copies that it made while it ran.

        It is where the process has ended in the trace, and its end is not distinguished.
        """
        return bool(np.isin(self._space, np.setdiff1d(self.of.inputs.ends.space, self._known)).any())

    @property
    def earlier(self) -> bool:
        """Whether no process forked in the trace, and some were there before it: an earlier fork may have been."""
        of = self.of
        forks = of.inputs.losses.are_forks.any()
        return not forks and bool(np.setdiff1d(of.inputs.faults["space"], of.inputs.began).size)

    @cached_property
    def unseen(self) -> list[int]:
        """The processes from before the trace of which no snapshot before their first fork tells what they had."""
        losses, before = self.of.inputs.losses, self.of.inputs.before
        forks = losses.are_forks
        of_parent, times = losses.other[forks], losses.time[forks]
        found = []
        for parent in np.setdiff1d(of_parent, np.append(self.of.inputs.began, losses.space[forks])).tolist():
            seen = before["time"][before["space"] == parent].min(initial=_NEVER)
            if seen > times[of_parent == parent].min():
                found.append(parent)
        return found

    @property
    def at_least(self) -> bool:
        """Whether more may have been copied: what had been in memory without a fault in the trace is not known."""
        return bool(self.unseen) or self.earlier

    def answer(self, lines: Sequence[Row]) -> str:
        """`45.9 MiB un-shared after 2 forks: 34.4 search app.py:12, 11.5 search app.py:11`."""
        if self.unseen and not self.total:
            parent = name_of(self.of.name_of(self.unseen[0]))
            return (
                f"what was un-shared is not known: no snapshot shows what {parent} had in memory before the trace; "
                "wstrace unshared PID takes one"
            )
        if self.earlier:
            return "what was un-shared is not known: no process forked in the trace, only perhaps before it"
        if not self.total:
            return "nothing was un-shared: no process wrote to a page that it shared since a fork"
        while_it_ran = self.total - self.at_the_end
        unit, divisor = unit_of(while_it_ran)
        parts = ((name_of(row.label), _ran(row), 0) for row in lines)
        words = most_of(parts, while_it_ran, lambda n: f"{n / divisor:,.1f}")
        bound = "at least " if self.at_least else "~" if self.estimated else ""
        several = plural(len(np.unique(self._space[self._ending])), "process")
        end = f"; {size(self.at_the_end)} more as {several} ended" if self.at_the_end else ""
        head = (
            f"{bound}{while_it_ran / divisor:,.1f} {unit} un-shared after {plural(len(np.unique(self._fork)), 'fork')}"
        )
        return f"{head}{': ' * bool(words)}{words}{end}"


def _of_earlier_forks(trace: Recorded, by: Sequence[str]) -> Report | None:
    """What processes copied of forks before the trace; None where no two snapshots show it.

    These are the pages that were shared in the first snapshot and are of one process alone in the last one, and that a
    fault was on: others are its own as whoever shared them has ended.
    """
    past = Past(trace, [("exit", ()), ("start", ())], by=by)
    now, then = (Composition(trace, past=past, number=number) for number in (0, 1))
    seconds = (now.inputs.time_ns - then.inputs.time_ns) / 1e9
    if not now.rss or seconds <= 0:
        return None
    exclusive = [(of.column("flags") & PAGE_EXCLUSIVE) != 0 for of in (now, then)]
    pages = [keys_of(of.inputs.runs, of.page_size)[1] for of in (now, then)]
    copied = np.isin(pages[0], pages[1][~exclusive[1]]) & exclusive[0] & (now.owner >= 0)
    sums = np.bincount(now.fault_cells[now.owner[copied]], minlength=len(past.cube)) * now.page_size
    total, lines = int(sums.sum()), rows_of(past.labels("line"), {"copied": sums}, "copied")
    unit, divisor = unit_of(total)
    words = most_of(((name_of(row.label), row["copied"], 0) for row in lines), total, lambda n: f"{n / divisor:,.1f}")
    complete = completeness(trace, past, None, {name: past.cube.measure(name) for name in past.cube.sums})
    answer = f"{total / divisor:,.1f} {unit} un-shared in {duration(seconds)}, of forks before the trace"
    return Report(tuple(by), "copied", f"{answer}{': ' * bool(words)}{words}", complete,
                  notes_of(trace), {"copied": total, "at_the_end": 0},
                  rows_of(past.labels(*by), {"copied": sums}, "copied"), facts=trace.info.to_dict(),
                  ledger=trace.ledger.as_dict(), more={"forks": [], "at_least": True, "estimated": False})  # fmt: skip


def _ran(row: Row) -> int:
    """Bytes that were copied while processes ran."""
    return row["copied"] - row["at_the_end"]


def at_the_end(inputs: Inputs) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Whether each fault was taken by an ending interpreter, and the spaces of the processes of which that is known.

    An interpreter that ends frees what it has, object by object, and so writes to most of what it shared since a fork.
    No frame of Python is on its main thread then, but for those that begin anew: destructors, and functions of atexit.
    Until then the thread has the frames that it had at the fork, down to the outermost one.

    Known are processes that forked, or began by that, and ended in the trace, and of which the main thread had Python
    frames behind the fork, but for those where it has stacks behind these that were not read, or not whole.

    Source: CPython Python/pylifecycle.c Py_FinalizeEx(); measured on 3.11 with gunicorn's workers.
    """
    faults, losses = inputs.faults, inputs.losses
    found, none = np.zeros(len(faults["space"]), np.bool_), np.zeros(0, np.intp)
    forks = losses.are_forks
    family = np.union1d(losses.space[forks], losses.other[forks])
    wanted = np.intersect1d(family, inputs.ends.space)
    if not len(wanted):
        return found, none
    rows = np.flatnonzero(np.isin(faults["space"], wanted) & (faults["tid"] == inputs.pids[faults["space"]]))
    rows = rows[np.lexsort((faults["time_ns"][rows], faults["space"][rows]))]
    space, time = faults["space"][rows].astype(np.intp), faults["time_ns"][rows]
    outermost = _outermost(inputs.names.tree, faults["stack"][rows])
    since = np.zeros(len(inputs.pids), np.uint64)  # of children, when they were forked
    since[losses.space[forks]] = losses.time[forks]
    forked = np.isin(space, losses.space[forks]) & (outermost > 0) & (time >= since[space])
    first = np.flatnonzero(forked)
    first = first[begins(space[first])]
    unread = (outermost == _CUT) | ((outermost == 0) & (faults["stack_how"][rows] != HOW_NO_PYTHON))
    last, last_unread = (np.zeros(len(inputs.pids), np.uint64) for _ in range(2))
    for times, of in ((last, np.isin(outermost, np.unique(outermost[first]))), (last_unread, unread)):
        times[space[of]] = time[of]  # in order of time: of several the last one stays
    known = wanted[last[wanted] > last_unread[wanted]]
    found[rows] = np.isin(space, known) & (time > last[space])
    return found, known


def _outermost(tree: CallTree, stacks: NDArray[Any]) -> NDArray[np.int64]:
    """A number of the outermost function of each stack; 0 = it has no stack, -1 = its outer frames were cut."""
    leaves, which = numbered(stacks)
    ids, at = tree.stacks(tree.known(leaves))
    has = at[1:] > at[:-1]
    root = ids[at[1:][has] - 1]
    code = tree.column("function")[root].astype(np.int64) << 32 | tree.column("file")[root].astype(np.int64)
    code[(tree.column("flags")[root] & FRAME_CUT) != 0] = _CUT
    found = np.where(leaves > 0, _CUT, 0)  # a stack without rows is not known
    found[has] = code
    return found[which]
