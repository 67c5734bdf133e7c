"""What a listing of a process tells beside what was asked and recorded before: equal to a model of single pages."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

from wstrace_plugins.page_faults.linux.asked_mappings import AskedMappings, Told

PID, SINCE = 7, 5
spans = st.lists(st.integers(0, 12), unique=True).map(sorted)
tellings = st.lists(
    st.tuples(st.integers(6, 20), st.integers(0, 11), st.integers(1, 5), st.booleans()).map(
        lambda one: Told(one[0], one[1], one[1] + one[2], one[3])
    ),
    max_size=5,
)


def listing(edges: list[int]) -> dict[str, Any]:
    """Mappings of a file from each edge to the next one, by twos."""
    starts, ends = (np.array(edges[at : len(edges) // 2 * 2 : 2], "<u8") for at in (0, 1))
    return {"start": starts, "end": ends, "offset": starts * np.uint64(100), "ino": np.ones(len(starts), "<u8")}


def pages_of(columns: dict[str, Any], *names: str) -> dict[int, tuple[int, ...]]:
    return {
        page: (int(columns["offset"][row]) + page - int(columns["start"][row]), *(int(columns[n][row]) for n in names))
        for row in range(len(columns["start"]))
        for page in range(int(columns["start"][row]), int(columns["end"][row]))
    }


@given(spans, tellings, tellings)
def test_a_listing_tells_what_nothing_newer_has_told(edges: list[int], told: list[Told], coming: list[Told]) -> None:
    """WHEN a process is listed, be it empty because it has just ended THEN each page has its file and its time."""
    asked = AskedMappings()
    asked.begin(PID, SINCE)
    for one in sorted(told):
        asked.add(PID, one)
    columns = listing(edges)
    latest = {
        page: max((one for one in [*told, *coming] if one.start <= page < one.end), default=None) for page in range(20)
    }
    expected = {
        page: (*there, SINCE if one is None else one.time_ns)
        for page, there in pages_of(columns).items()
        if (one := latest[page]) is None or not one.known
    }
    assert pages_of(asked.untold(PID, columns, coming), "time_ns") == expected
