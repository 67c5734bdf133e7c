"""What a reader of a report could take wrongly: whose memory, of how many processes, what a filter has not found."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from wstrace.analysis import headline
from wstrace.analysis.filter import Filter
from wstrace.analysis.snapshots import MAX_PROCESSES
from wstrace.batch import Batch
from wstrace.cli.common import exit_on_exporter_error
from wstrace.errors import OutputError
from wstrace.schema import RESIDENT_PAGES
from wstrace.session import Session
from wstrace.testing import ScriptedSource
from wstrace.trace_info import Level
from wstrace_exporters.console.console import Console

LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


def alone(trace: Any) -> list[Any]:
    """One process of one thread, nothing missing."""
    trace.context.ledger.add("recorded", 30, "page_fault")
    trace.context.ledger.set("counted", 30, "minor")
    return [trace.process([(700, 1, 700, 3, "python3")]), trace.faults([(20, LIBC, LIBC), (10, "[heap]", LIBC)])]


def test_resident_pages_of_one_process_stand_under_its_name_and_others_are_not_known(kit: Any) -> None:
    trace = kit.Trace(live=False)
    text = kit.printed(trace, [*kit.ordinary(trace), trace.pages([(3000, TORCH)], pid=800)], by="file")
    assert "  resident in sh (800)  " in text
    assert "still resident" not in text
    rows = {line.split()[-1]: line.split() for line in text.splitlines()[4:]}
    assert rows[TORCH][2:4] == ["3,000", "pages"]
    assert rows[LIBC][2] == "-"
    both = [trace.pages([(3000, TORCH)], pid=pid) for pid in (700, 800)]
    text = kit.printed(trace, [*kit.ordinary(trace), *both], by="file")
    assert "still resident" in text
    assert {line.split()[-1]: line.split() for line in text.splitlines()[4:]}[LIBC][:2] == ["0", "pages"]


def test_a_file_of_which_no_fault_is_left_does_not_say_that_there_was_none(kit: Any) -> None:
    trace = kit.Trace()
    trace.context.info.incomplete = "the file is cut"
    lines = kit.printed(trace, [], verbose=True).splitlines()
    assert lines[0].startswith("no fault is in what is left of the trace")
    assert "the file is cut" in lines[1]


def test_a_snapshot_that_is_cut_is_said(kit: Any) -> None:
    trace = kit.Trace(live=False)
    cut = [trace.pages([(9, LIBC)], pid=pid).snapshot._replace(last=False) for pid in (700, 800)]
    for parts, told in ((cut[:1], "process 700"), (cut, "2 processes")):
        pages = [Batch(RESIDENT_PAGES, dict(trace.pages([(9, LIBC)]).columns), strings=trace.context.strings,
                       snapshot=part) for part in parts]  # fmt: skip
        text = kit.printed(trace, [*kit.ordinary(trace), *pages])
        assert text.splitlines()[1].endswith(f"resident pages of {told} not known: the snapshot is cut")
        assert "still resident" not in text


def test_processes_whose_snapshots_were_forgotten_are_said(kit: Any) -> None:
    trace = kit.Trace(live=False)
    pages = [trace.pages([(9, LIBC)], pid=pid) for pid in range(1, MAX_PROCESSES + 4)]
    text = kit.printed(trace, [*alone(trace), *pages])
    told = "resident pages of 3 processes not known: those of 4,096 are held"
    assert text.splitlines()[1].endswith(told)
    trace = kit.Trace(live=False)
    assert "are held" not in kit.printed(trace, [*alone(trace), *pages[:MAX_PROCESSES]])


def test_a_peak_among_several_processes_is_that_of_one(kit: Any) -> None:
    trace = kit.Trace()
    not_known = "peak 412.6 MiB resident in the largest of its 2 processes; "
    assert kit.printed(trace, kit.ordinary(trace)).startswith(not_known)
    trace = kit.Trace()
    batches = kit.ordinary(trace)
    trace.context.info.usage = dataclasses.replace(trace.context.info.usage, peak_pid=800)
    assert kit.printed(trace, batches).startswith("peak 412.6 MiB resident in sh (800); ")
    trace.context.info.usage = dataclasses.replace(trace.context.info.usage, peak_pid=900)
    assert kit.printed(trace, batches).startswith("peak 412.6 MiB resident in [unknown] (900); ")
    trace.context.info.page_size = 4096
    held = [*batches, trace.pages([(200_000, LIBC)], pid=700)]
    assert kit.printed(trace, held).startswith("peak at least 781.2 MiB resident in python3 (700); ")
    trace = kit.Trace()
    trace.context.info.usage = type(trace.context.info.usage)(peak_resident_bytes=1 << 20)
    assert kit.printed(trace, alone(trace)).startswith("peak 1.0 MiB resident; 30 faults")


@pytest.mark.parametrize(
    ("bytes_", "told"),
    [
        (432_640_000, "sh (800)"),
        (430_000_000, "sh (800)"),  # the kernel's own peak of a process may lack as much
        (400 << 20, "the largest of its 2 processes, of which sh (800) was seen with 400.0 MiB"),
        (100 << 20, "the largest of its 2 processes"),
        ("much", "the largest of its 2 processes"),
        (-1, "the largest of its 2 processes"),
    ],
)
def test_the_process_of_a_peak_that_the_system_says_of_nobody_is_the_one_that_was_seen_with_it(
    kit: Any, bytes_: object, told: str
) -> None:
    trace = kit.Trace()
    batches = kit.ordinary(trace)
    trace.context.info.extra["peak_seen"] = {"bytes": bytes_, "pid": 800}
    assert kit.printed(trace, batches).startswith(f"peak 412.6 MiB resident in {told}; ")


def test_a_process_whose_snapshot_has_most_of_the_peak_is_told_with_it(kit: Any) -> None:
    trace = kit.Trace()
    trace.context.info.page_size = 4096
    batches = [*kit.ordinary(trace), trace.pages([(102_400, LIBC)], pid=700)]
    told = "peak 412.6 MiB resident in the largest of its 2 processes, of which python3 (700) was seen with 400.0 MiB; "
    assert kit.printed(trace, batches).startswith(told)


@pytest.mark.parametrize(("peak", "told"), [(None, "peak at least 4.0 MiB"), (1 << 20, "peak at least 4.0 MiB"),
                                            (1016 * 4096, "peak 4.0 MiB"), (8 << 20, "peak 8.0 MiB")])  # fmt: skip
def test_a_snapshot_is_a_lower_bound_of_the_peak(kit: Any, peak: int | None, told: str) -> None:
    trace = kit.Trace()
    trace.context.info.usage = type(trace.context.info.usage)(peak_resident_bytes=peak)
    trace.context.info.page_size = 4096
    assert kit.printed(trace, [*alone(trace), trace.pages([(1000, LIBC), (24, "[heap]")])]).startswith(told)


def test_a_file_of_snapshots_has_no_word_of_counted_faults(kit: Any) -> None:
    trace = kit.Trace(live=False)
    info = trace.context.info
    info.page_size, info.command, info.targets = 4096, ["gunicorn: worker"], (700,)
    info.usage = type(info.usage)(0, 0, 8 << 20)
    first = trace.pages([(1000, LIBC), (24, "[heap]")])
    lines = kit.printed(trace, [first]).splitlines()
    assert lines[0] == "4.0 MiB resident in gunicorn: worker (700); peak 8.0 MiB resident; most in libc.so.6"
    assert lines[1] == "resident pages only: it holds no faults"
    assert not any("fault" in line for line in lines[2:])
    trace = kit.Trace(live=False)
    trace.context.info.page_size, trace.context.info.incomplete = 4096, "the file is cut"
    second = trace.pages([(2048, LIBC)], pid=800)
    lines = kit.printed(
        trace, [trace.pages([(1000, LIBC)]), second, trace.process([(800, 1, 800, 1, "sh")])]
    ).splitlines()
    assert lines[0] == "2 processes with resident pages, the most 8.0 MiB in sh (800); most in libc.so.6"
    assert lines[1] == "resident pages only: it holds no faults; the file is cut"


def test_a_trace_that_looked_for_faults_and_got_none_says_so(kit: Any) -> None:
    trace = kit.Trace(live=False)
    trace.context.info.level = Level("full")
    assert kit.printed(trace, [trace.pages([(9, LIBC)])]).startswith("0 faults, 0 from disk")


def test_labels_of_the_tables_can_be_typed_back(kit: Any) -> None:
    trace = kit.Trace()
    for label, n in (("[heap]", 2000), ("[unknown]", 140), ("[anon]", 500), ("libc.so.6", 900), (LIBC, 900)):
        text = kit.printed(trace, kit.ordinary(trace), file=label, by="file")
        assert f"{n:,} of 9,700 faults" in text, label
    bracket = "/tmp/[x]1.so"
    batches = [trace.faults([(3, bracket, LIBC), (4, "/tmp/y1.so", LIBC)])]
    assert "3 of 7 faults" in kit.printed(trace, batches, file=bracket)
    assert "4 of 7 faults" in kit.printed(trace, batches, file="/tmp/[xy]1.so")


@pytest.mark.parametrize(("options", "told"), [
    ({"file": "libtorch"}, "no page lies in libtorch: did you mean 'libtorch_cpu.so'?"),
    ({"file": "[hep]"}, "no page lies in [hep]: did you mean '[heap]'?"),
    ({"file": "\x1bnothing"}, "no page lies in \\x1bnothing: --by file shows the names"),
    ({"pid": [5]}, "no fault is of process 5; processes with faults: 700, 800"),
])  # fmt: skip
def test_what_a_filter_has_not_found_is_said(kit: Any, options: dict[str, Any], told: str) -> None:
    trace = kit.Trace()
    assert told in kit.printed(trace, kit.ordinary(trace), **options).splitlines()


def test_no_fault_from_disk_is_one_line_instead_of_tables_of_zeros(kit: Any) -> None:
    trace = kit.Trace(live=False)
    text = kit.printed(trace, [*alone(trace), trace.pages([(3, LIBC)])], hard=True)
    assert text.splitlines()[2:] == ["", "no fault read from disk"]


def test_processes_are_chosen_with_their_resident_pages(kit: Any) -> None:
    trace = kit.Trace(live=False)
    batches = [*kit.ordinary(trace), trace.pages([(7, LIBC)], pid=700), trace.pages([(5, "[stack]")], pid=800)]
    report = json.loads(kit.printed(trace, batches, json=True, pid=[800]))
    assert report["summary"]["total"] == 100
    assert report["summary"]["resident"] == [{"file": "[stack]", "kind": "anon", "pages": 5}]
    assert report["summary"]["snapshots"] == [{"pid": 800, "name": "sh", "pages": 5}]
    assert "still resident" in kit.printed(trace, batches, pid=[800], by="file")
    assert json.loads(kit.printed(trace, batches, json=True, pid=[700, 800]))["summary"]["total"] == 9_700
    assert json.loads(kit.printed(trace, batches, json=True, tid=[701, 800]))["summary"]["total"] == 1_200
    assert str(Filter(pids=[7, 8], tids=[9])) == "processes 7, 8, thread 9"


def test_a_complete_trace_says_so_in_a_short_line_and_all_figures_when_asked(kit: Any) -> None:
    trace = kit.Trace()
    batches = alone(trace)
    assert kit.printed(trace, batches).splitlines()[1] == "complete: 30 faults, 0 lost"
    full = kit.printed(trace, batches, verbose=True).splitlines()[1]
    assert full == "recorded 30 + lost 0 = counted 30; level full; first to last fault: 29 us"
    assert json.loads(kit.printed(trace, batches, json=True))["completeness"] == full
    trace.context.ledger.add("dropped_lane", 1, "x")
    assert kit.printed(trace, batches).splitlines()[1].startswith("recorded 30")


def test_complete_is_not_all_that_is_said_of_faults_without_a_known_mapping(kit: Any) -> None:
    trace = kit.Trace()
    batches = alone(trace)
    trace.context.ledger.add("unresolved", 12, "va")
    told = kit.printed(trace, batches).splitlines()[1]
    assert "; what lies at the addresses of 12 of them is not known" in told
    full = kit.printed(trace, batches, verbose=True)
    assert "; what lies at the addresses of 12 of them is not known" in full.splitlines()[1]
    assert "12  records whose address has no known mapping (va)" in full


def test_what_came_without_a_fault_is_a_number_with_proven_or_possible_reasons(kit: Any) -> None:
    trace = kit.Trace()
    batches, info = alone(trace), trace.context.info
    info.usage = type(info.usage)(minor=51)
    info.notes = ["21 pages that came without a fault: exec's own"]
    assert "0 lost; 21 not visible (-v: why)" in kit.printed(trace, batches).splitlines()[1]
    told = kit.printed(trace, batches, verbose=True).splitlines()[1]
    assert "not visible: 21 (pages that came without a fault: exec's own)" in told
    info.notes = ["faults that kernel code took"]
    assert "not visible: 21 (possible reasons: faults that kernel code took)" in kit.printed(trace, batches)
    info.notes = ["11 that came while it was being attached", "10 pages that came without a fault"]
    assert "21 (11 that came while it was being attached, 10 pages that came w" in kit.printed(trace, batches)
    info.notes = ["11 that came while it was being attached", "those that came after the end"]
    told = "21 (11 that came while it was being attached, 10 of which the reason is not known, possible reasons: those"
    assert told in kit.printed(trace, batches, verbose=True)
    info.notes = ["21 that came while it was being attached", "those that came after the end"]
    told = "not visible: 21 (that came while it was being attached), and those that came after the end;"
    assert told in kit.printed(trace, batches, verbose=True), "what is proven of all needs no possible reason"
    info.notes = []
    assert "not visible: 21 (reason not known)" in kit.printed(trace, batches, verbose=True)


def test_stacks_that_recorded_faults_do_not_have_are_no_reason_why_faults_are_not_visible(kit: Any) -> None:
    trace = kit.Trace()
    batches, info = alone(trace), trace.context.info
    info.usage = type(info.usage)(minor=51)
    info.lack("Python stacks: they need root")
    lines = kit.printed(trace, batches).splitlines()
    assert lines[1].startswith("complete: ")
    assert lines[2] == "without Python stacks: they need root"
    lines = kit.printed(trace, batches, verbose=True).splitlines()
    assert "not visible: 21 (reason not known)" in lines[1]
    assert lines[2] == "without Python stacks: they need root"


def test_a_thread_keeps_the_name_that_it_gave_itself(kit: Any) -> None:
    trace = kit.Trace()
    batches = [trace.process([(700, 1, 700, 3, "java"), (700, 1, 701, 2, "java"), (700, 1, 701, 5, "GC Thread#0"),
                              (700, 1, 701, 4, "java")]), trace.faults([(3, LIBC, LIBC)], tid=701)]  # fmt: skip
    assert "GC Thread#0 (thread 701 of 700)" in kit.printed(trace, batches, by="thread")


def test_a_line_a_fault_holds_no_control_character_of_the_upper_half(kit: Any) -> None:
    trace = kit.Trace()
    hostile = "/tmp/\x9b2J\u202e\x1b.so"
    text = kit.printed(trace, [trace.faults([(1, hostile, LIBC)])], format="jsonl")
    assert text.isascii()
    assert json.loads(text)["file"] == hostile


def test_every_exporter_that_failed_is_told(kit: Any) -> None:
    class First(Console):
        name = "first"

        def flush(self, seconds: float) -> None:
            raise OSError(28, "No space left on device", "a.wst")

    class Second(Console):
        name = "second"

        def close(self) -> None:
            raise OSError(28, "No space left on device", "a.html")

    session = Session(sources=[ScriptedSource()], exporters=[First(), Second()], record=False)
    with session:
        session.wait(5)
    with pytest.raises(OutputError) as told:
        exit_on_exporter_error(session)
    assert all(f"exporter {name}: " in str(told.value) for name in ("first", "second"))
    assert all(path in str(told.value) for path in ("a.wst", "a.html"))


def test_the_headline_names_what_was_filtered(kit: Any) -> None:
    trace = kit.Trace()
    console = Console()
    batch = trace.faults([(5, "[anon]", LIBC)])
    console.export(batch)
    told = headline.answer(console.summary, trace.context.info, Filter(pids=np.array([700]).tolist()), 5)
    assert told == "5 of 5 faults (process 700), 0 from disk; most in [anon] (by libc.so.6)"


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"tid": [99999]}, "no fault is of thread 99999; threads with faults: 700, 701, 800"),
        ({"pid": [9, 8]}, "no fault is of processes 9, 8; processes with faults: 700, 800"),
    ],
)
def test_a_process_or_thread_that_the_trace_lacks_is_said(kit: Any, chosen: Any, told: str) -> None:
    trace = kit.Trace(live=False)
    text = kit.printed(trace, [*kit.ordinary(trace), trace.pages([(9, LIBC)], pid=700)], **chosen)
    assert text.splitlines()[2:4] == ["", told]
    assert "%" not in text, "no table of zeros"
