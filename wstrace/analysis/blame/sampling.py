"""Sampling: where one of several faults was recorded, memory of a kind is shared out by those that were.

Each of the recorded faults whose page is there has a share of the memory of its process, kind and file: its own page,
and of the others' as much as it stands for. A row that rests on n of them is right to about 1 / sqrt(n) of itself.

A child has the pages of its parent until it writes to them, and not each write was recorded: a page that is the child's
alone tells nothing of who loaded it in the parent. Those of its pages that its own faults cannot have made are the
parent's: it copied its own first, or ended.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bringers import BEFORE, NOT_SEEN, SHARED_OUT, Found
from wstrace.analysis.blame.faults import FORKS
from wstrace.analysis.blame.inputs import Inputs
from wstrace.analysis.blame.losses import page_of, space_of
from wstrace.analysis.blame.resident import keys_of
from wstrace.analysis.segments import distinct
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_FILE, PAGE_HUGE

#: So many standard errors above what the recorded faults stand for, memory came without faults.
_ERRORS = 3
_NEVER = np.uint64((1 << 64) - 1)


def shared_out(
    found: Found,
    inputs: Inputs,
    run: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    faults: NDArray[np.uint64],
    each: NDArray[np.uint32],
) -> Found:
    """The bringers of pages, where only recorded ones are known: of the others, who stands for theirs.

    Args:
        found: the bringers of those pages that the recorded faults were on. inputs: with the runs of the pages.
        run, keys: of each page its run and its key. faults, each: of each fault, as found knows them, its key, and how
            many it stands for.
    """
    runs = inputs.runs
    ways = runs["flags"] & (PAGE_FILE | PAGE_HUGE)
    forks = np.isin(inputs.losses.event, FORKS)
    family = np.isin(runs["space"], np.concatenate((inputs.losses.space[forks], inputs.losses.other[forks])))
    alone = (runs["flags"] & PAGE_EXCLUSIVE != 0) & family & (ways == 0)
    stratum = distinct(runs["space"], runs["kind"], runs["file"], ways, alone)[1][run]
    _without_what_a_child_wrote(found, stratum, alone[run], keys, faults, each)
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
    of_fault, stands_for = stratum[has], each[found.first[has]].astype(np.float64)
    others = np.bincount(of_fault, stands_for - 1, n).astype(np.intp)
    variance = np.bincount(of_fault, stands_for**2, n)
    surplus = single & (pages > others + _ERRORS * np.sqrt(variance))
    shares = np.where(surplus, np.minimum(others, pages), np.where(recorded > 0, pages, 0))

    # what came with the page of a file, or a huge one, came with those faults, too, that stand for none but themselves
    weight = np.where((single & (others > 0))[of_fault], stands_for - 1, stands_for).astype(np.intp)
    upto = np.append(0, np.cumsum(weight))
    low, high = upto[begin], upto[begin + recorded]
    of = stratum[wants]
    place, amount, whole = np.arange(len(wants)) - first_asked[of], shares[of], pages[of]
    number = place * amount // np.maximum(whole, 1)
    taken = np.flatnonzero((place + 1) * amount // np.maximum(whole, 1) > number)
    rows, of, number = wants[taken], of[taken], number[taken]
    by = has[upto.searchsorted(low[of] + number * (high - low)[of] // np.maximum(shares[of], 1), "right") - 1]
    found.first[rows], found.how[rows] = found.first[by], SHARED_OUT
    if found.second is not found.first:
        found.second[rows] = found.second[by]
    return found


def _without_what_a_child_wrote(
    found: Found,
    stratum: NDArray[np.int32],
    alone: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    faults: NDArray[np.uint64],
    each: NDArray[np.uint32],
) -> None:
    """Of pages that a process has alone, forgets so many bringers in another process that the others fit its faults."""
    known = np.flatnonzero(alone & (found.first >= 0))
    inherited = space_of(faults[found.first[known]]) != space_of(keys[known])
    if not inherited.any():
        return
    n = int(stratum.max()) + 1
    pages = np.bincount(stratum[alone], minlength=n)
    stand_for = each[found.first[known]].astype(np.float64)
    own, others = (np.bincount(stratum[known[some]], stand_for[some], n) for some in (~inherited, inherited))
    kept = np.clip((pages - own) / np.maximum(others, 1), 0, 1)
    rows = known[inherited][np.argsort(stratum[known[inherited]], kind="stable")]
    count = np.bincount(stratum[rows], minlength=n)
    place = np.arange(len(rows)) - (np.cumsum(count) - count)[stratum[rows]]
    share = kept[stratum[rows]]
    gone = rows[np.floor((place + 1) * share) == np.floor(place * share)]
    found.first[gone], found.how[gone] = -1, NOT_SEEN
    found.second[gone] = -1


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
