"""Rows of blame by control group."""

from kit.blame_scripted import ANON, APP, PAGE, Script

from wstrace.schema import PAGE_EXCLUSIVE


def test_pages_are_those_of_the_group_that_a_process_last_faulted_in_and_faults_of_that_of_their_time():
    script = Script()
    for number, (pid, cgroup) in enumerate([(7, "/system"), (7, "/api/a"), (8, "/api/b"), (9, "")]):
        script.fault(
            20 - number if pid == 8 else 10 + number, ANON + (pid << 20) + number * PAGE, APP, pid, cgroup=cgroup
        )
    for pid in (7, 8, 9):
        script.snapshot(100, (ANON + (pid << 20), 4, PAGE_EXCLUSIVE), pid=pid)
    shown = script.blame()
    assert {row.label: (row["resident"] // PAGE, row["faults"]) for row in shown.rows("cgroup")} == {
        "/api/a": (4, 1), "/api/b": (4, 1), "[unknown]": (4, 1), "/system": (0, 1)}  # fmt: skip
    of_processes = {row.label: row["faults"] for row in shown.rows("cgroup", "process")}
    assert sorted(of_processes.values()) == [1, 1, 1, 1], "as `report --by cgroup` counts them"
    both = {row.label: row["resident"] // PAGE for row in shown.rows("cgroup", "kind") if row["resident"]}
    assert both == {"/api/a  anon": 4, "/api/b  anon": 4, "[unknown]  anon": 4}
