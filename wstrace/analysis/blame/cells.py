"""Cells: the distinct kinds of faults and of resident pages of a composition, counted once for all tables.

A trace has millions of faults and pages and a few thousand cells: what a table needs is summed over these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import Owners
from wstrace.analysis.faults import Faults
from wstrace.analysis.segments import distinct
from wstrace.schema import FAULT_MAJOR

Numbers = NDArray[np.intp]
#: Of each fault how many it stands for; None = itself, as all were recorded.
Each = NDArray[np.uint32] | None


class FaultCells(NamedTuple):
    """What faults have in common; each but `of` has the shape (cells,).

    of: of each fault its cell, in the order of the inputs. cause, space, kind, file: of the faults of a cell. faults,
    major: how many were recorded, of these read from disk. in_all, brings, again, written: of those that these stand
    for, how many there are, brought a page, brought one that had been there before, wrote to one that was there.
    first_ns: the time of the first one. cgroup: the code of the control group that they were in; None = of each process
    its only one, Inputs.cgroups.
    """

    of: NDArray[np.int32]
    cause: Numbers
    space: Numbers
    kind: Numbers
    file: Numbers
    faults: Numbers
    in_all: Numbers
    brings: Numbers
    again: Numbers
    written: Numbers
    major: Numbers
    first_ns: NDArray[np.uint64]
    cgroup: Numbers | None


def fault_cells(faults: Faults, times: NDArray[np.uint64], cause: NDArray[np.int32], space: Numbers,
                kind: NDArray[np.uint8], file: NDArray[np.uint32], each: Each = None,
                cgroup: NDArray[np.uint32] | None = None) -> FaultCells:  # fmt: skip
    """The cells of all faults. times, cause, space, kind, file: of each, in the order of the inputs. each: see Each.

    cgroup: the control group of each; None = no process was moved between two.
    """
    rows, of = distinct(cause, space, kind, file, *(() if cgroup is None else (cgroup,)))
    n, ordered = len(rows), of[faults.order]

    def counted(some: NDArray[np.bool_] | Numbers) -> Numbers:
        return stood_for(ordered[some], n, None if each is None else each[faults.order][some])

    own = [column[rows].astype(np.intp) for column in (cause, space, kind, file)]
    return FaultCells(
        of, own[0], own[1], own[2], own[3],
        faults=np.bincount(of, minlength=n),
        in_all=stood_for(of, n, each),
        brings=counted(faults.brings),
        again=counted(faults.again()),
        written=counted(faults.written()),
        major=np.bincount(ordered[(faults.flags & FAULT_MAJOR) != 0], minlength=n),
        first_ns=_earliest(of, times, n),
        cgroup=None if cgroup is None else cgroup[rows].astype(np.intp),
    )  # fmt: skip


class PageCells(NamedTuple):
    """What resident pages have in common; each but `of` has the shape (cells,).

    of: of each page its cell. cause: that of its owner; -reason where none is known. run: a row of Inputs.runs with the
    same space, kind, file, owners and number of mappings. pages: how many there are. major: whether the fault read from
    disk. estimated: whether a rule and not a record decided.
    """

    of: NDArray[np.int32]
    cause: Numbers
    run: Numbers
    pages: Numbers
    major: NDArray[np.bool_]
    estimated: NDArray[np.bool_]


def page_cells(found: Owners, faults: Faults, cause: NDArray[np.int32], run: NDArray[np.uint32]) -> PageCells:
    """The cells of all resident pages. cause: of each fault, in the order of the inputs. run: of each page."""
    where = np.flatnonzero(found.fault >= 0)
    of_page = -found.reason.astype(np.int32)
    of_page[where] = cause[faults.order[found.fault[where]]]
    major = np.zeros(len(of_page), np.bool_)
    major[where] = (faults.flags[found.fault[where]] & FAULT_MAJOR) != 0
    rows, of = distinct(run, of_page, major, found.estimated)
    own = [column[rows].astype(np.intp) for column in (of_page, run)]
    return PageCells(of, own[0], own[1], np.bincount(of, minlength=len(rows)), major[rows], found.estimated[rows])


def stood_for(cells: NDArray[Any], n: int, each: Each) -> Numbers:
    """How many faults those of each of n cells stand for."""
    return np.bincount(cells, each, n).astype(np.intp, copy=False)


def _earliest(label: NDArray[np.int32], times: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Of each label its earliest time; 0 = none."""
    found = np.zeros(n, np.uint64)
    if len(times) and not (times[1:] >= times[:-1]).all():
        order = np.argsort(times)
        label, times = label[order], times[order]
    found[label[::-1]] = times[::-1]  # of an index that is repeated, the last value stays
    return found
