"""Titles of processes, and trees of made-up ones: who stands below whom, and sums that leave nothing out silently."""

import pytest
from click.testing import CliRunner

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.working_set.backend import Accounted
from wstrace_plugins.working_set.commands.ps import ps
from wstrace_plugins.working_set.process_tree import processes, sums, title

MIB = 1 << 20


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["postgres: checkpointer "], "postgres: checkpointer"),
        (["gunicorn: worker [app:app]"], "gunicorn: worker [app:app]"),
        (["/usr/lib/postgresql/15/bin/postgres", "-D", "/data"], "postgres -D /data"),
        (["/opt/my program/bin/run"], "run"),
        (["/usr/bin/python3", "app.py"], "python3 app.py"),
        (["python3", "-c", "print(1)"], "python3 -c print(1)"),
        ([], "kworker"),
        ([""], "kworker"),
        (["-bash"], "-bash"),
    ],
)  # fmt: skip
def test_the_title_of_a_process(arguments, expected):
    assert title("kworker", arguments) == expected


class System:
    """Processes 10 > 11 > 12, 10 > 13, which refuses; 20 whose parent has ended; 30 and 31 that name each other."""

    def listed(self):
        parents = {10: 1, 11: 10, 12: 11, 13: 10, 20: 99, 30: 31, 31: 30}
        return ((pid, parent, f"p{pid}", "", 4 * MIB) for pid, parent in parents.items())

    def accounted(self, pid):
        return Accounted() if pid == 13 else Accounted(5 * MIB if pid == 11 else MIB, 0, 2 * MIB)

    def arguments(self, pid):
        return ()

    def distinct(self, pids):
        raise Unavailable("hidden", "run as root")


def test_children_stand_below_their_parents():
    found = list(processes(System()))
    assert [(p.pid, p.depth) for p in found] == [(10, 0), (11, 1), (12, 2), (13, 1), (20, 0)]
    assert [(p.pid, p.depth) for p in processes(System(), [11, 20])] == [(11, 0), (12, 1), (20, 0)]
    assert [(p.pid, p.depth) for p in processes(System(), [30])] == [(30, 0), (31, 1)], "a ring of reused pids ends"


def test_what_is_resident_is_of_the_moment_at_which_the_other_figures_were_read():
    class Grows(System):
        def accounted(self, pid):
            return super().accounted(pid)._replace(resident=9 * MIB if pid != 13 else None)

    found = {p.pid: (p.resident, p.shared) for p in processes(Grows(), [10])}
    assert found == {10: (9 * MIB, 8 * MIB), 11: (9 * MIB, 4 * MIB), 12: (9 * MIB, 8 * MIB), 13: (4 * MIB, None)}


def test_a_process_that_has_ended_meanwhile_is_left_out():
    class Ends(System):
        def accounted(self, pid):
            if pid == 11:
                raise TargetExited("ended")
            return super().accounted(pid)

    assert [(p.pid, p.depth) for p in processes(Ends(), [10])] == [(10, 0), (12, 2), (13, 1)]


def test_a_pid_that_is_not_there_is_not_all_of_them():
    assert list(processes(System(), [4711])) == []


def test_the_sums_say_what_they_leave_out():
    found = list(processes(System(), [10]))
    total = sums(System(), found)
    assert (total.processes, total.rss_sum, total.pss, total.refused) == (4, 16 * MIB, 6 * MIB, 1)
    assert (total.distinct, total.why) == (None, "hidden; run as root")
    assert {p.pid: (p.private, p.shared) for p in found}[11] == (4 * MIB, 0), "private is not read at the same moment"


class Named(System):
    """One process with a command line of 900 cells, a part of which is a secret in its middle."""

    def listed(self):
        return iter([(10, 1, "python3", "somebody", 4 * MIB)])

    def arguments(self, pid):
        return ("/usr/bin/python3", "-m", "server", *["--a=b"] * 100, "--password=secret", *["--c=d"] * 30, "last")


@pytest.mark.parametrize(("words", "most"), [(["--tree"], 80), ([], 80), (["--tree", "--wide"], 1000)])
def test_lines_fit_80_columns_unless_they_are_to_be_wide(words, most, monkeypatch):
    monkeypatch.setattr("wstrace_plugins.working_set.commands.ps.backend", Named)
    lines = CliRunner().invoke(ps, words, catch_exceptions=False).output.splitlines()
    table = [line for line in lines if line and "known" not in line]
    assert max(map(len, table)) <= most
    if "--tree" in words:
        assert table[-1].split()[-1] == "last"
        assert ("secret" in table[-1]) is ("--wide" in words)
    assert [word for line in table for word in line.split() if word in ("pid", "pss", "10")] == ["pid", "pss", "10"]
