"""Faults at instructions without a sample are counted where the instruction alone tells the label."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from stacks_scripted import Stacks

from wstrace.analysis.stack_views import StackBy
from wstrace.analysis.stacks import StackCounts, StackRow
from wstrace.analysis.symbols import Symbolizer
from wstrace.analysis.tally import NO_SAMPLE
from wstrace.batch import Dictionary
from wstrace.interfaces import Context
from wstrace.schema import (
    HOW_NOT_SAMPLED,
    HOW_OWN,
    KIND_ANON,
    KIND_FILE,
    KIND_SHIFT,
    MAPPING,
    PAGE_FAULT,
)
from wstrace.testing import batch_of

LIBRARY, OWN, JIT = 1, 2, 3  # mappings
FILES = {LIBRARY: "/usr/lib/x.so", OWN: "/srv/app/worker", JIT: "[anon]"}
START = 0x10000
SORT, FORK = 0x230, 0x5230


class Faults(NamedTuple):
    """Faults of an instruction; samples: how many of them have one, each of which stands for as many faults."""

    mapping: int
    offset: int
    faults: int
    samples: int = 0
    callers: tuple[tuple[int, int], ...] = ()
    weight: int = 10
    how: int = HOW_OWN


def tables(*groups: Faults, by: StackBy) -> dict[str, StackRow]:
    """The rows of native stacks, by label."""
    strings, counts = Dictionary(), StackCounts()
    stacks, symbolizer = Stacks(strings), Symbolizer(Context())
    kinds = [KIND_ANON if number == JIT else KIND_FILE for number in FILES]
    mappings = batch_of(MAPPING, strings, id=list(FILES), pid=7, start=[START * number for number in FILES],
                        end=[START * (number + 1) for number in FILES], offset=0, file=list(FILES.values()),
                        flags=[kind << KIND_SHIFT for kind in kinds])  # fmt: skip
    leaves = [stacks.native([(one.mapping, one.offset), *one.callers]) if one.samples else 0 for one in groups]
    sites = [rows for tree in stacks.trees.values() if (rows := tree.new_rows()) is not None]
    for batch in (mappings, *sites):
        counts.add(batch)
        symbolizer.learn(batch)
    for one, leaf in zip(groups, leaves, strict=True):
        sampled = [int(at < one.samples) for at in range(one.faults)]
        counts.add(batch_of(PAGE_FAULT, strings, time_ns=1, pid=7, tid=7, flags=0, va=list(range(one.faults)),
                            pc=START * one.mapping + one.offset, pc_mapping=one.mapping, pc_file=FILES[one.mapping],
                            native_stack=[leaf * is_ for is_ in sampled],
                            native_how=[one.how if is_ else HOW_NOT_SAMPLED for is_ in sampled],
                            weight=[one.weight * is_ for is_ in sampled]))  # fmt: skip
    return {row.label: row for row in counts.table(by, symbolizer=symbolizer, native=True)}


def told(rows: dict[str, StackRow]) -> dict[str, tuple[int, int, int]]:
    return {label: (row.total, row.margin, row.samples) for label, row in rows.items()}


@pytest.mark.parametrize("samples", [1, 4, 40])
def test_functions_and_modules_are_counted_whatever_has_a_sample(samples: int) -> None:
    """One sample of SORT may stand for faults of FORK: 4 of them stand for 240 in 45."""
    groups = (Faults(LIBRARY, SORT, 45, samples, weight=60), Faults(LIBRARY, FORK, 1500))
    assert told(tables(*groups, by="function")) == {
        f"x.so+{FORK:#x}": (1500, 0, 0), f"x.so+{SORT:#x}": (45, 0, samples)}  # fmt: skip
    rows = tables(*groups, by="package")
    assert told(rows) == {"x.so": (1545, 0, samples)}
    assert rows["x.so"].certain == 1545


def test_whose_stacks_they_are_is_not_known() -> None:
    groups = (Faults(LIBRARY, SORT, 45, 40, weight=1), Faults(LIBRARY, FORK, 1500))
    rows = tables(*groups, by="stack")
    assert {label: row.total for label, row in rows.items()} == {f"x.so+{SORT:#x}": 45, NO_SAMPLE: 1500}


def test_an_own_line_is_known_and_that_of_a_library_is_its_callers() -> None:
    """FORK of the library may have been called by any own line."""
    sampled = Faults(LIBRARY, SORT, 200, 200, ((OWN, 0x40),), weight=1)
    rows = tables(sampled, Faults(LIBRARY, FORK, 300), Faults(OWN, 0x80, 50), by="line")
    assert told(rows) == {"worker+0x40": (200, 0, 200), "worker+0x80": (50, 0, 0), NO_SAMPLE: (300, 0, 0)}


@pytest.mark.parametrize(("samples", "known"), [(200, True), (20, False)])
def test_where_many_samples_have_no_own_code_the_innermost_frame_is_told(samples: int, known: bool) -> None:
    rows = tables(Faults(LIBRARY, SORT, 200, samples, weight=1), Faults(LIBRARY, FORK, 300), by="line")
    assert {label: row.total for label, row in rows.items()} == {
        f"x.so+{SORT:#x}": 200, f"x.so+{FORK:#x}" if known else NO_SAMPLE: 300}  # fmt: skip


def test_code_without_a_file_has_no_name() -> None:
    """A few samples of it stand for what has none, as before; the file's instructions count in full all the same."""
    jit = [Faults(JIT, 0x10 * at, 10, int(at == 1), weight=100) for at in range(1, 6)]
    rows = tables(*jit, Faults(LIBRARY, SORT, 300, 20), Faults(LIBRARY, FORK, 50), by="function")
    assert [rows.pop(f"x.so+{offset:#x}").total for offset in (SORT, FORK)] == [300, 50]
    assert [row.total for row in rows.values()] == [50]
