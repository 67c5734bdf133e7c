"""The process of a launched command: suspended, and in a job that ends it with its tracer, from its creation on."""

import pytest
from kit.fake_windows import FakeWindows
from kit.windows_machine import machine, traced

from wstrace.interfaces import Context
from wstrace.testing import ScriptedTarget
from wstrace_plugins.os.windows.creation import NotCreated, create
from wstrace_plugins.os.windows.resolve import Program

PROGRAM = Program("C:\\apps\\app.exe", ["app", "two words", 'a "quote"'], None)
SUSPENDED = 0x4


def made(windows, program=PROGRAM, **options):
    windows.process(1)
    return create(windows, program, **options)


def test_a_process_is_in_its_job_when_it_comes_into_being():
    windows = FakeWindows()
    child = made(windows)
    assert (child.pid, child.unguarded) == (100, "")
    ((path, line, flags, environment),) = windows.created
    assert (path, line, environment) == ("C:\\apps\\app.exe", 'app "two words" "a \\"quote\\""', "")
    assert flags & SUSPENDED
    assert child.job.members() == [100]
    assert not child.job.news()  # the process itself is no news
    child.job.close()  # as the system does it when the tracer is killed
    assert windows.processes[100].exited
    assert set(windows.handles) == {child.handle}


def test_the_environment_is_passed_whole():
    windows = FakeWindows()
    made(windows, PROGRAM._replace(environment={"A": "1", "ÄÖ": "x=\U0001f600"}))
    assert windows.created[0][3] == "A=1\0ÄÖ=x=\U0001f600\0"


@pytest.mark.parametrize(("setting", "value", "said"), [
    ("no_job_lists", True, "UpdateProcThreadAttribute failed with 50"),
    ("no_jobs_at_creation", 5, "CreateProcessW failed with 5"),
    ("no_jobs", True, "CreateJobObjectW failed with 5"),
])  # fmt: skip
def test_a_system_that_refuses_the_job_gives_the_process_and_the_reason(setting, value, said):
    windows = FakeWindows()
    setattr(windows, setting, value)
    child = made(windows)
    assert child.unguarded.startswith(said)
    assert child.job is None
    assert [flags & SUSPENDED for *_, flags, _ in windows.created] == [SUSPENDED]
    assert set(windows.handles) == {child.handle}


def test_no_job_is_requested_where_none_is_wanted():
    windows = FakeWindows()
    child = made(windows, job=False)
    assert (child.job, child.unguarded, windows.jobs) == (None, "", {})


@pytest.mark.parametrize("job", [True, False])
def test_a_program_that_cannot_be_started_leaves_nothing_open(job):
    windows = FakeWindows()
    windows.missing = 740
    with pytest.raises(NotCreated) as refused:
        made(windows, job=job)
    assert refused.value.code == 740
    assert not windows.handles
    assert windows.created == []


def test_the_trace_says_what_the_job_could_not_do():
    target = ScriptedTarget(7, "app.exe")
    target.unguarded = "why"
    source, context = traced(machine(), context=Context(targets=(target,)))
    said = "app.exe (7) is in no job (why): its children are searched for, and short-lived ones are not found"
    assert said in context.info.notes
    list(source.stop())
