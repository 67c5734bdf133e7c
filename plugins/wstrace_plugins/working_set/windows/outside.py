"""Resident pages that are in no working set: large pages, and pages that are most likely AWE pages.

QueryWorkingSetEx reports both, but only for given addresses, so every possible place is queried, up to a limit. Nothing
identifies AWE pages: a private page that is valid but in no working set is reported as unlisted.
Source: Microsoft Learn, QueryWorkingSet ("does not include ... AWE or large pages"), QueryWorkingSetEx,
"Large-Page Support" (they are committed as a whole, at multiples of their size), "Address Windowing Extensions".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.memory import Region
from wstrace_plugins.working_set.windows.blocks import Attributes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ask = Callable[[NDArray[Any]], Attributes]

LARGE_PAGE = 2 << 20
MOST_LARGE_PLACES = 1 << 20  # places for large pages: 2 TiB of committed memory, without reserved addresses
MOST_PAGES = 1 << 20  # pages of private memory that are committed and not listed: 4 GiB
MOST_REGIONS = 1 << 18

Ranges = list[tuple[int, int]]


class Outside(NamedTuple):
    """Bytes of large pages, and of private pages that are resident in no working set; None: not known."""

    large: int | None
    unlisted: int | None


def outside(regions: Iterable[Region], listed: Callable[[], NDArray[Any]], page_size: int, ask: Ask) -> Outside:
    """The bytes of large pages and of unlisted private pages of a process.

    Args:
        regions: all regions of the process.
        listed: returns the addresses of the pages that are in its working set now, sorted.
        page_size: the size of a page in bytes.
        ask: calls QueryWorkingSetEx for addresses; raises Unavailable.
    """
    every = list(itertools.islice(regions, MOST_REGIONS + 1))
    if len(every) > MOST_REGIONS:
        return Outside(None, None)
    committed = [r for r in every if r.state == winapi.MEM_COMMIT and r.type != winapi.MEM_IMAGE]
    large = _large([(r.base, r.base + r.size) for r in committed], ask)
    private = [(r.base, r.base + r.size) for r in committed if r.type == winapi.MEM_PRIVATE]
    if large is None:
        return Outside(None, None)
    return Outside(len(large) * LARGE_PAGE, _unlisted(private, large, listed, page_size, ask))


def _large(ranges: Ranges, ask: Ask) -> NDArray[Any] | None:
    """The addresses of large pages, sorted; None when there are too many places for them."""
    ranges = [(-(-start // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE) for start, end in ranges]
    if sum(max(end - start, 0) for start, end in ranges) // LARGE_PAGE > MOST_LARGE_PLACES:
        return None
    found = [some[ask(some).large] for some in _places(ranges, LARGE_PAGE)]
    return np.concatenate(found) if found else np.zeros(0, "<u8")


def _unlisted(
    ranges: Ranges, large: NDArray[Any], listed: Callable[[], NDArray[Any]], page_size: int, ask: Ask
) -> int | None:
    before = listed()
    pages = (sum(end - start for start, end in ranges) - len(large) * LARGE_PAGE) // page_size
    if pages - len(before) > MOST_PAGES:
        return None
    found = []
    for some in _places(ranges, page_size):
        rest = some[~_in(some, before) & ~_in(some - some % LARGE_PAGE, large)]
        told = ask(rest)
        found.append(rest[told.valid & ~told.large])
    places = np.concatenate(found) if found else np.zeros(0, "<u8")
    if len(places):  # pages may have entered the working set meanwhile
        places = places[~_in(places, listed())]
    if len(places):  # and others may have left it
        told = ask(places)
        places = places[told.valid & ~told.large]
    return len(places) * page_size


def _places(ranges: Ranges, step: int) -> Iterator[NDArray[Any]]:
    """Yields the multiples of `step` in these ranges, in arrays of limited size."""
    for start, end in ranges:
        for at in range(start, end, step << 16):
            yield np.arange(at, min(end, at + (step << 16)), step, dtype="<u8")


def _in(places: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of the places that are in a sorted array."""
    at = np.searchsorted(known, places)
    found: NDArray[np.bool_] = at < len(known)
    found[found] = known[at[found]] == places[found]
    return found
