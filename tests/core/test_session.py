"""A session from start to stop with scripted ends: order, guards, bounds, loss."""

import threading
import time

import pytest
from kit.evil_plugin import evil

from wstrace.bus import Queue
from wstrace.clock import ClockAnchor
from wstrace.errors import OutputError, Unavailable, UsageError
from wstrace.schema import PAGE_FAULT, PROCESS
from wstrace.session import Session
from wstrace.testing import RecordingExporter, ScriptedSource, ScriptedTarget, batch_of
from wstrace.trace_info import TraceInfo, Usage


def faults(n: int, start: int = 0):
    return batch_of(
        PAGE_FAULT,
        time_ns=list(range(start, start + n)),
        pid=1,
        tid=1,
        pc=1,
        va=[4096 * i for i in range(start, start + n)],
        flags=0,
    )


def run(*batches, exporters=(), enrichers=(), **kwargs) -> Session:
    session = Session(
        sources=[ScriptedSource(batches)], exporters=exporters, enrichers=enrichers, record=False, **kwargs
    )
    with session:
        session.wait(5)
    return session


def test_every_row_reaches_every_exporter_in_order():
    first, second = RecordingExporter(), RecordingExporter()
    session = run(faults(10), faults(5, 10), exporters=[first, second])
    for exporter in (first, second):
        assert [len(b) for b in exporter.batches] == [10, 5]
        assert exporter.calls == ["start", "flush", "close"]
    assert session.ledger.get("recorded") == 15
    assert session.ledger.losses() == []


def test_a_source_can_ask_whether_anybody_wants_a_stream():
    class Faults(RecordingExporter):
        streams = frozenset({"page_fault"})

    for exporters, wanted in (([Faults()], (True, False)), ([Faults(), RecordingExporter()], (True, True))):
        session = run(faults(1), exporters=exporters)
        assert (session.context.wants(PAGE_FAULT), session.context.wants(PROCESS)) == wanted


def test_an_exporter_that_raises_costs_only_itself():
    good = RecordingExporter()
    session = run(*[faults(4) for _ in range(6)], exporters=[evil("exporter", "export", "raise")(), good])
    assert sum(len(b) for b in good.batches) == 24
    assert session.ledger.get("failed_exporter", "bad") == 12, "detached after three in a row"
    assert session.ledger.get("dropped_exporter", "bad") == 12
    assert "RuntimeError: boom" in session.exporter_queues[0].detached


@pytest.mark.parametrize("where", ["export", "flush", "close"])
def test_an_exporter_that_hangs_costs_a_bounded_stop(where):
    release = threading.Event()
    hanging = RecordingExporter()
    hanging.name = "hanging"
    setattr(hanging, where, lambda *args: release.wait(60))
    good = RecordingExporter()
    session = Session(
        sources=[ScriptedSource([faults(4), faults(4)])], exporters=[hanging, good], enrichers=[], record=False
    ).start()
    session.wait(5)
    started = time.monotonic()
    session.stop(seconds=1.0)
    took = time.monotonic() - started
    release.set()
    assert took < 4
    assert sum(len(b) for b in good.batches) == 8
    assert good.calls[-1] == "close"
    if where == "export":
        assert session.ledger.get("dropped_exporter", "hanging") == 8


def test_a_source_that_cannot_start_cancels_the_outputs():
    exporter, source = RecordingExporter(), ScriptedSource([])
    cancelled = []
    exporter.cancel = lambda: cancelled.append(True)

    def refuse(context):
        raise Unavailable("not here", "try there")

    source.start = refuse
    with pytest.raises(Unavailable, match="not here; try there"):
        Session(sources=[source], exporters=[exporter], enrichers=[], record=False).start()
    assert cancelled == [True]
    assert "close" not in exporter.calls


def test_the_end_of_a_session_ends_a_long_wait():
    class Waiting(ScriptedSource):
        drain_seconds, finished, waits, woken = 60.0, False, threading.Event(), threading.Event()

        def drain(self, timeout):
            self.wanted = timeout
            self.waits.set()
            self.woken.wait()
            return ()

        def wake(self):
            self.woken.set()

    with Session(sources=[source := Waiting()], exporters=[], enrichers=[], record=False):
        assert source.waits.wait(30)
    assert source.wanted == 60.0


@pytest.mark.parametrize("follows", [True, False])
def test_a_source_that_follows_ends_with_the_others(follows):
    class Lasting(ScriptedSource):
        name = "lasting"
        finished = False

    Lasting.follows = follows
    with Session(sources=[Lasting(), ScriptedSource([faults(7)])], exporters=[], enrichers=[], record=False) as session:
        assert session.wait(5 if follows else 0.5) is follows
    with Session(sources=[Lasting()], exporters=[], enrichers=[], record=False) as session:
        assert not session.wait(0.2), "alone it goes on"


def test_start_and_stop_are_idempotent_and_thread_safe():
    exporter = RecordingExporter()
    session = Session(sources=[ScriptedSource([faults(3)])], exporters=[exporter], enrichers=[], record=False)
    for call in (session.start, session.stop):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        session.wait(5)
    assert exporter.calls == ["start", "flush", "close"]


def test_a_full_queue_costs_the_batch_but_not_an_essential_one():
    batch = faults(100)
    queue = Queue(limit=batch.nbytes + 1)
    assert queue.put(batch)
    assert not queue.put(batch)
    process = batch_of(PROCESS, time_ns=1, pid=1, event=1)
    assert queue.put(process)
    assert queue.clear() == 101


def test_the_queue_is_bounded_whatever_comes_and_counts_what_it_drops():
    hanging = RecordingExporter()
    gate = threading.Event()
    taken = []
    hanging.export = lambda batch: (gate.wait(30), taken.append(len(batch)))
    batches = [faults(10_000) for _ in range(300)]
    session = Session(sources=[ScriptedSource(batches)], exporters=[hanging], enrichers=[], record=False).start()
    session.wait(10)
    queue = session.exporter_queues[0]
    time.sleep(0.3)
    assert 16 << 20 < queue.queue.bytes <= 48 << 20
    dropped = session.ledger.get("dropped_exporter") + session.ledger.get("dropped_bus")
    assert dropped > 0
    gate.set()
    session.stop()
    assert sum(taken) + session.ledger.get("dropped_exporter") + session.ledger.get("dropped_bus") == 3_000_000


class Recorded(ScriptedSource):
    """A source of an older trace: it says so before the exporters start."""

    name = "recorded"

    def open(self, context):
        context.info.become(TraceInfo(command=["old"], clock=ClockAnchor([(0, 5)]), started_ns=1, ended_ns=9))


def test_an_exporter_knows_a_process_before_its_records():
    order = []
    source, exporter = Recorded([faults(1)]), RecordingExporter()
    begun = source.start

    def arm(context):
        order.append("armed")
        begun(context)

    def started(context):
        order.append((context.info.command, context.info.recorded, context.info.started_ns))

    source.start, exporter.start = arm, started
    with Session(sources=source, exporters=exporter, enrichers=[], record=False) as session:
        session.wait(5)
    assert order == [(["old"], True, 1), "armed"]
    assert session.info.ended_ns == 9, "the trace ended when it ended, not now"


def test_what_a_source_opened_is_given_up_when_an_exporter_cannot_start():
    source, refusing = Recorded([]), RecordingExporter()
    cancelled = []
    source.cancel = lambda: cancelled.append(True)

    def refuse(context):
        raise OutputError("disk full")

    refusing.start = refuse
    with pytest.raises(OutputError):
        Session(sources=source, exporters=refusing, enrichers=[], record=False).start()
    assert cancelled == [True]
    assert not source.stopped, "it was never armed"


class Wanting(ScriptedSource):
    name = "wanting"
    needs_target = True


def test_a_source_that_wants_a_target_is_not_silently_idle():
    with pytest.raises(UsageError, match=r"wanting has no process to trace; give one: Session\(os.getpid\(\), ...\)"):
        Session(sources=[Wanting()], enrichers=[], record=False)
    Session(sources=[Wanting()], targets=[ScriptedTarget()], enrichers=[], record=False)


def test_a_pid_among_the_targets_is_refused_in_words():
    with pytest.raises(UsageError, match=r"targets are what a platform returned for processes; a pid: Session\(PID\)"):
        Session(targets=[7], record=False)


@pytest.mark.parametrize("source", ["page_faults", "final_snapshot"])
def test_a_source_of_processes_without_one_is_refused(source):
    with pytest.raises(UsageError, match=f"{source} has no process to trace"):
        Session(sources=[source])


def test_a_lone_spec_is_one(tmp_path):
    path = tmp_path / "x.wst"
    source = ScriptedSource([faults(3)])
    with Session(sources=source, exporters=f"msgpack:path={path}", enrichers=[], record=False) as session:
        session.wait(5)
    assert path.stat().st_size
    assert session.info.saved == str(path)


def test_the_command_and_the_end_of_a_target_are_known():
    class Ended(ScriptedTarget):
        def wait(self, timeout):
            return 3

        def usage(self):
            return Usage(5, 1, 4096)

    session = Session(targets=[Ended()], command=["prog", "-x"], sources=[ScriptedSource()], enrichers=[], record=False)
    with session:
        assert session.wait(5)
    info = session.info
    assert (info.command, info.targets, info.exit_code, info.usage) == (["prog", "-x"], (7,), 3, Usage(5, 1, 4096))
    assert 0 < info.started_ns <= info.ended_ns


@pytest.mark.parametrize("started", range(4))
def test_a_thread_that_the_system_refuses_is_said_and_nothing_is_left(started, monkeypatch):
    begin, before = threading._start_new_thread, threading.active_count()
    left = iter(range(started))

    def start(*given):
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        return begin(*given)

    cancelled = []
    monkeypatch.setattr(RecordingExporter, "cancel", lambda keep: cancelled.append(keep))
    keeps = [RecordingExporter(), RecordingExporter()]
    session = Session(sources=[ScriptedSource([])], exporters=keeps, enrichers=[], record=False)
    monkeypatch.setattr(threading, "_start_new_thread", start)
    with pytest.raises(Unavailable, match=r"no room for the thread wstrace-.*: can't start new thread; .*ulimit -v"):
        session.start()
    assert threading.active_count() == before
    assert sorted(map(id, cancelled)) == sorted(map(id, keeps))
    assert not any("close" in keep.calls for keep in keeps)
