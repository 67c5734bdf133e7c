"""Instructions are told apart by their place in the file, not by that in a page, wherever the file is mapped."""

from __future__ import annotations

import numpy as np
import pytest
from stacks_scripted import Stacks

from wstrace.analysis.instructions import Instructions
from wstrace.analysis.stacks import StackCounts
from wstrace.batch import Dictionary
from wstrace.schema import HOW_NOT_SAMPLED, HOW_OWN, KIND_ANON, KIND_FILE, KIND_SHIFT, MAPPING, PAGE_FAULT
from wstrace.testing import batch_of

SORT, FORK, PROCESSES = 0x5234, 0x9234, 100
STARTS = [0x7F00_0000_0000 + number * 0x31_0000 for number in range(PROCESSES)]


def test_two_instructions_at_one_place_of_a_page_are_two() -> None:
    """Of 100 processes, with the file at 100 addresses, 10 have a sample: of 45 faults of SORT, never of 15 of FORK."""
    strings, counts = Dictionary(), StackCounts()
    stacks = Stacks(strings)
    native = stacks.native([(1, SORT), (1, 0x30)])
    numbers = list(range(1, PROCESSES + 1))
    counts.add(batch_of(MAPPING, strings, id=numbers, pid=numbers, start=STARTS, offset=0x1000, file="/usr/lib/x.so",
                        end=[start + 0x10_0000 for start in STARTS], flags=KIND_FILE << KIND_SHIFT))  # fmt: skip
    for tree in stacks.trees.values():
        if (sites := tree.new_rows()) is not None:
            counts.add(sites)
    for number, start in zip(numbers, STARTS, strict=True):
        sampled = [0] * 59 + [int(number % 10 == 0)]
        counts.add(batch_of(PAGE_FAULT, strings, time_ns=[number * 100 + at for at in range(60)], pid=number,
                            tid=number, flags=0, va=4096, pc_mapping=number, pc_file="/usr/lib/x.so",
                            pc=[start - 0x1000 + at for at in [FORK] * 15 + [SORT] * 45],
                            native_stack=[native * one for one in sampled], weight=[60 * one for one in sampled],
                            native_how=[HOW_OWN if one else HOW_NOT_SAMPLED for one in sampled]))  # fmt: skip
    (row,) = [row for row in counts.table("function", native=True) if row.label.endswith(f"+{SORT:#x}")]
    assert (row.total, row.certain, row.samples) == (45 * PROCESSES, 45 * PROCESSES, 10)


def numbers_of(known: Instructions, pc: list[int], mapping: list[int], file: int | list[int] = 1) -> list[int]:
    faults = batch_of(PAGE_FAULT, pid=1, tid=1, va=1, flags=0, pc=pc, pc_mapping=mapping, pc_file=file)
    return known.of(faults).tolist()


def mapped(known: Instructions, ids: list[int], start: list[int], offset: int | list[int], kind: int) -> None:
    known.learn(batch_of(MAPPING, id=ids, pid=1, start=start, offset=offset, flags=kind << KIND_SHIFT))


def test_a_part_of_a_file_that_is_mapped_apart_has_the_same_instructions() -> None:
    known = Instructions()
    mapped(known, [1, 2, 3], [0x10000, 0x70000, 0x74000], [0x1000, 0x1000, 0x5000], KIND_FILE)
    assert len(set(numbers_of(known, [0x14010, 0x74010, 0x74010], [1, 2, 3]))) == 1
    one, other = numbers_of(known, [0x14010, 0x14010], [1, 1], [1, 2])
    assert one != other, "of another file"


def test_code_without_a_file_is_known_by_its_address() -> None:
    """Where a part of a JIT's memory gets other rights it is a mapping of its own, which begins elsewhere."""
    known = Instructions()
    mapped(known, [1, 2], [0x10000, 0x14000], 0, KIND_ANON)
    one, same, other = numbers_of(known, [0x14010, 0x14010, 0x10010], [1, 2, 1])
    assert one == same != other


def test_without_its_mapping_an_instruction_is_known_by_its_place_in_a_page() -> None:
    known = Instructions(limit=4)
    mapped(known, [3, 4, 0], [0x10000, 0x20000, 0], 0, KIND_FILE)
    first, same, other = numbers_of(known, [0x20010, 0x71010, 0x20020], [4, 9, 4])
    assert first == same != other
    assert numbers_of(known, [0x10010], [3]) != [first]


def test_past_the_limit_further_instructions_are_one() -> None:
    known = Instructions(most=100)
    mapped(known, [1], [0], 0, KIND_FILE)
    found = numbers_of(known, list(range(16, 1016)), [1] * 1000)
    assert len(set(found)) == 100
    assert numbers_of(known, list(range(16, 1016)), [1] * 1000) == found


def test_a_program_that_faults_at_a_new_instruction_each_time_takes_bounded_memory() -> None:
    """A JIT compiler's; of a million instructions the sums took 260 MB, and there was room for four."""
    strings, counts = Dictionary(), StackCounts()
    counts.add(batch_of(MAPPING, strings, id=1, pid=1, start=1 << 20, offset=0, flags=KIND_ANON << KIND_SHIFT))
    for at in range(1 << 20, 1 << 24, 1 << 21):
        pc = list(range(at, at + (1 << 21), 40))
        counts.add(batch_of(PAGE_FAULT, strings, time_ns=1, pid=1, tid=1, flags=0, va=4096, pc_mapping=1, pc=pc,
                            native_stack=0, native_how=HOW_NOT_SAMPLED))  # fmt: skip
    assert counts.total > 1.5 * Instructions.MOST
    assert len(counts._native.keys) == Instructions.MOST < 1 << 20
    (row,) = counts.table("function", native=True)
    assert row.total == counts.total


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_equal_where_places_are(seed: int) -> None:
    """Of many more places than the table of the last ones has slots, in batches."""
    rng = np.random.default_rng(seed)
    known, number_of = Instructions(most=1 << 20), dict[int, int]()
    mapped(known, [1], [0], 0, KIND_FILE)
    for _ in range(6):
        pc = rng.integers(16, 300_000, 100_000)
        for place, number in zip(pc.tolist(), numbers_of(known, pc.tolist(), [1] * len(pc)), strict=True):
            assert number_of.setdefault(place, number) == number
    assert len(set(number_of.values())) == len(number_of) > 1 << 17
    some = np.array(list(number_of.values())[:10], np.uint32)
    assert set(known.files(some).tolist()) == {1}
