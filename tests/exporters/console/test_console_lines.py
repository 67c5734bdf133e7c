"""One line a fault, with the image sections of page and instruction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wstrace.batch import Batch, SnapshotPart
from wstrace.places import MappedFile
from wstrace.schema import PAGE_FAULT, RESIDENT_PAGES, Column

LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


def test_lines_name_owner_and_module_with_their_sections(kit: Any) -> None:
    trace = kit.Trace()
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections()})
    assert kit.printed(trace, kit.lines_of(trace), format="lines").splitlines() == [
        "7f1000000000 7f0000001234 libc.so.6!.text(14) via python3.11!.text(14)",
        "7f1000001000 7f0000001234 libc.so.6!.data(20) via python3.11!.text(14)",
        "7f1000002000 7f0000001234 libc.so.6!.data(20) via python3.11!.text(14)",
        "7f1000003000 7f0000001234 [heap] via python3.11!.text(14)",
        "7f1000004000 7f0000001234 [unknown] via [kernel]",
    ]
    resolver: Any = trace.context.resolvers["sections"]
    assert (PYTHON, [0x1234], 700) in resolver.asked  # a distinct address is asked once


@pytest.mark.parametrize("broken", [False, True])
def test_lines_without_a_resolver_give_file_and_offset(kit: Any, broken: bool) -> None:
    trace = kit.Trace()
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections(broken=True)} if broken else {})
    assert kit.printed(trace, kit.lines_of(trace), format="lines").splitlines()[0] == (
        "7f1000000000 7f0000001234 libc.so.6+0x1000 via python3.11+0x1234"
    )


def test_a_report_does_not_look_into_processes_of_today(kit: Any) -> None:
    trace = kit.Trace(live=False)
    trace.context = replace(trace.context, resolvers={"sections": (resolver := kit.KnownSections())})
    kit.printed(trace, kit.lines_of(trace), format="lines")
    assert {pid for _, _, pid in resolver.asked} == {0}


def test_jsonl_has_the_documented_keys(kit: Any) -> None:
    trace = kit.Trace()
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections()})
    rows = [json.loads(line) for line in kit.printed(trace, kit.lines_of(trace), format="jsonl").splitlines()]
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
        "owner": {
            "module": "libc.so.6",
            "address": "0x1000",
            "section": ".text",
            "number": 14,
            "function": "f",
            "displacement": 3,
        },
        "via": {
            "module": "python3.11",
            "address": "0x1234",
            "section": ".text",
            "number": 14,
            "function": "f",
            "displacement": 3,
        },
    }
    assert [row.get("access") for row in rows] == [None, None, "write", "read", None]
    assert [row["major"] for row in rows] == [False, True, False, False, False]
    assert rows[4]["kernel"]
    assert rows[4]["owner"] == {"module": "[unknown]"}
    assert "file" not in rows[4]
    documented = (Path(__file__).parents[3] / "docs" / "console.md").read_text(encoding="utf-8")
    for key in {key for row in rows for key in (*row, *row["owner"])}:
        assert f"`{key}`" in documented, key


def test_a_column_that_the_schema_gains_is_in_json_lines_by_what_it_means(kit: Any) -> None:
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
    before = kit.printed(trace, [old], format="jsonl").splitlines()
    rows = [json.loads(line) for line in kit.printed(trace, [batch], format="jsonl").splitlines()]
    assert rows[0] == {**json.loads(before[0]), "cpu": 0, "around": "0x0"}
    assert rows[1] == {**json.loads(before[1]), "cpu": 3, "around": "0x7f0000", "lock": "mmap_lock"}
    assert kit.printed(trace, [batch], format="lines") == kit.printed(trace, [old], format="lines")


def test_filter_holds_for_lines_too(kit: Any) -> None:
    trace = kit.Trace()
    assert len(kit.printed(trace, kit.lines_of(trace), format="lines", hard=True).splitlines()) == 1
    assert len(kit.printed(trace, kit.lines_of(trace), format="jsonl", file="libc*").splitlines()) == 3


def test_loss_is_told_beside_the_lines_not_among_them(kit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trace = kit.Trace()
    trace.context.ledger.add("dropped_bus", 3, "page_fault")
    assert len(kit.printed(trace, kit.lines_of(trace), format="jsonl").splitlines()) == 5
    assert "3  records dropped: the bus's queue was full (page_fault)" in capsys.readouterr().err


def test_by_section_counts_faults_and_resident_pages(kit: Any) -> None:
    trace = kit.Trace(live=False)
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections()})
    resident = trace.pages(
        [(2, LIBC), (5, "[heap]")],
        mapping=np.array([1, 2], "u4"),
        start=np.array([0x7F1000000000, 0x7F1000003000], "u8"),
    )
    batches = [*kit.lines_of(trace), resident]
    report = json.loads(kit.printed(trace, batches, json=True, by="section"))
    assert report["summary"]["top"]["section"] == [
        {"section": "libc.so.6!.data(20)", "total": 2, "minor": 1, "major": 1, "still_resident_pages": 1},
        {"section": "[heap]", "total": 1, "minor": 1, "major": 0, "still_resident_pages": 5},
        {"section": "libc.so.6!.text(14)", "total": 1, "minor": 1, "major": 0, "still_resident_pages": 1},
        {"section": "[unknown]", "total": 1, "minor": 1, "major": 0, "still_resident_pages": 0},
    ]
    assert "still resident" in kit.printed(trace, batches, by="section")
    for time_ns, heap in ((1, 0), (-1, 5)):  # the last snapshot by time counts, whichever came last
        header = {"snap": 2, "last": True, "pid": 700, "t": time_ns}
        columns = dict(resident.take(slice(0, 1)).columns)
        again = [
            *batches,
            Batch(RESIDENT_PAGES, columns, strings=trace.context.strings, snapshot=SnapshotPart.from_dict(header)),
        ]
        rows = json.loads(kit.printed(trace, again, json=True, by="section"))["summary"]["top"]["section"]
        assert {row["section"]: row["still_resident_pages"] for row in rows}["[heap]"] == heap


def test_by_function_counts_faults_by_that_of_the_instruction(kit: Any) -> None:
    trace = kit.Trace(live=False)
    trace.context = replace(trace.context, resolvers={"sections": kit.KnownSections()})
    batches = [*kit.lines_of(trace), trace.pages([(2, LIBC)], mapping=np.array([1], "u4"))]
    rows = json.loads(kit.printed(trace, batches, json=True, by="function"))["summary"]["top"]["function"]
    assert rows == [
        {"function": "python3.11!f", "total": 4, "minor": 3, "major": 1},
        {"function": "[kernel]", "total": 1, "minor": 1, "major": 0},
    ]
    assert "still resident" not in kit.printed(trace, batches, by="function")


def test_names_that_are_missing_are_a_number_with_the_reason(kit: Any) -> None:
    class Sections(kit.KnownSections):
        def resolve(self, file: MappedFile, offsets: Any) -> list[Any]:
            places = super().resolve(file, offsets)
            why = "is not the file that was traced" if "python" in file.path else "cannot\x1b be read"
            return [place._replace(section="", number=0, function="", why=why) for place in places]

    trace = kit.Trace(live=False)
    trace.context = replace(trace.context, resolvers={"sections": Sections()})
    told = "note            4  faults without a function: python3.11 is not the file that was traced"
    assert told in kit.printed(trace, kit.lines_of(trace), by="function").splitlines()
    told = "note            3  faults without a section: libc.so.6 cannot\\x1b be read"
    assert told in kit.printed(trace, kit.lines_of(trace), by="section").splitlines()
    assert "without a" not in kit.printed(trace, kit.lines_of(trace), by="file")
    report = json.loads(kit.printed(trace, kit.lines_of(trace), by="function", json=True))
    assert report["summary"]["unnamed"] == [
        {"module": "python3.11", "why": "is not the file that was traced", "faults": 4}]  # fmt: skip
