"""Processes by title and role, and tables of some kinds of memory or by two keys, of scripted traces."""

import pytest
from kit.blame_scripted import ANON, APP, FILE, PAGE, SAVE, Script

from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import rows as rows_of
from wstrace.batch import Dictionary
from wstrace.errors import UsageError
from wstrace.schema import (
    FAULT_MAJOR,
    PAGE_EXCLUSIVE,
    PAGE_FAULT,
    PAGE_FILE,
    PAGE_SHARED,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    PROCESS_NAME,
    PROCESS_TITLE,
)
from wstrace.testing import batch_of


def test_a_title_holds_until_the_next_program_and_workers_are_numbered():
    strings, cube = Dictionary(), Cube()
    rows = [
        (7, 1, PROCESS_EXEC, "postgres"),
        (7, 1, PROCESS_TITLE, "kit: master"),
        (8, 7, PROCESS_FORK, "postgres"),
        (8, 7, PROCESS_TITLE, "postgres: checkpointer"),
        (8, 7, PROCESS_NAME, "renamed"),  # the first thread is; the title is of the process
        (9, 7, PROCESS_FORK, "postgres"),
        (9, 7, PROCESS_TITLE, "kit: master"),
        (9, 7, PROCESS_EXEC, "sh"),
        (10, 7, PROCESS_FORK, "postgres"),
    ]
    pids, parents, events, names = (list(column) for column in zip(*rows, strict=True))
    cube.add(batch_of(PROCESS, strings, time_ns=list(range(9)), pid=pids, ppid=parents, tid=pids, event=events,
                         name=names, code=-1))  # fmt: skip
    cube.add(batch_of(PAGE_FAULT, strings, time_ns=9, pid=[7, 8, 9, 10], tid=[7, 8, 9, 10], pc=1, va=2, flags=0))
    assert [row.label for row in rows_of(cube, ("process",))] == [
        "kit: master (7), main", "postgres (10), worker 2 of 7", "postgres: checkpointer (8), worker 1 of 7", "sh (9)",
    ]  # fmt: skip


def family() -> Script:
    """A process (7) and its two workers, the second of which has a title, with anonymous and file memory."""
    script = Script()
    for pid in (7, 8, 9):
        script.fault(10 + pid, ANON + pid * PAGE, APP if pid == 7 else SAVE, pid=pid)
        script.fault(30 + pid, FILE + pid * PAGE, APP, pid=pid, flags=FAULT_MAJOR * (pid == 9))
    script.fault(50, ANON + 20 * PAGE, SAVE)
    script.batches.append(batch_of(PROCESS, script.strings, time_ns=[2, 3, 4, 5], pid=[7, 8, 9, 9], ppid=[1, 7, 7, 7],
                                   tid=[7, 8, 9, 9], code=-1, name=["kit: master", "app", "app", "kit: worker"],
                                   event=[PROCESS_TITLE, PROCESS_FORK, PROCESS_FORK, PROCESS_TITLE]))  # fmt: skip
    for pid in (7, 8, 9):
        script.snapshot(100, (ANON + pid * PAGE, 1, PAGE_EXCLUSIVE), (FILE + pid * PAGE, 1, PAGE_FILE | PAGE_SHARED),
                        pid=pid)  # fmt: skip
    return script


VIEWS = ("line", "function", "file", "package", "kind", "process", "cgroup", "thread")


@pytest.mark.parametrize("views", [*((view,) for view in VIEWS), ("process", "line")])
def test_blame_of_some_kinds_has_their_pages_and_faults_alone(views):
    whole, anon, both = (family().blame(kinds=kinds) for kinds in ((), ("anon",), ("anon", "file")))
    assert (whole.rss, anon.rss) == (6 * PAGE, 3 * PAGE)
    assert sum(row["resident"] for row in anon.rows(*views)) == 3 * PAGE
    assert sum(row["faults"] for row in anon.rows(*views)) == 4
    assert [(row.whole, row.values) for row in both.rows(*views)] == [
        (row.whole, row.values) for row in whole.rows(*views)
    ]


def test_a_kind_that_there_is_not_is_reported():
    with pytest.raises(UsageError, match="heap"):
        family().blame(kinds=["heep"])
    assert family().blame(kinds=["shared"]).rss == 0


def test_a_row_of_a_pid_that_was_given_out_again_says_that_it_is_shared():
    strings, cube = Dictionary(), Cube()
    rows = [(7, 1, PROCESS_EXEC, "app"), (8, 7, PROCESS_FORK, "one"), (8, 7, PROCESS_EXIT, "one"),
            (8, 7, PROCESS_FORK, "two"), (9, 7, PROCESS_FORK, "three"), (9, 7, PROCESS_EXIT, "three")]  # fmt: skip
    for number, (pid, ppid, event, name) in enumerate(rows):
        cube.add(batch_of(PROCESS, strings, time_ns=number, pid=pid, ppid=ppid, tid=pid, event=event, name=name,
                             code=-1))  # fmt: skip
    cube.add(batch_of(PAGE_FAULT, strings, pid=[7, 8, 9], tid=[7, 8, 9], pc=1, va=1, flags=0))
    assert [row.label for row in rows_of(cube, ("process",))] == [
        "app (7), main", "three (9), worker 2 of 7", "two (8), worker 1 of 7, with 1 earlier process of this pid",
    ]  # fmt: skip


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
