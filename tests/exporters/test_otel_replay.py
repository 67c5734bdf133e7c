"""An old trace into OpenTelemetry: everything in it carries the time at which it happened."""

import time

import pytest
from kit.otel_scripted import NOW, ended, faulted, otel, started
from receiver import Receiver, logs, spans

from wstrace.batch import Dictionary
from wstrace.session import Session
from wstrace_exporters.msgpack.format.frames import Header
from wstrace_exporters.msgpack.read.replay import Replay
from wstrace_exporters.msgpack.write.parts import Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter

SECOND = 10**9
#: 30 days ago; the records' clock then said NOW
THEN = time.time_ns() - 30 * 86_400 * SECOND


@pytest.fixture(params=["whole", "cut"])
def old(tmp_path, request):
    """A trace of 30 days ago: a launched program, which has no row that says when it began."""
    path, strings = tmp_path / "old.wst", Dictionary()
    clock = {"name": "CLOCK_MONOTONIC", "realtime_offset_ns": THEN - NOW}
    like = Header(created_ns=THEN, boot_id="another", clock=clock, command=["/usr/bin/demo", "x"])
    writer = TraceWriter(Parts(str(path), like=like), strings)
    writer.copy_mark({"m": "clock", "t": NOW, "monotonic": NOW, "realtime": THEN})
    for batch in (faulted(300), faulted(300, pid=4712), started(4712, "child"), ended()):
        writer.write(batch.recode(strings))
    facts = {"pid": 4711, "command": ["/usr/bin/demo", "x"], "exit_code": 3, "started_ns": NOW}
    writer.close({}, {**facts, "ended_ns": NOW + 2 * SECOND})
    if request.param == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    return path


def test_a_replay_carries_the_time_of_the_trace(old):
    with Receiver() as receiver:
        with Session(sources=Replay(path=[str(old)]), exporters=otel(receiver), enrichers=[], record=False) as session:
            assert session.wait(10)
        events, ended_spans = [record for _, record in logs(receiver)], [span for _, span in spans(receiver)]
        abouts = [about for about, _ in logs(receiver)]
    times = {record.event_name: set() for record in events}
    for record in events:
        times[record.event_name].add(record.time_unix_nano)
    assert {"wstrace.page_fault", "wstrace.process.start", "wstrace.process.exit"} <= set(times)
    for name, when in times.items():
        assert all(THEN <= at <= THEN + 2 * SECOND for at in when), name
    assert times["wstrace.process.start"] == {THEN}
    assert ended_spans
    assert all(THEN <= s.start_time_unix_nano <= s.end_time_unix_nano <= THEN + 2 * SECOND for s in ended_spans)
    created = {about.get("process.creation.time") for about in abouts}
    assert not any(at and at.startswith(time.strftime("%Y-%m-%d")) for at in created)
