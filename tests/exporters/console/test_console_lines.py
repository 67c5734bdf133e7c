"""One line a fault, with the image sections of page and instruction."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kit.stacks_scripted import Fault, Stacks

from wstrace.batch import Batch
from wstrace.schema import FRAME_CUT, HOW_NOT_KNOWN, PAGE_FAULT, Column
from wstrace.testing import batch_of

PARSE, MAIN = ("parse_record", "/srv/app/leak.py", 12), ("<module>", "/srv/app/leak.py", 40)
LOADS = ("loads", "/usr/lib/python3.11/json/__init__.py", 346)
LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


def test_lines_name_owner_and_module_with_their_sections(kit):
    trace = kit.Trace()
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections()})
    assert kit.fault_lines(trace, kit.small(trace), "lines").splitlines() == [
        "7f1000000000 7f0000001234 libc.so.6!.text(14) via python3.11!.text(14)",
        "7f1000001000 7f0000001234 libc.so.6!.data(20) via python3.11!.text(14)",
        "7f1000002000 7f0000001234 libc.so.6!.data(20) via python3.11!.text(14)",
        "7f1000003000 7f0000001234 [heap] via python3.11!.text(14)",
        "7f1000004000 7f0000001234 [unknown] via [kernel]",
    ]
    resolver = trace.context.resolvers["sections"]
    assert (PYTHON, [0x1234], 700) in resolver.wanted  # a distinct address is requested once


@pytest.mark.parametrize("broken", [False, True])
def test_lines_without_a_resolver_give_file_and_offset(kit, broken):
    trace = kit.Trace()
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections(broken=True)} if broken else {})
    assert kit.fault_lines(trace, kit.small(trace), "lines").splitlines()[0] == (
        "7f1000000000 7f0000001234 libc.so.6+0x1000 via python3.11+0x1234"
    )


def test_a_report_does_not_look_into_processes_of_today(kit):
    trace = kit.Trace(live=False)
    trace.context = replace(trace.context, resolvers={"sections": (resolver := kit.KnownSections())})
    kit.fault_lines(trace, kit.small(trace), "lines")
    assert {pid for _, _, pid in resolver.wanted} == {0}


def test_jsonl_has_the_documented_keys(kit):
    trace = kit.Trace()
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections()})
    rows = [json.loads(line) for line in kit.fault_lines(trace, kit.small(trace), "jsonl").splitlines()]
    text = {"section": ".text", "number": 14, "function": "f", "displacement": 3}
    assert rows[0] == {
        "time_ns": 5_000_000_000,
        "pid": 700,
        "tid": 700,
        "va": "0x7f1000000000",
        "pc": "0x7f0000001234",
        "major": False,
        "kernel": False,
        "kind": "file",
        "file": LIBC,
        "pc_file": PYTHON,
        "owner": {"module": "libc.so.6", "address": "0x1000", **text},
        "via": {"module": "python3.11", "address": "0x1234", **text},
    }
    assert [row.get("access") for row in rows] == [None, None, "write", "read", None]
    assert [row["major"] for row in rows] == [False, True, False, False, False]
    assert rows[4]["kernel"]
    assert rows[4]["owner"] == {"module": "[unknown]"}
    assert "file" not in rows[4]
    documented = (Path(__file__).parents[3] / "docs" / "console.md").read_text(encoding="utf-8")
    for key in {key for row in rows for key in (*row, *row["owner"])}:
        assert f"`{key}`" in documented, key


def test_a_column_that_the_schema_gains_is_in_json_lines_by_what_it_means(kit):
    trace = kit.Trace()
    new = (
        Column("cpu", "u16", "id"),
        Column("around", "u64", "addr"),
        Column("lock", "u32", "str"),
        Column("owner", "u32", "id"),
    )
    schema = PAGE_FAULT._replace(columns=(*PAGE_FAULT.columns[:6], *new, *PAGE_FAULT.columns[6:]))
    old = trace.faults([(2, LIBC, PYTHON)])
    columns = {
        **old.columns,
        "cpu": np.array([0, 3], "u2"),
        "around": np.array([0, 0x7F0000], "u8"),
        "lock": np.array([0, trace.code("mmap_lock")], "u4"),
        "owner": np.array([1, 1], "u4"),
    }
    batch = Batch(schema, columns, strings=trace.context.strings, window=old.window)
    before = kit.fault_lines(trace, [old], "jsonl").splitlines()
    rows = [json.loads(line) for line in kit.fault_lines(trace, [batch], "jsonl").splitlines()]
    assert rows[0] == {**json.loads(before[0]), "cpu": 0, "around": "0x0"}
    assert rows[1] == {**json.loads(before[1]), "cpu": 3, "around": "0x7f0000", "lock": "mmap_lock"}
    assert kit.fault_lines(trace, [batch], "lines") == kit.fault_lines(trace, [old], "lines")


def test_a_json_line_has_the_stack_or_the_reason_why_not(kit):
    trace = kit.Trace()
    faults = [
        Fault([LOADS, PARSE]),
        Fault([]),
        Fault(None, how=HOW_NOT_KNOWN),
        Fault([PARSE], [(0, 0x10)], weight=3),
        Fault(None, [(0, 0x10)], weight=3, how=HOW_NOT_KNOWN),
    ]
    found = [
        json.loads(line)
        for line in kit.fault_lines(trace, Stacks(trace.context.strings).batches(faults), "jsonl").splitlines()
    ]
    loads = {"kind": "python", "function": "loads", "file": LOADS[1], "line": 346, "own": False, "how": "exact"}
    parse = {"kind": "python", "function": "parse_record", "file": PARSE[1], "line": 12, "own": True, "how": "exact"}
    native = {"kind": "native", "module": "[unknown]", "offset": "0x10", "how": "own"}
    assert [row["stack"] for row in found] == [[loads, parse], [], None, [native, parse], [native]]
    assert [row.get("stack_reason") for row in found] == [
        None, "no Python frame", "interpreter not known", None, "interpreter not known",
    ]  # fmt: skip
    assert [row.get("weight") for row in found] == [0, 0, 0, 3, 3]
    assert not any(name in row for row in found for name in ("stack_how", "native_stack", "native_how"))
    documented = (Path(__file__).parents[3] / "docs" / "console.md").read_text(encoding="utf-8")
    for key in {key for row in found for key in row} | set(loads) | set(native) | {"stack_truncated"}:
        assert f"`{key}`" in documented, key


def test_json_lines_go_on_when_further_call_sites_come(kit):
    trace = kit.Trace()
    stacks = Stacks(trace.context.strings)
    parts = [
        batch for stack in ([MAIN], [PARSE, MAIN], [LOADS, PARSE, MAIN]) for batch in stacks.batches([Fault(stack)])
    ]
    found = [json.loads(line)["stack"] for line in kit.fault_lines(trace, parts, "jsonl").splitlines()]
    assert [[frame["function"] for frame in frames] for frames in found] == [
        ["<module>"], ["parse_record", "<module>"], ["loads", "parse_record", "<module>"],
    ]  # fmt: skip


def test_a_json_line_says_that_a_stack_was_cut_and_that_a_frame_is_not_certain(kit):
    trace = kit.Trace()
    stacks = Stacks(trace.context.strings)
    ids = [stacks.python([PARSE], flags=FRAME_CUT), stacks.python([PARSE], flags=16)]
    sites = [batch for tree in stacks.trees.values() if (batch := tree.new_rows())]
    fault = batch_of(PAGE_FAULT, trace.context.strings, pid=1, tid=1, pc=1, va=1, flags=0, stack=ids, stack_how=[1, 1])
    found = [json.loads(line) for line in kit.fault_lines(trace, [*sites, fault], "jsonl").splitlines()]
    assert [row.get("stack_truncated") for row in found] == [True, None]
    assert [row["stack"][0]["how"] for row in found] == ["exact", "not checked"]
