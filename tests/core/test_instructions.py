"""Instructions are distinguished by their place in the file, not by that in a page, wherever the file is mapped."""

from wstrace.analysis.symbols import Instructions
from wstrace.schema import KIND_ANON, KIND_FILE, KIND_SHIFT, MAPPING, PAGE_FAULT
from wstrace.testing import batch_of


def numbers_of(known: Instructions, pc: list[int], mapping: list[int], file: int | list[int] = 1) -> list[int]:
    faults = batch_of(PAGE_FAULT, pid=1, tid=1, va=1, flags=0, pc=pc, pc_mapping=mapping, pc_file=file)
    return known.of(faults)[0].tolist()


def mapped(known: Instructions, ids: list[int], start: list[int], offset: int | list[int], kind: int) -> None:
    known.learn(batch_of(MAPPING, id=ids, pid=1, start=start, offset=offset, flags=kind << KIND_SHIFT))


def test_a_part_of_a_file_that_is_mapped_apart_has_the_same_instructions():
    known = Instructions()
    mapped(known, [1, 2, 3], [0x10000, 0x70000, 0x74000], [0x1000, 0x1000, 0x5000], KIND_FILE)
    assert len(set(numbers_of(known, [0x14010, 0x74010, 0x74010], [1, 2, 3]))) == 1
    one, other = numbers_of(known, [0x14010, 0x14010], [1, 1], [1, 2])
    assert one != other, "of another file"


def test_code_without_a_file_is_known_by_its_address():
    """Where a part of a JIT's memory gets other rights it is a mapping of its own, which begins elsewhere."""
    known = Instructions()
    mapped(known, [1, 2], [0x10000, 0x14000], 0, KIND_ANON)
    one, same, other = numbers_of(known, [0x14010, 0x14010, 0x10010], [1, 2, 1])
    assert one == same != other


def test_without_its_mapping_an_instruction_is_known_by_its_place_in_a_page():
    known = Instructions(limit=4)
    mapped(known, [3, 4, 0], [0x10000, 0x20000, 0], 0, KIND_FILE)
    first, same, other = numbers_of(known, [0x20010, 0x71010, 0x20020], [4, 9, 4])
    assert first == same != other
    assert numbers_of(known, [0x10010], [3]) != [first]
