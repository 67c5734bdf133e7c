"""Jobs, tokens, and processes that end or refuse between any two calls, on a stand-in machine."""

import contextlib

import pytest
from kit.fake_windows import FakeWindows
from kit.fake_windows_system import FakeJob
from kit.windows_machine import EXE, HEAP, job_of, machine, traced

from wstrace.batch import Dictionary
from wstrace.errors import CannotExecute, CommandNotFound, Unavailable
from wstrace.interfaces import Context
from wstrace.testing import ScriptedTarget
from wstrace_plugins.mapped_files.windows.backend import listing, mapped_file
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import token
from wstrace_plugins.os.windows.backend import WindowsTarget
from wstrace_plugins.os.windows.creation import create
from wstrace_plugins.os.windows.resolve import Program
from wstrace_plugins.working_set.windows.backend import Space
from wstrace_plugins.working_set.working_set import read

PROGRAM = Program("C:\\apps\\app.exe", ["app", "two words", 'a "quote"'], None)
SUSPENDED = 0x4


def made(windows, program=PROGRAM, **options):
    return create(windows, "app", program, **options)


def test_a_process_is_in_its_jobs_when_it_comes_into_being(windows):
    pid, handle, job, unguarded = made(windows)
    assert (pid, unguarded) == (100, "")
    ((path, line, flags, environment),) = windows.created
    assert (path, line, environment) == ("C:\\apps\\app.exe", 'app "two words" "a \\"quote\\""', "")
    assert flags & SUSPENDED
    assert job.members() == [100]
    assert not job.news()  # the process itself is no news
    windows.born(101, 100, breakaway=True)
    assert job.news() == [101]
    assert set(windows.handles) == {handle, *job._handles}


@pytest.mark.parametrize("running", [False, True])
def test_only_a_process_that_runs_outlives_its_tracer(windows, running):
    job = made(windows)[2]
    if running:
        job.release()
    job.close()  # as the system does it when the tracer is killed
    assert windows.processes[100].exited is not running


def test_the_environment_and_names_without_a_pair_are_passed_whole(windows):
    made(windows, Program("C:\\a\ud800.exe", ["a\ud800"], {"A": "1", "ÄÖ": "x=\U0001f600"}))
    assert windows.created[0][:2] == ("C:\\a\ud800.exe", "a\ud800")
    assert windows.created[0][3] == "A=1\0ÄÖ=x=\U0001f600\0"


@pytest.mark.parametrize(("setting", "value", "why"), [
    ("no_job_lists", True, "UpdateProcThreadAttribute failed with 50 "),
    ("no_jobs", True, "CreateJobObjectW failed with 5 "),
    # a sandbox's job with UI limits, in which no other one may be nested
    ("jobs", {9999: FakeJob(members={1}, nests=False)},
     "CreateProcessW failed with 5 (ERROR_ACCESS_DENIED), as before Windows 10 or in a job that lets nobody"),
])  # fmt: skip
def test_a_system_that_refuses_the_jobs_gives_the_process_and_the_reason(windows, setting, value, why):
    setattr(windows, setting, value)
    pid, handle, job, unguarded = made(windows)
    assert unguarded.startswith(why)
    assert job is None
    assert not windows.processes[pid].exited
    assert [flags & SUSPENDED for *_, flags, _ in windows.created] == [SUSPENDED]
    assert set(windows.handles) == {handle}


def test_no_job_is_made_where_none_is_wanted(windows):
    assert (*made(windows, unguarded="WSTRACE_JOB=no")[2:], windows.jobs) == (None, "WSTRACE_JOB=no", {})


@pytest.mark.parametrize(("code", "error"), [(2, CommandNotFound), (3, CommandNotFound), (740, CannotExecute)])
@pytest.mark.parametrize("unguarded", ["", "WSTRACE_JOB=no"])
def test_a_program_that_cannot_be_started_leaves_nothing_open(windows, code, error, unguarded):
    windows.missing = code
    with pytest.raises(error, match="'app'") as no:
        made(windows, unguarded=unguarded)
    assert no.type is error
    assert ("elevated" in no.value.remedy) == (code == 740)
    assert not windows.handles
    assert windows.created == []


def test_the_trace_says_what_is_missed_without_a_job():
    target = ScriptedTarget(7, "app.exe")
    target.unguarded = "why"
    source, context = traced(machine(), context=Context(targets=(target,)))
    list(source.stop())
    assert context.info.notes == ["app.exe (7) is in no job of wstrace (why): its children are found by a listing "
                                  "every 0 ms; shorter ones and what they start are not"]  # fmt: skip


def test_a_program_that_cannot_be_resumed_gives_the_error_of_its_status(monkeypatch):
    """NtResumeProcess gives an NTSTATUS, of which FormatMessage knows nothing."""
    windows = machine()
    monkeypatch.setattr(winapi, "RtlNtStatusToDosError", windows.RtlNtStatusToDosError)
    monkeypatch.setattr(winapi, "NtResumeProcess", lambda handle: 0xC0000022 - (1 << 32))  # STATUS_ACCESS_DENIED
    target = WindowsTarget(7, "python.exe", 4, launched=True)
    with pytest.raises(Unavailable, match="NtResumeProcess of pid 7 failed with 5 "):
        target.resume()


@pytest.fixture
def windows():
    machine = FakeWindows()
    machine.process(1)
    return machine


def test_elevation_is_read_from_our_own_token(windows):
    assert not token.elevated(windows)
    windows.processes[1].elevated = True
    assert token.elevated(windows)
    windows.processes[1].token_denied = True
    assert not token.elevated(windows)
    assert not windows._tokens


def test_a_privilege_that_is_not_held_says_what_to_do(windows):
    windows.held = set()
    with pytest.raises(Unavailable, match="could not be switched on") as refused:
        token.set_debug_privilege(windows)
    assert "elevated" in refused.value.remedy


class Meanwhile:
    """The api of a machine on which something happens right before its n-th call."""

    def __init__(self, windows, n, happens):
        self._windows, self._left, self._happens, self.happened = windows, n, happens, False

    def __getattr__(self, name):
        call = getattr(self._windows, name)
        if not name[0].isupper() and not name.startswith("time"):
            return call

        def counted(*arguments):
            self._left -= 1
            if self._left == 0:
                self.happened = True
                self._happens()
            return call(*arguments)

        return counted


def everywhere(act, happens, *, pid=7, raises=Unavailable):
    """act(api, windows) on fresh machines, with the event before its first call, its second one ... until it ends."""
    happened, n = True, 0
    while happened:
        n += 1
        windows = machine()
        windows.process(1)
        windows.processes[7].working_set = {HEAP: 4, EXE: 0x103}
        windows.processes[7].fault(EXE, HEAP)
        api = Meanwhile(windows, n, lambda windows=windows: happens(windows, pid))
        with contextlib.suppress(raises):  # any other exception fails the test
            act(api, windows)
        assert not windows.handles, f"left open when it happened before call {n}"
        happened = api.happened
    return n - 1


def ends(windows, pid):
    if pid in windows.processes:
        windows.dies(pid, 5)


def refuses(windows, pid):
    if pid in windows.processes:
        windows.processes[pid].denied = True


def takes_rights(windows, pid):
    """As some antivirus programs do to handles that are open."""
    windows.handles.update({handle: (pid, 0) for handle, (owner, _) in windows.handles.items() if owner == pid})


def snapshot(api, windows):
    with Space(7, api) as space:
        read(space, Dictionary(), shares=True)


def questions(api, windows):
    mapped_file(EXE, 7, api)
    listing(7, Dictionary(), api)


def trace(api, windows):
    source, _ = traced(api)
    try:
        list(source.drain(0.0))
        if 7 in windows.processes and not windows.processes[7].exited:
            windows.processes[7].fault(EXE, HEAP + 4096)
        list(source.drain(0.0))
    finally:
        list(source.stop())
    assert source.finished


def job(api, windows):
    made = job_of(api)
    try:
        made.members()
        made.news()
        made.release()
    finally:
        made.close()


@pytest.mark.parametrize("happens", [ends, refuses, takes_rights])
@pytest.mark.parametrize(("act", "calls"), [(snapshot, 15), (questions, 8), (trace, 25), (job, 6)])
def test_whatever_ends_or_refuses_between_two_calls(act, calls, happens):
    assert everywhere(act, happens) >= calls


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("happens", [ends, refuses, takes_rights])
def test_a_child_that_ends_or_refuses_costs_its_own_trace_only(happens, older):
    def family(api, windows):
        if older:
            windows.process(8, parent=7, created=200)
        source, _ = traced(api, launched=not older)
        if not older:
            windows.process(8, parent=7, created=200)
        given = list(source.drain(0.0))
        windows.processes[7].fault(EXE, HEAP + 4096)
        ends(windows, 8)
        given += source.drain(0.0)
        given += source.stop()
        assert sum(len(b) for b in given if b.schema.name == "page_fault" and (b["pid"] == 7).all()) == 1

    assert everywhere(family, happens, pid=8, raises=()) > 30
