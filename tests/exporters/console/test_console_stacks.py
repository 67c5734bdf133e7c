"""Stacks in a report: the user's line in its first line, tables, JSON lines, folded stacks; each holds all faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stacks_scripted import Fault, Stacks

from wstrace.errors import UsageError
from wstrace.schema import (
    FRAME_CUT,
    FRAME_JIT,
    FRAME_NATIVE,
    FRAME_PYTHON,
    HOW_LOST,
    HOW_NO_INTERPRETER,
    HOW_NOT_PYTHON,
    HOW_NOT_SAMPLED,
    HOW_NOT_YET,
    HOW_OWN,
    PAGE_FAULT,
    STACK_HOW,
)
from wstrace.testing import batch_of
from wstrace_exporters.console.console import Console

LIB = "/usr/lib/python3.11"
PARSE, MAIN = ("parse_record", "/srv/app/leak.py", 12), ("<module>", "/srv/app/leak.py", 40)
LOADS = ("loads", f"{LIB}/json/__init__.py", 346)
READ = ("read", "/venv/lib/python3.11/site-packages/pandas/io.py", 7)

LEAK = [Fault([PARSE, MAIN])] * 58 + [Fault([LOADS, MAIN])] * 30 + [Fault([READ], flags=1)] * 7 + [Fault([])] * 5


def batches(trace: Any, faults: list[Fault]) -> list[Any]:
    """Scripted stacks in a trace of the kit."""
    trace.context.info.page_size = 4096
    return Stacks(trace.context.strings).batches(faults)


def told(kit: Any, faults: list[Fault], **options: Any) -> str:
    trace = kit.Trace()
    return str(kit.printed(trace, batches(trace, faults), **options))


def plain(line: str) -> list[str]:
    """The words of a line without its bar."""
    return [word for word in line.split() if word.isascii()]


def rows(kit: Any, faults: list[Fault], by: str = "", **options: Any) -> list[dict[str, Any]]:
    """The rows of a table as JSON tells them."""
    report = json.loads(told(kit, faults, json=True, by=by, top=1000, **options))
    (found,) = (v for k, v in report["summary"]["top"].items() if k == (by or options.get("asked", by)))
    return list(found)


def test_the_first_line_names_the_users_own_line_and_its_table_stands_first(kit: Any) -> None:
    lines = told(kit, LEAK).splitlines()
    assert lines[0] == "100 faults, 7 from disk; 58 % parse_record leak.py:12"
    assert lines[3].split() == ["faults", "from", "disk", "share", "own", "line"]
    assert [plain(line) for line in lines[4:8]] == [
        ["58", "0", "58.0%", "parse_record", "leak.py:12"],
        ["30", "0", "30.0%", "<module>", "leak.py:40"],
        ["7", "7", "7.0%", "(package", "pandas)"],
        ["5", "0", "5.0%", "(no", "Python", "frame)"],
    ]


@pytest.mark.parametrize(("python", "proposed"), [(40, True), (60, False)])
def test_native_stacks_are_proposed_where_most_is_not_python(kit: Any, python: int, proposed: bool) -> None:
    program = [Fault(None, how=HOW_NO_INTERPRETER)] * 60 + [Fault(None, how=HOW_NOT_PYTHON)] * (40 - python + 20)
    lines = told(kit, [Fault([PARSE, MAIN])] * python + program[: 100 - python]).splitlines()
    hint = "most is not Python's: its own lines are told by -s page_faults:stacks=native"
    assert (lines[2] == f"{hint}, who called a library by `wstrace report FILE --by stack`") is proposed
    sampled = [Fault(None, how=HOW_NO_INTERPRETER, native=[(4, 64)], native_how=HOW_OWN, weight=1)] * 90
    assert hint not in told(kit, sampled)
    callers = "the first row is no line of the program's own: `wstrace report FILE --by stack` tells who called it"
    assert callers in told(kit, sampled).splitlines()
    assert callers not in told(kit, sampled, by="stack")


def test_a_line_that_is_a_small_part_stands_beside_the_file_with_the_most(kit: Any) -> None:
    trace = kit.Trace()
    few = batches(trace, [Fault([PARSE, MAIN])] * 3 + [Fault([])] * 97)
    first = kit.printed(trace, few).splitlines()[0]
    assert first == "100 faults, 0 from disk; most in [unknown]; 3 % parse_record leak.py:12"


def test_a_program_that_a_shells_script_ends_in_is_told_by_its_own_share(kit: Any) -> None:
    shell = [Fault(None, how=HOW_NOT_PYTHON)] * 190
    first = told(kit, [*shell, *[Fault([PARSE, MAIN])] * 6, *[Fault([])] * 4]).splitlines()[0]
    assert first == "200 faults, 0 from disk; 60 % of Python's parse_record leak.py:12"


def test_without_an_own_line_the_package_answers(kit: Any) -> None:
    assert (
        told(kit, [Fault([READ])] * 4 + [Fault([])]).splitlines()[0] == "5 faults, 0 from disk; 80 % (package pandas)"
    )


def test_without_stacks_a_report_is_what_it_was(kit: Any) -> None:
    trace = kit.Trace()
    assert "own line" not in kit.printed(trace, kit.ordinary(trace))
    trace = kit.Trace()
    lines = kit.printed(trace, kit.ordinary(trace), by="line").splitlines()
    assert lines[3] == "no stack was recorded: record with -s page_faults:stacks=python (see wstrace doctor)"
    trace = kit.Trace()
    assert "function of the instruction" in kit.printed(trace, kit.ordinary(trace), by="function")


def test_without_faults_no_other_way_to_record_is_proposed(kit: Any) -> None:
    assert "no fault was recorded, and so no stack" in kit.printed(kit.Trace(), [], by="stack").splitlines()


def test_stacks_were_asked_for_and_none_was_had(kit: Any) -> None:
    lines = told(kit, [Fault(None, how=HOW_NOT_YET)] * 3, by="line").splitlines()
    assert lines[4].endswith("(interpreter not known yet)")


def test_what_is_own_can_be_told(kit: Any) -> None:
    assert (
        told(kit, LEAK, own=["/venv/lib/python3.11/site-packages/pandas"], by="line").count("read pandas/io.py:7") == 1
    )
    assert told(kit, LEAK, not_own=["/srv/app"]).splitlines()[0] == "100 faults, 7 from disk; 88 % (package app)"


def test_callers_and_callees(kit: Any) -> None:
    text = told(kit, LEAK, callers="parse_record")
    assert text.splitlines()[3].endswith("caller of parse_record")
    assert plain(text.splitlines()[4]) == ["58", "0", "58.0%", "<module>", "leak.py:40"]
    assert "called by <module>" in told(kit, LEAK, callees="<module>")
    assert told(kit, LEAK, callees="nobody").splitlines()[3] == (
        "no stack goes through nobody: --by function shows the names"
    )
    with pytest.raises(UsageError, match="exclude each other"):
        Console(callers="a", callees="b")
    with pytest.raises(UsageError, match="exclude each other"):
        Console(callers="a", by="line")


def test_estimates_have_their_margin_and_samples(kit: Any) -> None:
    sampled = [Fault([PARSE], [(0, 8)], 20), *[Fault([PARSE])] * 19, *[Fault([], pc=2)] * 5]
    lines = told(kit, sampled, native=True, by="stack").splitlines()
    assert lines[3].split()[:3] == ["faults", "+-", "samples"]
    assert lines[4].split()[:3] == ["20", "19", "1"], "one sample tells little of who else calls the instruction"
    assert lines[5].split()[:2] == ["5", "20.0%"]
    assert lines[5].endswith("(no sample stands for it)")


def test_without_python_the_own_function_of_native_stacks_is_about_the_answer(kit: Any) -> None:
    trace = kit.Trace()
    strings, stacks = trace.context.strings, Stacks(trace.context.strings)
    mappings = trace.mappings([(1, 0, 1 << 30, 0, "/usr/lib/libc.so.6"), (2, 0, 1 << 30, 0, "/srv/app/prog")])
    native = stacks.trees[FRAME_NATIVE]
    outer = native.add(0, kind=FRAME_JIT, function=strings.code("JS:*make /srv/app/alloc.js:1:21"))
    leaves = [stacks.native([(1, 16), (2, 32)]), int(native.add(outer, kind=FRAME_NATIVE, mapping=1, offset=16)[0])]
    chosen = [leaves[0]] * 2 + [leaves[1]] * 6
    faults = batch_of(PAGE_FAULT, strings, pid=1, tid=1, pc=1, va=1, flags=0, native_stack=chosen,
                      native_how=HOW_OWN, weight=1)  # fmt: skip
    text = kit.printed(trace, [mappings, native.new_rows(), faults])
    assert text.splitlines()[0] == "8 faults, 0 from disk; about 75 % make alloc.js"
    assert text.splitlines()[3].endswith(" own line, or innermost frame")
    assert [plain(line)[-2:] for line in text.splitlines()[4:6]] == [["make", "alloc.js"], ["25.0%", "prog+0x20"]]


@pytest.mark.parametrize(("weight", "answer"), [(4, "; about 60 % make alloc.js"), (2, "")])
def test_the_share_of_a_burst_is_of_all_faults(kit: Any, weight: int, answer: str) -> None:
    """Of 20 faults 4 samples stand for 16; where these are less than half of the faults, none of them is the answer."""
    trace = kit.Trace()
    strings, stacks = trace.context.strings, Stacks(trace.context.strings)
    native = stacks.trees[FRAME_NATIVE]
    frames = [native.add(0, kind=FRAME_JIT, function=strings.code(f"JS:*{name} /srv/app/alloc.js:1:21"))[0]
              for name in ("make", "keep")]  # fmt: skip
    chosen = [frames[0]] * 3 + [frames[1]] + [0] * 16
    how, pcs = [HOW_OWN] * 4 + [HOW_NOT_SAMPLED] * 16, [1] * 3 + [2] + [3] * 16
    faults = batch_of(PAGE_FAULT, strings, pid=1, tid=1, pc=pcs, va=1, flags=0, native_stack=chosen, native_how=how,
                      weight=[weight] * 4 + [0] * 16)  # fmt: skip
    trace.context.ledger.add("stacks_lost", 1_234, "the kernel's buffer was full")
    trace.context.ledger.add("stacks_lost", 2, "no row of that fault")
    lines = kit.printed(trace, [native.new_rows(), faults]).splitlines()
    assert lines[0].startswith(f"20 faults, 0 from disk{answer}")
    assert ("make" in lines[0]) == bool(answer)
    assert "; 1,236 sampled stacks lost" in lines[1]


def test_the_second_line_tells_of_python_stacks_that_were_lost(kit: Any) -> None:
    trace = kit.Trace()
    faults = batch_of(PAGE_FAULT, trace.context.strings, pid=1, tid=1, pc=1, va=1, flags=0, stack_how=[HOW_LOST] * 20)
    for why, count in (("stack lost", 20), ("interpreter not known yet", 5)):
        trace.context.ledger.set("without_stack", count, why)
    assert "; the Python stacks of 20 of them lost" in kit.printed(trace, [faults]).splitlines()[1]


def test_a_json_line_has_the_stack_or_the_reason_why_not(kit: Any) -> None:
    faults = [
        Fault([LOADS, PARSE]),
        Fault([]),
        Fault(None, how=HOW_NOT_YET),
        Fault([PARSE], [(0, 0x10)], weight=3),
        Fault(None, [(0, 0x10)], weight=3, how=HOW_NOT_YET),
    ]
    found = [json.loads(line) for line in told(kit, faults, format="jsonl").splitlines()]
    loads = {"kind": "python", "function": "loads", "file": LOADS[1], "line": 346, "own": False, "how": "exact"}
    parse = {"kind": "python", "function": "parse_record", "file": PARSE[1], "line": 12, "own": True, "how": "exact"}
    native = {"kind": "native", "module": "[unknown]", "offset": "0x10", "how": "own"}
    assert [row["stack"] for row in found] == [[loads, parse], [], None, [native, parse], [native]]
    assert [row.get("stack_reason") for row in found] == [
        None, "no Python frame", "interpreter not known yet", None, "interpreter not known yet",
    ]  # fmt: skip
    assert [row.get("weight") for row in found] == [0, 0, 0, 3, 3]
    assert not any(name in row for row in found for name in ("stack_how", "native_stack", "native_how"))
    documented = (Path(__file__).parents[3] / "docs" / "console.md").read_text(encoding="utf-8")
    for key in {key for row in found for key in row} | set(loads) | set(native) | {"stack_truncated"}:
        assert f"`{key}`" in documented, key


def test_json_lines_go_on_when_further_call_sites_come(kit: Any) -> None:
    trace = kit.Trace()
    stacks = Stacks(trace.context.strings)
    parts = [
        batch for stack in ([MAIN], [PARSE, MAIN], [LOADS, PARSE, MAIN]) for batch in stacks.batches([Fault(stack)])
    ]
    found = [json.loads(line)["stack"] for line in kit.printed(trace, parts, format="jsonl").splitlines()]
    assert [[frame["function"] for frame in frames] for frames in found] == [
        ["<module>"], ["parse_record", "<module>"], ["loads", "parse_record", "<module>"],
    ]  # fmt: skip


def test_a_json_line_says_that_a_stack_was_cut_and_that_a_frame_is_not_certain(kit: Any) -> None:
    trace = kit.Trace()
    stacks = Stacks(trace.context.strings)
    ids = [stacks.python([PARSE], flags=FRAME_CUT), stacks.python([PARSE], flags=16)]
    sites = [batch for tree in stacks.trees.values() if (batch := tree.new_rows())]
    fault = batch_of(PAGE_FAULT, trace.context.strings, pid=1, tid=1, pc=1, va=1, flags=0, stack=ids, stack_how=[1, 1])
    found = [json.loads(line) for line in kit.printed(trace, [*sites, fault], format="jsonl").splitlines()]
    assert [row.get("stack_truncated") for row in found] == [True, None]
    assert [row["stack"][0]["how"] for row in found] == ["exact", "not checked"]


def test_names_from_a_target_cannot_act_on_a_terminal_or_break_a_line(kit: Any) -> None:
    evil = ("f\x1b[2J;g\n", "/srv/\udcff\x9b;x.py", 3)
    for options in ({}, {"by": "stack"}, {"format": "jsonl"}, {"format": "folded"}, {"callers": evil[0]}):
        text = told(kit, [Fault([evil, MAIN])] * 3, **options)
        assert text.replace("\n", "").isprintable()
    (line,) = told(kit, [Fault([evil, MAIN])] * 3, format="folded").splitlines()
    assert line.count(";") == 1
    assert line.endswith(" 3")


SOME = st.sampled_from([PARSE, MAIN, LOADS, READ])
FAULTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.lists(SOME, max_size=4)),
        st.lists(st.tuples(st.just(0), st.integers(0, 3)), max_size=3),
        st.integers(1, 3),
        st.sampled_from([0, 1, HOW_NOT_YET, HOW_OWN, len(STACK_HOW) - 1]),
    ),
    min_size=1,
    max_size=40,
)


@given(FAULTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_view_holds_the_same_faults(kit: Any, given_: list[Any]) -> None:
    faults = [Fault(python, native, weight if native else 0, how) for python, native, weight, how in given_]
    if all(not fault.python for fault in faults):
        faults.append(Fault([PARSE]))
    for by in ("line", "function", "stack", "package"):
        assert sum(row["total"] for row in rows(kit, faults, by)) == len(faults)
    found = [json.loads(line) for line in told(kit, faults, format="jsonl").splitlines()]
    assert len(found) == len(faults)
    python = sum(any(f["kind"] == "python" for f in row["stack"] or ()) for row in found)
    assert python == sum(bool(fault.python) for fault in faults)
    folded = told(kit, faults, format="folded").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in folded) == len(faults)
    assert FRAME_PYTHON


def test_a_deep_stack_is_told_in_short_and_whole_when_it_is_asked_for(kit: Any) -> None:
    deep = [(f"f{at}", f"{LIB}/f.py", at + 1) for at in range(40)]
    deep[20:30] = [(f"_load{at}", "<frozen importlib._bootstrap>", at) for at in range(10)]
    faults = [Fault([*deep, PARSE, MAIN])] * 2
    line = told(kit, faults, by="stack").splitlines()[4]
    assert line.endswith("f7 f.py:8 < ... 32 frames ... < parse_record leak.py:12 < <module> leak.py:40")
    assert told(kit, faults, by="stack", verbose=True).splitlines()[4].count(" < ") == 41
    (row,) = rows(kit, faults, "stack")
    assert (row["name"].count(" < "), len(row["frames"])) == (41, 42)


def test_a_row_is_told_rather_than_that_there_is_one_more(kit: Any) -> None:
    faults = [Fault([(f"f{at}", "/srv/app/leak.py", at)]) for at in range(1, 5)]
    for by in ("line", "function", "stack"):
        assert " f4 leak.py" in told(kit, faults, by=by, top=3).splitlines()[7]
        assert told(kit, faults, by=by, top=2).splitlines()[6].endswith("Total (of 4 rows)")
