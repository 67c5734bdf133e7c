"""Rows of blame by control group."""

from __future__ import annotations

from blame_scripted import ANON, APP, PAGE, Script

from wstrace.schema import PAGE_EXCLUSIVE


def test_rows_by_control_group_are_those_of_the_group_that_a_process_last_faulted_in():
    script = Script()
    for number, (pid, cgroup) in enumerate([(7, "/system"), (7, "/api/a"), (8, "/api/b"), (9, "")]):
        script.fault(
            20 - number if pid == 8 else 10 + number, ANON + (pid << 20) + number * PAGE, APP, pid, cgroup=cgroup
        )
    for pid in (7, 8, 9):
        script.snapshot(100, (ANON + (pid << 20), 4, PAGE_EXCLUSIVE), pid=pid)
    told = script.blame()
    assert {row.label: (row.resident // PAGE, row.faults) for row in told.rows("cgroup")} == {
        "/api/a": (4, 2), "/api/b": (4, 1), "[unknown]": (4, 1)}  # fmt: skip
    both = {row.label: row.resident // PAGE for row in told.rows("cgroup", "kind")}
    assert both == {"/api/a  anon": 4, "/api/b  anon": 4, "[unknown]  anon": 4}
