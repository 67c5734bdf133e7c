"""Most faults have no sample that stands for them: what counts each one leads, and the rest is a number at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stacks_scripted import Stacks

from wstrace.schema import FRAME_JIT, FRAME_NATIVE, HOW_NOT_SAMPLED, HOW_OWN, PAGE_FAULT
from wstrace.testing import batch_of

REST = "(no sample stands for it)"
SAMPLED = "samples of native stacks stand for {} of 20 faults (possible reason: threads that ended soon): {}"


def short_workers(kit: Any, *, live: bool, functions: int = 2, weight: int = 2) -> tuple[Any, list[Any]]:
    """20 faults of a program, of which so many samples of functions have a weight; the instruction of each is known."""
    trace = kit.Trace(live=live)
    trace.context.info.extra["stack_samples"] = {"rate": 2000}
    strings, stacks = trace.context.strings, Stacks(trace.context.strings)
    native = stacks.trees[FRAME_NATIVE]
    frames = [int(native.add(0, kind=FRAME_JIT, function=strings.code(f"JS:*f{n} /srv/app/alloc.js:1:21"))[0])
              for n in range(functions)]  # fmt: skip
    chosen = frames + [0] * (20 - functions)
    how, weights = ([HOW_OWN] * functions + [HOW_NOT_SAMPLED] * (20 - functions),
                    [weight] * functions + [0] * (20 - functions))  # fmt: skip
    faults = batch_of(PAGE_FAULT, strings, pid=1, tid=1, pc=1, va=1, flags=0, pc_file=strings.code("/srv/app/workers"),
                      file=strings.code("[anon]"), native_stack=chosen, native_how=how, weight=weights)  # fmt: skip
    return trace, [native.new_rows(), faults]


def heads(text: str) -> list[str]:
    """What the names of each table are, and the faults of its first row."""
    lines = text.splitlines()
    return [f"{line.split('share')[1].strip()}: {lines[at + 1].split()[0]}"
            for at, line in enumerate(lines) if " share " in line]  # fmt: skip


def test_a_report_leads_with_the_functions_of_all_faults(kit: Any) -> None:
    trace, batches = short_workers(kit, live=False)
    text = kit.printed(trace, batches)
    assert heads(text) == ["function of the instruction: 20", "file of the page: 20",
                           "file of the page  by  module: 20", "own line, or innermost frame: 2"]  # fmt: skip
    assert SAMPLED.format(4, "the table by function counts each of them") in text.splitlines()
    assert [line.split()[0] for line in text.splitlines() if line.endswith(REST)] == ["16"]
    told = json.loads(kit.printed(*short_workers(kit, live=False), json=True))["summary"]["top"]
    assert [row["total"] for row in told["function"]] == [20]
    assert [(row["name"], row["total"]) for row in told["line"]][-1] == (REST, 16)


def test_while_it_is_recorded_it_leads_with_the_files_and_says_what_counts_each(kit: Any) -> None:
    """To count the functions of all faults is too much while the target runs."""
    trace, batches = short_workers(kit, live=True)
    trace.context.info.saved = "x.wst"
    text = kit.printed(trace, batches)
    assert heads(text)[0].startswith("file of the page: 20")
    assert heads(text)[-1] == "own line, or innermost frame: 2"
    assert SAMPLED.format(4, "`wstrace report FILE --by function` counts each of them") in text.splitlines()
    assert text.splitlines()[-1] == "saved x.wst; next: wstrace report x.wst --by function"


@pytest.mark.parametrize("live", [True, False])
def test_samples_of_half_of_the_faults_lead(kit: Any, live: bool) -> None:
    trace, batches = short_workers(kit, live=live, weight=5)
    text = kit.printed(trace, batches)
    assert heads(text)[0] == "own line, or innermost frame: 5"
    assert "function of the instruction" not in text
    assert "samples of native stacks" not in text


@pytest.mark.parametrize("by", ["line", "stack", "file"])
def test_the_table_that_was_asked_for_has_the_rest_last_and_does_not_cut_it_off(kit: Any, by: str) -> None:
    trace, batches = short_workers(kit, live=False, functions=5, weight=1)
    lines = kit.printed(trace, batches, by=by, top=2).splitlines()
    note = SAMPLED.format(5, "`wstrace report FILE --by function` counts each of them")
    assert (note in lines) == (by != "file"), "each fault has a file"
    if by != "file":
        assert [line.split()[0] for line in lines[-2:]] == ["15", "20"]
        assert lines[-2].endswith(REST)
