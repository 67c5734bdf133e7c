"""The cube counts as counting by hand does, in bounded memory; dimensions name its cells, those of plugins too."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.analysis import dimensions as registry
from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import Label, Labels, rows
from wstrace.analysis.symbols import Instructions
from wstrace.batch import Batch, Dictionary
from wstrace.errors import UsageError
from wstrace.hookspecs import Dimension
from wstrace.schema import KIND_ANON, KIND_FILE, KIND_SHIFT, KINDS, MAPPING, PAGE_FAULT, PROCESS, PROCESS_FORK
from wstrace.testing import batch_of
from wstrace.text import base_name

NAMES = ["/usr/lib/libc.so.6", "/opt/lib/libc.so.6", "/usr/bin/python3.11", "[heap]", "[anon]", "/a b/data\n.bin"]
FAULT = st.tuples(
    st.sampled_from([7, 8, 4_000_000, 2**32 - 1]),  # pid
    st.sampled_from([7, 8, 9, 4_000_001, 2**32 - 1]),  # tid
    st.integers(0, 1),  # major
    st.integers(0, len(NAMES)),  # file
    st.integers(0, len(NAMES)),  # pc_file
    st.integers(0, len(KINDS) - 1),
)


def dictionary(names: list[str] = NAMES) -> Dictionary:
    strings = Dictionary()
    for name in names:
        strings.code(name)
    return strings


def faults(found: list[tuple[int, ...]], strings: Dictionary, **more: list[int]) -> Batch:
    names = ("pid", "tid", "flags", "file", "pc_file", "kind")
    columns = {name: np.array([row[i] for row in found], "<u4") for i, name in enumerate(names)}
    zero = np.zeros(len(found), "<u8")
    columns |= {"time_ns": zero + np.uint64(1), "pc": zero, "va": zero, "kind": columns["kind"].astype("|u1"),
                "flags": columns["flags"].astype("|u1")}  # fmt: skip
    columns |= {name: np.array(values, "<u4") for name, values in more.items()}
    return Batch(PAGE_FAULT, columns, strings=strings)


def text(code: int) -> str:
    return NAMES[code - 1] if code else "[unknown]"


@given(st.lists(st.lists(FAULT, max_size=30), max_size=5))
@settings(max_examples=60)
def test_rows_are_those_of_counting_by_hand(batches):
    strings, cube = dictionary(), Cube()
    expected = {by: Counter() for by in ("file", "module", "kind", "process")}
    major = Counter()
    for batch in batches:
        cube.add(faults(batch, strings))
        for pid, _, hard, file, pc_file, kind in batch:
            expected["file"][text(file)] += 1
            expected["module"][base_name(text(pc_file))] += 1
            expected["kind"][KINDS[kind]] += 1
            expected["process"][f"[unknown] ({pid})"] += 1
            major[text(file)] += hard
    for by, counted in expected.items():
        assert {row.label: row.values["faults"] for row in rows(cube, (by,))} == counted
    assert {row.label: row.values["from_disk"] for row in rows(cube, ("file",))} == {
        name: major[name] for name in expected["file"]
    }
    both = rows(cube, ("file", "kind"))
    assert sum(row.values["faults"] for row in both) == cube.total("faults") == sum(map(len, batches))


def test_past_32768_labels_those_of_least_faults_are_one_row_and_the_sum_stays():
    cube, often = Cube(), range(30_000, 31_000)
    cube.add(faults([(7, tid, 0, 0, 0, 0) for tid in (*range(8, 40_008), *often)], dictionary()))
    found = {row.label: row["faults"] for row in rows(cube, ("thread",))}
    assert len(found) == 32_769
    assert (sum(found.values()), found["[other]"]) == (41_000, 40_000 - 32_768)
    assert {found[f"[unknown] ({tid})"] for tid in often} == {2}


@given(st.lists(st.lists(FAULT, min_size=1, max_size=30), max_size=5), st.integers(2, 20))
@settings(max_examples=40)
def test_past_its_limit_a_cube_keeps_the_total_and_what_counted_most(batches, limit):
    strings, cube = dictionary(), Cube(limit=limit)
    for batch in batches:
        cube.add(faults(batch, strings))
    assert len(cube) <= limit + 30
    shown = rows(cube, ("file",))
    assert sum(row.values["faults"] for row in shown) == sum(map(len, batches))
    assert ("[other]" in {row.label for row in shown}) == bool(cube.forgotten)


def test_a_fault_of_a_sampled_trace_stands_for_as_many_as_its_column_says():
    cube = Cube()
    cube.add(faults([(7, 7, 1, 1, 1, 1), (7, 7, 0, 1, 1, 1)], dictionary(), sampled=[5, 7]))
    (row,) = rows(cube, ("file",))
    assert row.values == {"faults": 12, "from_disk": 5, "samples": 2}


def test_processes_of_several_hosts_are_different_ones_and_have_their_names():
    strings, cube = dictionary([*NAMES, "worker"]), Cube()
    code = strings.code("worker")
    columns = {"time_ns": [1], "pid": [8], "ppid": [7], "tid": [8], "event": [PROCESS_FORK], "name": [code]}
    cube.add(Batch(PROCESS, {name: np.array(values, "<u4") for name, values in columns.items()}, strings=strings))
    cube.add(faults([(8, 8, 0, 1, 1, 1), (8, 8, 0, 1, 1, 1), (7, 7, 0, 1, 1, 1)], strings, host=[0, 1, 0]))
    assert Counter(row.label for row in rows(cube, ("process",))) == {
        "worker (8), worker 1 of 7": 1, "[unknown] (8)": 1, "[unknown] (7), main": 1
    }  # fmt: skip


def test_an_unknown_dimension_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="colour"):
        rows(Cube(), ("colour",))


def test_a_plugin_adds_a_dimension_of_a_column_with_one_entry(monkeypatch):
    def causes(cube):
        return Labels(cube.key("cause").astype(np.intp), [Label("first touch"), Label("swap")])

    class Found:
        dimensions = (Dimension("cause", "cause", ("cause",), causes),)

    monkeypatch.setattr(registry, "default_plugins", Found)
    cube = Cube(registry.dimensions_of(("cause",)).values())
    cube.add(faults([(7, 7, 0, 1, 1, 1)] * 3, dictionary(), cause=[0, 1, 1]))
    assert {row.label: row.values["faults"] for row in rows(cube, ("cause",))} == {"first touch": 1, "swap": 2}


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
