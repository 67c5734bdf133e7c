"""The first line of a trace of running processes: by how much they grew, how fast, and by which line."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from stacks_scripted import Fault, Stacks

from wstrace_exporters.console import growth
from wstrace_exporters.console.console import Console
from wstrace_exporters.console.live import family_of, resident_of

PARSE, CHURN = ("parse_record", "/srv/app/leak.py", 12), ("churn", "/srv/app/leak.py", 20)
PAGE = 4096


def first_lines(kit: Any, monkeypatch: Any, faults: list[Fault], sizes: list[int | None], *, launched: bool = False,
                **options: Any) -> list[str]:  # fmt: skip
    """What is printed of faults of a process whose resident pages are these, one after the other."""
    trace, answers, clock = kit.Trace(), iter(sizes), iter([100.0, 110.0])
    trace.context = dataclasses.replace(trace.context, targets=(kit.target(launched=launched),))
    trace.context.info.page_size = PAGE
    monkeypatch.setattr(growth, "resident_of", lambda pid: None if (n := next(answers)) is None else n * PAGE)
    monkeypatch.setattr(growth, "family_of", list)
    monkeypatch.setattr(growth.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    console = Console(stream, live=False, **options)
    console.start(trace.context)
    monkeypatch.setattr(stream, "close", lambda: None)
    for batch in Stacks(trace.context.strings).batches(faults):
        console.export(batch)
    console.close()
    return stream.getvalue().splitlines()


def test_growth_rate_and_line(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault([PARSE])] * 900 + [Fault([CHURN])] * 100
    lines = first_lines(kit, monkeypatch, faults, [500, 1480])
    assert lines[0] == "+3.8 MiB in 10.0 s (392.0 KiB/s): parse_record leak.py:12"
    assert "1,000 faults" in lines[1]


@pytest.mark.parametrize(
    ("sizes", "churned"), [([500, 600], 100), ([500, 20_000], 0)], ids=["churn of two lines", "huge pages"]
)
def test_no_line_is_named_where_another_one_may_have_brought_the_growth(
    kit: Any, monkeypatch: pytest.MonkeyPatch, sizes: list[int | None], churned: int
) -> None:
    faults = [Fault([PARSE])] * (1000 - churned) + [Fault([CHURN])] * churned
    lines = first_lines(kit, monkeypatch, faults, sizes)
    assert lines[0].startswith("+")
    assert "leak.py" not in lines[0]
    assert "wstrace report 700 " in lines[0]


def test_a_line_that_brought_all_is_named_however_much_it_gave_back(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = first_lines(kit, monkeypatch, [Fault([PARSE])] * 960 + [Fault([CHURN])] * 40, [500, 600])
    assert lines[0] == "+400.0 KiB in 10.0 s (40.0 KiB/s): parse_record leak.py:12"


def test_what_shrank_or_ended_or_was_launched(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault([PARSE])] * 10
    assert first_lines(kit, monkeypatch, faults, [600, 600])[0] == "no growth in 10.0 s"
    assert first_lines(kit, monkeypatch, faults, [600, 500])[0] == "-400.0 KiB in 10.0 s (40.0 KiB/s)"
    for sizes, launched in (([600, None], False), ([None, 600], False), ([], True)):
        assert first_lines(kit, monkeypatch, faults, sizes, launched=launched)[0].startswith("10 faults")


def test_json_has_the_growth(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = first_lines(kit, monkeypatch, [Fault([PARSE])] * 100, [500, 600], json=True)
    assert json.loads("\n".join(text))["growth"] == {
        "bytes": 100 * PAGE, "seconds": 10.0, "line": "parse_record leak.py:12"}  # fmt: skip
    assert (
        json.loads("\n".join(first_lines(kit, monkeypatch, [Fault([PARSE])], [1, None], json=True))).get("growth")
        is None
    )


def test_what_workers_gain_is_growth_and_where_they_come_or_go_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, family = {7: 10 * PAGE, 8: 100 * PAGE}, {8}
    monkeypatch.setattr(growth, "resident_of", sizes.get)
    monkeypatch.setattr(growth, "family_of", lambda pids: [*pids, *family])
    grown, alone, comes = growth.Growth([7]), growth.Growth([7], children=False), growth.Growth([7])
    sizes[8] = 500 * PAGE
    for one in (grown, alone):
        one.measure()
    assert (grown.bytes, alone.bytes) == (400 * PAGE, 0)
    assert grown.answer("").endswith("wstrace report 7 --over-time 1s")
    family.add(9)
    sizes[9] = PAGE
    goes = growth.Growth([7])
    comes.measure()
    family.clear()
    goes.measure()
    assert (comes.bytes, goes.bytes) == (None, None)


def test_the_family_of_a_process_is_what_it_started() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert family_of([os.getpid(), child.pid])[:1] == [os.getpid()]
        assert family_of([os.getpid(), child.pid]).count(child.pid) == 1
        assert child.pid in family_of([os.getpid()])


@pytest.mark.skipif(sys.platform != "linux", reason="zombies are Linux's")
def test_a_process_that_has_ended_has_no_size() -> None:
    """GIVEN a process that has ended and is not waited for THEN it has not shrunk to nothing: its size is not known."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert resident_of(ended.pid) is None
