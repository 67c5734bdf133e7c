"""Most faults have no sample that stands for them: what counts each one leads, and the rest is a number at the end."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from stacks_scripted import Stacks

from wstrace.schema import FRAME_JIT, FRAME_NATIVE, HOW_NOT_SAMPLED, HOW_OWN, PAGE_FAULT
from wstrace.testing import batch_of

REST = "(no sample stands for it)"
FEW, CHANCE = [(0, 2), (1, 2)], [(0, 4), (1, 3), (2, 3), (3, 3), (4, 2)]
SAMPLED = (
    "samples of native stacks stand for {} of 20 faults (possible reasons: threads that ended soon, lost samples): {}"
)


def short_workers(kit: Any, *samples: tuple[int, int], live: bool = False) -> tuple[Any, list[Any]]:
    """20 faults of a program, of which the instruction is known; samples: (number of the function, weight) of some."""
    trace = kit.Trace(live=live)
    trace.context.info.extra["stack_samples"] = {"rate": 2000}
    strings, stacks = trace.context.strings, Stacks(trace.context.strings)
    native = stacks.trees[FRAME_NATIVE]
    frame = {n: int(native.add(0, kind=FRAME_JIT, function=strings.code(f"JS:*f{n} /srv/app/alloc.js:1:21"))[0])
             for n in range(5)}  # fmt: skip
    without = 20 - len(samples)
    how = [HOW_OWN] * len(samples) + [HOW_NOT_SAMPLED] * without
    pcs = [*(16 + n for n, _ in samples), *[1] * without]
    faults = batch_of(PAGE_FAULT, strings, pid=1, tid=1, pc=pcs, va=1, flags=0,
                      pc_file=strings.code("/srv/app/workers"), file=strings.code("[anon]"),
                      native_stack=[*(frame[n] for n, _ in samples), *[0] * without],
                      native_how=how, weight=[*(weight for _, weight in samples), *[0] * without])  # fmt: skip
    return trace, [native.new_rows(), faults]


def heads(text: str) -> list[str]:
    """What the names of each table are, and the faults of its first row."""
    lines = text.splitlines()
    return [f"{line.split('share')[1].strip()}: {lines[at + 1].split()[0]}"
            for at, line in enumerate(lines) if " share " in line]  # fmt: skip


def test_a_report_leads_with_the_functions_of_all_faults(kit: Any) -> None:
    trace, batches = short_workers(kit, *FEW)
    text = kit.printed(trace, batches)
    assert heads(text) == ["function of the instruction: 20", "file of the page: 20",
                           "file of the page  by  module: 20", "own line, or innermost frame: 2"]  # fmt: skip
    assert SAMPLED.format(4, "the table by function counts each fault") in text.splitlines()
    assert [line.split()[0] for line in text.splitlines() if line.endswith(REST)] == ["16"]
    told = json.loads(kit.printed(*short_workers(kit, *FEW), json=True))["summary"]["top"]
    assert [row["total"] for row in told["function"]] == [20]
    assert [(row["name"], row["total"]) for row in told["line"]][-1] == (REST, 16)


def test_while_it_is_recorded_it_leads_with_the_files_and_says_what_counts_each(kit: Any) -> None:
    """To count the functions of all faults is too much while the target runs."""
    trace, batches = short_workers(kit, *FEW, live=True)
    trace.context.info.saved = "x.wst"
    text = kit.printed(trace, batches)
    assert heads(text)[0].startswith("file of the page: 20")
    assert heads(text)[-1] == "own line, or innermost frame: 2"
    assert SAMPLED.format(4, "`wstrace report FILE --by function` counts each fault") in text.splitlines()
    assert text.splitlines()[-1] == "saved x.wst; next: wstrace report x.wst --by function"


@pytest.mark.parametrize("live", [True, False])
def test_samples_of_half_of_the_faults_lead(kit: Any, live: bool) -> None:
    trace, batches = short_workers(kit, *[(0, 2)] * 4, (1, 2), live=live)
    text = kit.printed(trace, batches)
    assert heads(text)[0] == "own line, or innermost frame: 8"
    assert "function of the instruction" not in text
    assert "samples of native stacks" not in text


@pytest.mark.parametrize("by", ["line", "stack", "file"])
def test_the_table_that_was_asked_for_has_the_rest_last_and_does_not_cut_it_off(kit: Any, by: str) -> None:
    trace, batches = short_workers(kit, *((function, 1) for function in range(5)))
    lines = kit.printed(trace, batches, by=by, top=2).splitlines()
    note = SAMPLED.format(5, "`wstrace report FILE --by function` counts each fault")
    assert (note in lines) == (by != "file"), "each fault has a file"
    if by != "file":
        assert [line.split()[0] for line in lines[-2:]] == ["15", "20"]
        assert lines[-2].endswith(REST)


@pytest.mark.parametrize(
    ("live", "first"), [(False, "function of the instruction: 20"), (True, "file of the page: 20")]
)
def test_a_first_row_that_is_left_to_chance_does_not_lead(kit: Any, live: bool, first: str) -> None:
    trace, batches = short_workers(kit, *CHANCE, live=live)
    text = kit.printed(trace, batches)
    assert heads(text)[0] == first
    where = "the table by function" if not live else "`wstrace report FILE --by function`"
    told = r"the first row, 4 \+- \d faults, rests on 1 sample of native stacks: " + where + " counts each fault"
    assert re.search(told, text), text
    assert heads(text)[-1] == "own line, or innermost frame: 4"
    assert text.splitlines()[0] == "20 faults, 0 from disk; most in [anon] (by workers)", "nor does it in line 1"
    explicit = kit.printed(*short_workers(kit, *CHANCE), by="line")
    assert "rests on 1 sample of native stacks: `wstrace report FILE --by function` counts each fault" in explicit
    assert "rests on" not in kit.printed(*short_workers(kit, *CHANCE), by="file")


def test_samples_that_stand_for_themselves_alone_are_not_left_to_chance(kit: Any) -> None:
    """Each fault has a sample, as with stack_period=1: every row is counted."""
    text = kit.printed(*short_workers(kit, *((at % 5, 1) for at in range(20))))
    assert heads(text)[0] == "own line, or innermost frame: 4"
    assert "rests on" not in text
