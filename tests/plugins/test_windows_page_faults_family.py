"""Children on Windows: opened when a job reports them, known by number and creation, none taken for another."""

from types import SimpleNamespace

import pytest
from kit.fake_windows_system import BREAKAWAY_OK, KILL_ON_JOB_CLOSE, SILENT_BREAKAWAY_OK
from kit.windows_machine import EXE, HEAP, faults, job_of, machine, traced

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context
from wstrace.schema import PROCESS_SEEN
from wstrace.testing import ScriptedTarget
from wstrace_plugins.mapped_files.enricher import MappedFiles
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes


class JobTarget(ScriptedTarget):
    """As WindowsPlatform launches it: in a job of ours."""

    def __init__(self, windows, pid=7):
        super().__init__(pid)
        self.job = job_of(windows, pid)


def in_job(**options):
    windows = machine()
    target = JobTarget(windows)
    target.job.release()
    source, context = traced(windows, context=Context(targets=(target,)), **options)
    list(source.drain(0.0))
    return windows, source, context


def test_a_child_that_no_message_reported_is_found_in_the_jobs_list():
    windows, source, _ = in_job()
    windows.lost_messages = True  # Microsoft's page: messages are not guaranteed
    windows.born(8, 7, created=200)
    windows.born(9, 8, created=210)
    windows.dies(8)
    list(source.drain(0.0))
    assert windows.processes[9].watched
    list(source.stop())


NODE = SILENT_BREAKAWAY_OK | BREAKAWAY_OK | KILL_ON_JOB_CLOSE


@pytest.mark.parametrize(("owners", "flags", "breakaway"), [
    ((), 0, True),
    ((8,), SILENT_BREAKAWAY_OK | KILL_ON_JOB_CLOSE, False),  # `py`, `uv run`, stubs: the interpreter is in such a job
    ((7, 8, 9), NODE, False),  # libuv: it puts itself into a job that every child leaves, and then that child into it
])  # fmt: skip
def test_children_that_leave_the_job_of_their_parent_are_reported_however_short(owners, flags, breakaway):
    windows, source, context = in_job()
    job = windows.CreateJobObjectW(None, None)
    windows.jobs[job].limits = flags

    def own(pid):
        if pid in owners:
            with processes.opened(windows, pid, winapi.QUERY_RIGHTS) as handle:
                assert windows.AssignProcessToJobObject(job, handle)

    own(7)
    for pid in (8, 9, 10):
        windows.born(pid, pid - 1, created=pid * 100, breakaway=breakaway and pid == 9)
        own(pid)
    windows.dies(9)
    list(source.drain(0.0))
    assert windows.processes[8].watched
    assert windows.processes[10].watched
    list(source.stop())
    assert "1 children ended before they could be opened" in " ".join(context.info.notes)


@pytest.mark.parametrize("way", ["attached", "in a job"])
def test_processes_whose_parent_nobody_saw_are_counted_under_attach(way):
    """An attached process starts a short one, which starts another one that stays: no listing shows whose it is."""
    windows = machine()
    windows.process(5, created=90)  # a service whose parent has ended long ago
    targets = (JobTarget(windows) if way == "in a job" else ScriptedTarget(launched=False),)
    source, context = traced(windows, context=Context(targets=targets))
    list(source.drain(0.0))
    windows.process(9, parent=8, created=300)
    windows.process(10, parent=9, created=310)
    windows.process(12, parent=7, created=320)
    list(source.drain(0.0))
    list(source.drain(0.0))
    list(source.stop())
    said = [note.partition(":")[0] for note in context.info.notes if "started them" in note or "in no job" in note]
    missed = ["scripted (7) is in no job of wstrace (attached)",
              "1 processes began during the trace, and who started them is not known"]  # fmt: skip
    assert said == ([] if way == "in a job" else missed)
    assert windows.processes[12].watched


@pytest.mark.parametrize("way", ["attached", "in a job"])
def test_without_a_job_children_are_listed_more_often(way):
    windows = machine()
    targets = (JobTarget(windows) if way == "in a job" else ScriptedTarget(launched=False),)
    source, _ = traced(windows, context=Context(targets=targets), listing=(0, 1e9))
    windows.process(12, parent=7, created=320)
    list(source.drain(0.0))
    assert windows.processes[12].watched is (way == "attached")
    list(source.stop())


@pytest.mark.parametrize("reused", [False, True])
def test_a_child_that_ends_between_listing_and_opening_is_counted_and_its_children_are_found(reused):
    windows = machine()
    source, context = traced(windows, launched=False)
    windows.process(8, parent=7, created=200)
    opening = windows.OpenProcess

    def ended(rights, inherit, pid):
        if pid == 8:
            windows.processes.pop(8, None)
            windows.process(9, parent=8, created=210)
            if reused:
                windows.process(8, parent=1000, created=300)
        return opening(rights, inherit, pid)

    windows.OpenProcess = ended
    list(source.drain(0.0))
    windows.OpenProcess = opening
    list(source.drain(0.0))
    assert windows.processes[9].watched
    assert not (reused and windows.processes[8].watched)
    list(source.stop())
    assert "1 children ended before they could be opened: their faults are in no count" in context.info.notes


def test_a_number_that_another_process_has_by_now_is_not_watched():
    windows, source, _ = in_job()
    windows.born(8, 7, created=200)
    windows.dies(8)
    windows.process(8, parent=1000, created=300)  # somebody else's
    list(source.drain(0.0))
    assert not windows.processes[8].watched
    list(source.stop())
    assert not [handle for handle, (pid, _) in windows.handles.items() if pid == 8]


@pytest.mark.parametrize("way", ["job", "listing"])
def test_a_child_with_the_number_of_an_ended_one_is_watched(way):
    windows, source, _ = in_job() if way == "job" else (machine(), None, None)
    if source is None:
        source, _ = traced(windows)
        windows.born = lambda pid, parent, **rest: windows.process(pid, parent=parent, **rest)
    windows.born(8, 7, created=200)
    list(source.drain(0.0))
    windows.dies(8)
    list(source.drain(0.0))
    windows.processes.pop(8, None)
    windows.born(8, 7, created=300)
    batches = list(source.drain(0.0))
    assert windows.processes[8].watched
    assert [b["pid"][0] for b in batches if b.schema.name == "process"] == [8]
    list(source.stop())


def test_a_grandchild_of_an_ended_traced_child_is_found_by_a_listing():
    windows = machine()
    source, _ = traced(windows)
    windows.process(9, parent=7, created=200, ended=400)
    list(source.drain(0.0))
    windows.dies(9)
    list(source.drain(0.0))
    windows.processes.pop(9, None)
    windows.process(10, parent=9, created=300)
    windows.process(11, parent=9, created=500)  # its parent is a later process of the number 9
    list(source.drain(0.0))
    assert windows.processes[10].watched
    assert not windows.processes[11].watched
    list(source.stop())


def test_a_child_that_refuses_is_tried_once_and_its_children_are_followed():
    windows = machine()
    source, context = traced(windows)
    windows.process(8, parent=7, created=200, denied="limited")
    windows.process(12, parent=8, created=300)
    list(source.drain(0.0))
    assert windows.processes[12].watched
    windows.processes[8].denied = False
    list(source.drain(0.0))
    assert not windows.processes[8].watched
    assert len([r for r in context.info.notes if "child 8" in r]) == 1
    list(source.stop())


def test_a_watch_that_fails_ends_the_trace_of_its_process_only():
    windows = machine()
    source, context = traced(windows)
    child = windows.process(8, parent=7, created=200)
    list(source.drain(0.0))
    child.watched = False  # 31: a token that changed, an antivirus that takes rights away
    windows.processes[7].fault(EXE, HEAP)
    batches = list(source.drain(0.0))
    assert faults(batches)["pid"].tolist() == [7]
    windows.processes[7].fault(EXE, HEAP)
    assert faults(source.drain(0.0))["pid"].tolist() == [7]
    assert "process 8 is no longer traced: GetWsChangesEx of pid 8 failed with 31" in " ".join(context.info.notes)
    list(source.stop())
    assert context.ledger.get("counted") == 2
    assert not windows.handles


def test_nothing_that_was_recorded_is_lost_when_the_launched_one_fails():
    windows = machine()
    source, _ = traced(windows)
    windows.process(8, parent=7, created=200)
    list(source.drain(0.0))
    windows.processes[8].fault(EXE, HEAP)
    windows.processes[7].watched = False
    given = []
    with pytest.raises(Unavailable, match="of pid 7 failed with 31"):
        given.extend(source.drain(0.0))
    assert faults(given)["pid"].tolist() == [8]
    windows.processes[7].watched = True
    list(source.stop())


def test_the_low_two_bits_of_a_number_do_not_name_its_neighbour():
    windows = machine()
    windows.process(12)
    with pytest.raises(TargetExited, match="no process has the id 13"):
        winapi.open_process(windows, 13, winapi.QUERY_RIGHTS)
    assert not windows.handles


def test_a_child_that_is_refused_during_a_listing_stays_refused():
    """The drainer's thread takes births in while the session's thread walks the list of all processes."""
    windows, source, context = in_job()
    listing = windows.NtQuerySystemInformation

    def meanwhile(*arguments):
        done = listing(*arguments)
        windows.born(8, 7, created=200, denied="limited")
        source._drainer.drain()
        return done

    windows.NtQuerySystemInformation = meanwhile
    list(source.drain(0.0))
    windows.NtQuerySystemInformation = listing
    windows.processes[8].denied = False
    list(source.drain(0.0))
    assert not windows.processes[8].watched
    assert "child 8 is not traced" in " ".join(context.info.notes)
    list(source.stop())


def test_children_that_are_met_late_are_reported_with_the_faults_of_their_starts():
    """`py`, `uv run`: the interpreter is a child of another image, which has loaded by the time that it is met."""
    windows, source, context = in_job()
    windows.born(8, 7, created=200, page_faults=3000)
    windows.born(9, 7, created=210, page_faults=1500)
    windows.born(10, 7, created=220, page_faults=3)
    list(source.drain(0.0))
    list(source.stop())
    assert context.ledger.get("before_watch") == 4503
    (notes,) = [note for note in context.info.notes if "met late" in note]
    assert notes.startswith("2 children ")
    assert "4500 faults of their starts are in no record" in notes


def test_the_children_that_an_attached_process_has_already_are_none_that_were_met_late():
    windows = machine()
    windows.process(8, parent=7, created=200, page_faults=5000, watched=True).fault(EXE, HEAP)
    source, context = traced(windows, launched=False)
    windows.processes[8].fault(EXE, HEAP + 8)
    batches = [*source.drain(0.0), *source.stop()]
    assert faults(batches)["va"].tolist() == [HEAP + 8]
    rows = [(b["pid"][0], b["ppid"][0], b["event"].tolist()) for b in batches if b.schema.name == "process"]
    assert rows == [(7, 0, [PROCESS_SEEN]), (8, 7, [PROCESS_SEEN])]
    assert (context.ledger.get("before_start"), context.ledger.get("before_watch")) == (1, 0)
    assert "met late" not in " ".join(context.info.notes)


def test_notes_about_children_are_few_and_the_others_a_number():
    windows, source, context = in_job()
    for pid in range(100, 150):
        windows.born(pid, 7, created=pid, denied="limited")
    list(source.drain(0.0))
    list(source.stop())
    notes = [note.partition(":")[0] for note in context.info.notes if "not traced" in note]
    assert notes == [*(f"child {pid} is not traced" for pid in (100, 101, 102)), "47 more children are not traced"]


def test_the_peak_is_that_of_the_largest_process_also_of_a_child_that_ended():
    windows, source, context = in_job()
    windows.processes[7].working_set = dict.fromkeys(range(0, 3 * 4096, 4096), 4)
    windows.born(8, 7, created=200, working_set=dict.fromkeys(range(0, 5 * 4096, 4096), 4))
    windows.born(9, 7, created=200, working_set={0: 4})
    list(source.drain(0.0))
    windows.processes[8].exited = True
    list(source.drain(0.0))
    list(source.stop())
    assert (context.info.usage.peak_resident_bytes, context.info.usage.peak_pid) == (5 * 4096, 8)


def test_a_child_that_ends_before_its_memory_is_listed_has_none_of_its_parents():
    """CreateProcess copies nothing: what lies at the same address in the parent is another thing."""
    windows = machine()
    source, context = traced(windows, context=Context(targets=(JobTarget(windows),)))
    enricher = MappedFiles()
    enricher.system = SimpleNamespace(listing=lambda *_: None, build_id=lambda *_: "")
    enricher.start(context)
    recorded = list(source.drain(0.0))  # with the listing of the parent's memory
    child = windows.born(8, 7, created=200)
    source._drainer.drain()  # watched from here on
    child.fault(EXE, HEAP)
    child.exited = True
    recorded += [*source.drain(0.0), *source.stop()]
    batches = [out for batch in recorded for out in enricher.enrich(batch)]
    own = [b for b in batches if b.schema.name == "page_fault" and (b["pid"] == 8).all()]
    assert [b["mapping"].tolist() + b["pc_mapping"].tolist() for b in own] == [[0, 0]]
