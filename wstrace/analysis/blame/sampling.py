"""Sampling: where one of several faults was recorded, memory of a kind is shared out by those that were.

A recorded fault stands for others, so neither its own page nor what came with that is counted: each of the recorded
faults whose page is there has an equal share of the memory of its process, kind and file. A row that rests on n of them
is right to about 1 / sqrt(n) of itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bringers import BEFORE, NOT_SEEN, SHARED_OUT, Found
from wstrace.analysis.blame.inputs import Inputs
from wstrace.analysis.blame.losses import page_of
from wstrace.analysis.blame.resident import keys_of
from wstrace.analysis.segments import distinct
from wstrace.schema import PAGE_FILE, PAGE_HUGE

#: So many standard errors above what the recorded faults stand for, memory came without faults.
_ERRORS = 3
_NEVER = np.uint64((1 << 64) - 1)


def shared_out(
    found: Found, inputs: Inputs, run: NDArray[np.uint32], keys: NDArray[np.uint64], every: int
) -> Found:  # fmt: skip
    """The bringers of pages, where only recorded ones are known: of the others, who stands for theirs.

    Args:
        found: the bringers of those pages that the recorded faults were on. inputs: with the runs of the pages.
        run, keys: of each page its run and its key. every: one fault of so many was recorded.
    """
    runs = inputs.runs
    ways = runs["flags"] & (PAGE_FILE | PAGE_HUGE)
    stratum = distinct(runs["space"], runs["kind"], runs["file"], ways)[1][run]
    singly = (ways == 0)[run]  # a fault brings one page
    before, told = _before(inputs, run, keys)
    found.how[(found.how == BEFORE) & told & ~before] = NOT_SEEN
    asked = (found.first < 0) & ~((found.how == BEFORE) & (told | ~singly))

    has, wants = (_by_stratum(some, stratum) for some in (found.first >= 0, asked))
    n = int(stratum.max(initial=-1)) + 1
    recorded, pages = (np.bincount(stratum[some], minlength=n) for some in (has, wants))
    begin, first_asked = np.cumsum(recorded) - recorded, np.cumsum(pages) - pages
    single = np.zeros(n, np.bool_)
    single[stratum] = singly
    stands_for = recorded * every
    surplus = single & (recorded + pages > stands_for + _ERRORS * every * np.sqrt(recorded))
    shares = np.where(surplus, np.minimum(stands_for - recorded, pages), np.where(recorded > 0, pages, 0))

    of = stratum[wants]
    place, amount, whole = np.arange(len(wants)) - first_asked[of], shares[of], pages[of]
    number = place * amount // np.maximum(whole, 1)
    taken = np.flatnonzero((place + 1) * amount // np.maximum(whole, 1) > number)
    rows, of, number = wants[taken], of[taken], number[taken]
    by = has[begin[of] + number * recorded[of] // np.maximum(shares[of], 1)]
    found.first[rows], found.how[rows] = found.first[by], SHARED_OUT
    if found.second is not found.first:
        found.second[rows] = found.second[by]
    return found


def _by_stratum(some: NDArray[np.bool_], stratum: NDArray[np.int32]) -> NDArray[np.intp]:
    """The pages of a mask, those of a stratum together, by address."""
    rows = np.flatnonzero(some)
    return rows[np.argsort(stratum[rows], kind="stable")]


def _before(
    inputs: Inputs, run: NDArray[np.uint32], keys: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each page was there in an earlier snapshot, and whether there is one that would tell."""
    runs, earlier = inputs.runs, inputs.before
    looked = np.full(len(inputs.pids), _NEVER)
    np.minimum.at(looked, runs["space"], runs["time"])
    early = earlier["time"] < looked[earlier["space"]]
    earlier = {name: column[early] for name, column in earlier.items()}
    _, known = keys_of(earlier, inputs.page_size)
    inherits = np.isin(runs["space"], inputs.descend_from_before())
    told = np.isin(runs["space"], earlier["space"]) | (inherits & bool(len(known)))
    before = np.isin(keys, known)
    children = np.flatnonzero(inherits[run])  # they began with the memory of their parent, at its addresses
    before[children] |= np.isin(page_of(keys[children]), page_of(known))
    return before, told[run]
