"""The summary: golden texts, completeness and loss, levels, what is still resident, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wstrace.schema import WRITTEN_PAGES
from wstrace.trace_info import Usage

LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


@pytest.mark.parametrize("options", [
    {}, {"by": "module"}, {"by": "thread", "top": 2}, {"by": "kind"}, {"hard": True}, {"file": "*.so*", "by": "file"},
], ids=["all", "module", "thread", "kind", "hard", "file"])  # fmt: skip
def test_summary_is_golden(kit: Any, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    trace = kit.Trace()
    kit.golden(f"summary-{request.node.callspec.id}.txt", kit.printed(trace, kit.ordinary(trace), **options))


def test_first_line_is_the_answer_and_the_second_completeness(kit: Any) -> None:
    trace = kit.Trace()
    first, second, *rest = kit.printed(trace, kit.ordinary(trace)).splitlines()
    assert first == (
        "peak 412.6 MiB resident in the largest of its 2 processes; 9,700 faults, 60 from disk; most in libtorch_cpu.so"
    )
    assert second == (
        "recorded 9,700 + lost 0 = counted 9,700; rusage 9,960; "
        "not visible: 260 (possible reasons: MAP_POPULATE, mlock); level full; first to last fault: 8.5 ms"
    )
    assert rest[-1] == "not saved: add -o FILE"


def test_saved_names_the_path_and_the_next_command(kit: Any) -> None:
    trace = kit.Trace()
    trace.context.info.saved = "my traces/out.wst"
    assert kit.printed(trace, []).endswith(
        '\nsaved my traces/out.wst; next: wstrace report "my traces/out.wst" --by function\n'
    )
    trace.context.info.saved = "-"
    assert kit.printed(trace, []).endswith("\nsaved to stdout\n")
    report = kit.Trace(live=False)
    assert "saved" not in kit.printed(report, kit.ordinary(report))


@pytest.mark.skipif(sys.platform == "win32", reason="the words of another shell")
@pytest.mark.parametrize("path", ["a $(id).wst", "$HOME.wst", "a;id.wst", "a`id`.wst", 'a"b.wst', "a'b c.wst", "*.wst"])
def test_a_shell_expands_nothing_of_the_next_command(kit: Any, path: str) -> None:
    trace = kit.Trace()
    trace.context.info.saved = path
    command = kit.printed(trace, []).splitlines()[-1].partition("next: wstrace report ")[2]
    said = subprocess.run(["sh", "-c", f"printf '%s,' {command}"], capture_output=True, text=True)
    assert said.stdout == f"{path},--by,function,"


def test_loss_is_told_in_words_and_the_sum_is_right(kit: Any) -> None:
    trace = kit.Trace()
    batches = kit.ordinary(trace)
    trace.context.ledger.set("counted", 9_660, "minor")
    trace.context.ledger.set("lost_kernel", 15, "minor")
    trace.context.ledger.set("unaccounted", 5, "minor")
    trace.context.ledger.add("dropped_bus", 3, "page_fault")
    trace.context.ledger.add("late", 7, "page_fault")
    trace.context.ledger.add("made_up\x1b[2J", 1, "evil\x1b")
    text = kit.printed(trace, batches)
    assert "recorded 9,700 + lost 15 + unaccounted 5 = counted 9,720;" in text
    assert "lost           15  records that the kernel dropped: its buffer was full (minor)\n" in text
    assert "lost            3  records dropped: the bus's queue was full (page_fault)\n" in text
    assert (
        "note            7  records that came after their time's watermark: kept, out of order (page_fault)\n" in text
    )
    assert "lost            1  made_up\\x1b[2J (evil\\x1b)\n" in text
    trace.context.ledger.set("counted", 9_999, "minor")
    assert "!= counted 10,059" in kit.printed(trace, batches)
    trace.context.ledger.set("counted", 9_000, "minor")
    trace.context.info.incomplete = "resumed after a cut"
    assert "; counted 9,060 of a part of these; resumed after a cut" in kit.printed(trace, batches)


def test_quiet_prints_losses_and_nothing_else(kit: Any) -> None:
    trace = kit.Trace()
    batches = kit.ordinary(trace)
    assert kit.printed(trace, batches, quiet=True) == ""
    trace.context.ledger.add("dropped_bus", 3, "page_fault")
    trace.context.ledger.add("late", 7)
    assert (
        kit.printed(trace, batches, quiet=True)
        == "lost            3  records dropped: the bus's queue was full (page_fault)\n"
    )


def test_level_counters_tells_resident_files_and_what_lifts_it(kit: Any) -> None:
    trace = kit.Trace()
    text = kit.printed(trace, kit.counters(trace))
    kit.golden("counters.txt", text)
    lines = text.splitlines()
    assert lines[0] == (
        "peak 12.0 MiB resident; 96,113 faults, 113 from disk; most resident in libtorch_cpu.so [level counters]"
    )
    assert lines[2] == (
        "level counters: perf_event_open was refused (paranoid 4); to lift it: sudo sysctl kernel.perf_event_paranoid=1"
    )


def test_sampled_is_named_with_an_estimate(kit: Any) -> None:
    trace = kit.Trace()
    batches = kit.ordinary(trace)
    trace.context.info.sampled = 10
    lines = kit.printed(trace, batches).splitlines()
    assert lines[0].startswith(
        "peak 412.6 MiB resident in the largest of its 2 processes; "
        "9,700 faults sampled, 1 in 10 (about 97,000 in all), 60 from disk; most in"
    )
    assert "= counted" not in lines[1]


def test_nothing_recorded_is_still_an_answer(kit: Any) -> None:
    trace = kit.Trace()
    assert kit.printed(trace, []).splitlines()[0] == "0 faults, 0 from disk"


def test_still_resident_stands_beside_brought(kit: Any) -> None:
    trace = kit.Trace(live=False)
    batches = [
        *kit.ordinary(trace),
        trace.pages([(3000, TORCH), (10, "[heap]"), (700, "/never/faulted.so")]),
        trace.pages([(8, "[heap]")], schema=WRITTEN_PAGES),
    ]
    trace.context.info.page_size, trace.context.info.snapshot_age_ms = 4096, 250
    kit.golden("resident.txt", kit.printed(trace, batches, by="file"))
    trace = kit.Trace(live=False)
    batches = [*kit.ordinary(trace), trace.pages([(3000, TORCH)])]
    assert "3,000 pages" in kit.printed(trace, batches)


FIRED = {"time_ns": 9_004_000_000, "what": "rss=40MiB", "who": "app", "how": "reached", "bytes": 4096, "cgroup": "",
         "last_look_ns": 9_000_000_000, "from_ns": 1, "from_bytes": 1, "begin_ns": 1}  # fmt: skip


def test_line_two_says_of_when_resident_pages_are(kit: Any) -> None:
    for facts, told, untold in (
        ({"snapshot_age_ms": 250}, "resident pages as of 250 ms before the end", "at its end"),
        ({"final_snapshot": 700, "exit_code": 0}, "resident pages of process 700 as at its end", "before the end"),
        ({"final_snapshot": 700}, "resident pages of process 700 as at the trace's end", "its end"),
        (
            {"final_snapshot": 700, "snapshot_age_ms": 250, "exit_code": 0},
            "resident pages of process 700 as at its end; those of others as of 250 ms before the end",
            "resident pages as of",
        ),
        ({"extra": {"peak_snapshot": {}}}, "resident pages as at the peak", "before the end"),
        ({"extra": {"peak_snapshot": {}}, "final_snapshot": 7}, "pages of others as at the peak", "pages as at"),
        ({"extra": {"peak_snapshot": {}}, "final_snapshot": 700, "exit_code": 0}, "as at its end", "as at the peak"),
        ({"extra": {"recording": {**FIRED}}}, "resident pages as of 4 ms before the trigger", "before the end"),
        ({"extra": {"recording": {**FIRED, "last_look_ns": 0}}}, "recorded", "before the trigger"),
        ({"extra": {"recording": {**FIRED, "time_ns": "no"}}}, "recorded", "before the trigger"),
    ):
        trace = kit.Trace()
        for name, value in facts.items():
            setattr(trace.context.info, name, value)
        line = kit.printed(trace, [*kit.ordinary(trace), trace.pages([(10, "[heap]")])]).splitlines()[1]
        assert told in line
        assert untold not in line


def test_filter_by_time_counts_from_the_start_of_the_trace(kit: Any) -> None:
    trace = kit.Trace()
    batches = kit.ordinary(trace)  # started at 4.999 s; the faults begin at 5 s, one each microsecond
    text = kit.printed(trace, batches, start=0.001, end=0.0011)
    assert "360 of 9,700 faults (from 0.001 s to 0.0011 s)" in text.splitlines()[0]


def test_json_has_the_documented_keys(kit: Any) -> None:
    trace = kit.Trace()
    trace.context.info.command = ["python3", b"/tmp/\xff".decode("utf-8", "surrogateescape")]
    report = json.loads(kit.printed(trace, kit.ordinary(trace), json=True, top=2))
    assert sorted(report) == ["answer", "completeness", "facts", "filter", "ledger", "seen", "summary"]
    assert report["answer"].startswith("peak 412.6 MiB")
    assert report["facts"]["command"] == ["python3", "/tmp/\\xff"]
    assert report["ledger"]["recorded:page_fault"] == 9_700
    assert report["summary"]["total"] == 9_700
    assert report["summary"]["top"]["file"] == [
        {"file": TORCH, "total": 6060, "minor": 6000, "major": 60, "share": 0.624742},
        {"file": "[heap]", "total": 2000, "minor": 2000, "major": 0, "share": 0.206186},
    ]
    assert report["summary"]["top"]["thread"][0] == {
        "name": "python3",
        "pid": 700,
        "tid": 700,
        "total": 8500,
        "minor": 8500,
        "major": 0,
        "share": 0.876289,
    }
    assert list(json.loads(kit.printed(trace, kit.ordinary(trace), json=True, by="kind"))["summary"]["top"]) == ["kind"]
    documented = (Path(__file__).parents[3] / "docs" / "console.md").read_text(encoding="utf-8")
    for key in [*report, *report["summary"]]:
        assert f"`{key}`" in documented, key


@pytest.mark.parametrize(
    ("sort", "first", "heads"),
    [
        ("", "/never/faulted.so", ["still", "resident", "faults", "from", "disk"]),
        ("resident", "/never/faulted.so", ["still", "resident", "faults", "from", "disk"]),
        ("faults", "[heap]", ["faults", "from", "disk", "still", "resident"]),
        ("major", "/opt/torch/lib/libtorch_cpu.so", ["faults", "from", "disk", "still", "resident"]),
    ],
)
def test_files_are_in_order_of_resident_bytes_where_a_snapshot_tells_them(
    kit: Any, sort: str, first: str, heads: list[str]
) -> None:
    trace = kit.Trace(live=False)
    torch = "/opt/torch/lib/libtorch_cpu.so"
    batches = [
        trace.faults([(9, "[heap]", torch)]),
        trace.faults([(3, torch, torch)], major=True),
        trace.pages([(300, "[heap]"), (20, torch), (700, "/never/faulted.so")]),
    ]
    trace.context.info.page_size = 4096
    lines = kit.printed(trace, batches, sort=sort).splitlines()
    assert "; most resident in faulted.so" in lines[0]
    at = next(number for number, line in enumerate(lines) if "file of the page" in line)
    assert lines[at].split()[: len(heads)] == heads
    assert lines[at + 1].endswith(first)
    total = next(line for line in lines[at:] if line.endswith("Total"))
    assert "4.0 MiB" in total
    assert "100.0%" in total
    assert "12" in total.split()


def test_what_is_left_at_the_exit_is_not_told_as_most_of_a_peak_that_was_larger(kit: Any) -> None:
    trace = kit.Trace(live=False)
    node = "/usr/bin/node"
    batches = [trace.faults([(9, "[anon]", node), (3, node, node)]), trace.pages([(20, "[anon]"), (300, node)])]
    trace.context.info.page_size = 4096
    trace.context.info.usage = Usage(peak_resident_bytes=320 * 4096)
    assert "; most resident in node" in kit.printed(trace, batches).splitlines()[0]
    for peak in (620, 1200):  # of 620 pages 300 are not known, and with its 20 [anon] may have had the most
        trace.context.info.usage = Usage(peak_resident_bytes=peak * 4096)
        assert kit.printed(trace, batches).splitlines()[0].endswith("; most in [anon] (by node)")
    trace = kit.Trace(live=False)
    generated = [trace.faults([(9, "[anon]", "[anon]")])]
    assert kit.printed(trace, generated).splitlines()[0].endswith("; most in [anon]"), "by [anon] says nothing"


def test_without_a_snapshot_of_all_processes_the_order_is_by_faults(kit: Any) -> None:
    trace = kit.Trace(live=False)
    batches = [*kit.ordinary(trace), trace.pages([(3000, "[heap]")])]
    text = kit.printed(trace, batches)
    assert text.splitlines()[0].endswith("most in libtorch_cpu.so")
    (row,) = [line for line in text.splitlines() if line.endswith("/opt/torch/lib/libtorch_cpu.so")]
    assert row.split()[0] == "6,060"
