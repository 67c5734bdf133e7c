"""Cells: the distinct kinds of faults and of resident pages of a composition, counted once for all tables.

A trace has millions of faults and pages and a few thousand cells: what a table needs is summed over these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bounds import perhaps_again, perhaps_zeros
from wstrace.analysis.blame.bringers import OWN, Found
from wstrace.analysis.blame.faults import Faults
from wstrace.analysis.segments import begins, distinct
from wstrace.schema import FAULT_MAJOR

Numbers = NDArray[np.intp]
#: Of each fault how many it stands for; None = itself, as all were recorded.
Each = NDArray[np.uint32] | None
_UNSURE, _MAJOR = 1, 2  # flags of pages while cells are made


class FaultCells(NamedTuple):
    """What faults have in common; each but `of` has the shape (cells,).

    of: of each fault its cell, in the order of the inputs. cause, space, kind, file: of the faults of a cell. faults,
    major: how many were recorded, of these read from disk. in_all, brings, again, written: of those that these stand
    for, how many there are, brought a page, brought one that had been there before, wrote to one that was there.
    first_ns: the time of the first one. cgroup: the code of the control group that they were in; None = of each process
    its only one, Inputs.cgroups. again_more: those that may have brought others with their page that had been there.
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
    again_more: Numbers


def fault_cells(faults: Faults, times: NDArray[np.uint64], cause: NDArray[np.int32], space: Numbers,
                kind: NDArray[np.uint8], file: NDArray[np.uint32], each: Each = None,
                cgroup: NDArray[np.uint32] | None = None, *, several: NDArray[np.bool_],
                table: int) -> FaultCells:  # fmt: skip
    """The cells of all faults. times, cause, space, kind, file: of each, in the order of the inputs. each: see Each.

    cgroup: the control group of each; None = no process was moved between two. several, table: see bounds.py.
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
        again=counted(faults.arrive_again()),
        written=counted(_written(faults)),
        major=np.bincount(ordered[(faults.flags & FAULT_MAJOR) != 0], minlength=n),
        first_ns=_earliest(of, times, n),
        cgroup=None if cgroup is None else cgroup[rows].astype(np.intp),
        again_more=counted(perhaps_again(faults, several, file, table)),
    )  # fmt: skip


class PageCells(NamedTuple):
    """What resident pages have in common; each but `of` has the shape (cells,).

    of: of each page its cell. first, second: the causes of its two candidates; -1 - how where none is known. run: a
    row of Inputs.runs with the same space, kind, file, owners and number of mappings. pages: how many there are. major:
    whether the fault read from disk. unsure: whether another fault may have brought it.
    """

    of: NDArray[np.int32]
    first: Numbers
    second: Numbers
    run: Numbers
    pages: Numbers
    major: NDArray[np.bool_]
    unsure: NDArray[np.bool_]


def page_cells(found: Found, faults: Faults, cause: NDArray[np.int32], run: NDArray[np.uint32]) -> PageCells:
    """The cells of all resident pages. cause: of each fault, in the order of the inputs. run: of each page."""
    known = found.first >= 0
    where = np.flatnonzero(known)
    first = -1 - found.how.astype(np.int32)
    second = first
    flags = (found.assumed | found.doubted) * np.uint8(_UNSURE)
    flags[~known] = 0
    first[where] = cause[faults.order[found.first[where]]]
    flags[where] |= ((faults.flags[found.first[where]] & FAULT_MAJOR) != 0) * np.uint8(_MAJOR)
    if found.second is not found.first:
        second = first.copy()
        second[where] = cause[faults.order[found.second[where]]]
    rows, of = distinct(run, first, second, flags)
    own = [column[rows].astype(np.intp) for column in (first, second, run)]
    major, unsure = flags[rows] & _MAJOR != 0, flags[rows] & _UNSURE != 0
    return PageCells(of, own[0], own[1], own[2], np.bincount(of, minlength=len(rows)), major, unsure)


class Gone(NamedTuple):
    """Of each cell of faults those that brought a page of their own which is not resident, each of shape (cells,).

    in_all: how many there are. more: of these, those that may have brought others with it. zeros: those that may have
    brought none, but mapped the page of zeros.
    """

    in_all: Numbers
    more: Numbers
    zeros: Numbers


def gone(found: Found, faults: Faults, cells: FaultCells, each: Each, several: NDArray[np.bool_]) -> Gone:
    """What is not counted among the resident pages. several: see bounds.with_others()."""
    left = faults.brings.copy()
    left[found.first[found.how == OWN]] = False

    def counted(some: NDArray[np.bool_]) -> Numbers:
        rows = faults.order[some]
        return stood_for(cells.of[rows], len(cells.cause), None if each is None else each[rows])

    return Gone(counted(left), counted(left & several), counted(left & perhaps_zeros(faults)))


def stood_for(cells: NDArray[Any], n: int, each: Each) -> Numbers:
    """How many faults those of each of n cells stand for."""
    return np.bincount(cells, each, n).astype(np.intp, copy=False)


def _written(faults: Faults) -> Numbers:
    """Faults on pages that were there already, each page of a life once."""
    later = np.flatnonzero(~faults.brings)
    return later[begins(faults.first.searchsorted(later, "right"))] if len(later) else later


def _earliest(label: NDArray[np.int32], times: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Of each label its earliest time; 0 = none."""
    found = np.zeros(n, np.uint64)
    if len(times) and not (times[1:] >= times[:-1]).all():
        order = np.argsort(times)
        label, times = label[order], times[order]
    found[label[::-1]] = times[::-1]  # of an index that is repeated, the last value stays
    return found
