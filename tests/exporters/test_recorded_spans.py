"""Spans of the program in a trace of itself: recorded once each, written to files, and drawn in lanes."""

import os
import threading

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install 'wstrace[otel]'")

from kit.blame_scripted import ANON, APP, Script
from kit.perfetto import query
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import wstrace
from wstrace import Session, open_trace
from wstrace.analysis.timeline import Span, drawn, spans_of
from wstrace.batch import Batch
from wstrace.interfaces import Enricher
from wstrace.schema import PAGE_FAULT, SPAN, SPAN_OPEN
from wstrace.testing import EnricherContract, RecordingExporter, ScriptedSource, ScriptedTarget, batch_of
from wstrace_exporters.otel.names import SPANS_LOST
from wstrace_exporters.otel.otel import FaultSpanProcessor
from wstrace_exporters.otel.spans import RecordedSpans, span_intervals


class TestRecordedSpans(EnricherContract):
    def batch(self) -> Batch:
        return batch_of(PAGE_FAULT, time_ns=[1, 2], pid=7, tid=7, pc=1, va=[4096, 8192], flags=0)

    def make(self) -> Enricher:
        return RecordedSpans()


@pytest.fixture
def tracer(monkeypatch):
    span_intervals.forget()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(FaultSpanProcessor())
    monkeypatch.setattr(trace, "get_tracer", lambda *_: provider.get_tracer("test"))
    yield provider.get_tracer("test")
    provider.shutdown()


def test_a_session_writes_the_spans_of_its_own_process_once_each(tracer, tmp_path):
    path = str(tmp_path / "x.wst")
    with tracer.start_as_current_span("before the session"):
        pass
    session = Session(targets=[ScriptedTarget(os.getpid())], sources=[ScriptedSource()], record=False,
                      exporters=[f"msgpack:path={path}"])  # fmt: skip
    with session:
        with wstrace.span("outer"), tracer.start_as_current_span("old name") as inner:
            inner.update_name("inner\x1b[31m")
        still = tracer.start_span("open")
    still.end()
    with open_trace(path) as found:
        spans = spans_of(found)
        (batch,) = found.batches(SPAN.name)
        assert found.rows[SPAN.name] == 3
    assert [(one.name, one.open) for one in spans] == [("outer", False), ("inner\x1b[31m", False), ("open", True)]
    assert {(one.pid, one.tid) for one in spans} == {(os.getpid(), threading.get_native_id())}
    outer, within, last = spans
    assert outer.begin_ns <= within.begin_ns <= within.end_ns <= outer.end_ns <= last.begin_ns <= last.end_ns
    context = inner.get_span_context()
    ids = set(zip(*(batch[name].tolist() for name in ("span_id", "trace_high", "trace_low")), strict=True))
    assert (context.span_id, context.trace_id >> 64, context.trace_id & (1 << 64) - 1) in ids


def test_another_process_has_no_spans_of_this_one(tracer):
    kept = RecordingExporter()
    session = Session(targets=[ScriptedTarget(1)], sources=[ScriptedSource()], exporters=[kept], record=False)
    with session, tracer.start_as_current_span("mine"):
        pass
    assert kept.of(SPAN.name) == []


def test_spans_past_the_room_are_counted(tracer, monkeypatch):
    monkeypatch.setattr("wstrace_exporters.otel.spans.MOST_ENDED", 3)
    kept = RecordingExporter()
    session = Session(targets=[ScriptedTarget(os.getpid())], sources=[ScriptedSource()], exporters=[kept], record=False)
    with session:
        for _ in range(5):
            with tracer.start_as_current_span("s"):
                pass
    assert sum(map(len, kept.of(SPAN.name))) == 3
    assert session.ledger.get(SPANS_LOST) == 2
    assert session.ledger.losses() == [], "no fault is missing"


def test_a_name_that_is_no_text_or_too_long_costs_no_other_span_and_is_reported(tracer):
    kept = RecordingExporter()
    session = Session(targets=[ScriptedTarget(os.getpid())], sources=[ScriptedSource()], exporters=[kept], record=False)
    with session:
        names = ["first", 5, None, "x" * 65_537, "last"]
        for name in names:
            tracer.start_span(name).end()
    shown = [batch.strings[code] for batch in kept.of(SPAN.name) for code in batch["name"].tolist()]
    assert shown == ["first", "(int)", "(NoneType)", "x" * 65_533 + "...", "last"]


def span(begin: int, end: int, tid: int = 7, name: str = "s") -> Span:
    return Span(begin, end, 7, tid, name, False)


def test_spans_that_overlap_have_rows_of_their_own_and_those_within_each_other_have_one():
    spans = [span(0, 100), span(0, 50), span(0, 5, tid=8), span(10, 50), span(40, 60), span(50, 90), span(60, 70)]
    expected = [(0, 0), (0, 1), (0, 0), (0, 2), (1, 0), (0, 1), (0, 2)]
    assert [(row, depth) for one, row, depth in drawn(spans, 9)] == expected


def test_rows_of_spans_without_all_columns_are_left_out():
    script = with_spans()
    script.batches.append(batch_of(SPAN, script.strings, time_ns=[1, 2]))
    assert len(spans_of(script.trace())) == 3


def with_spans() -> Script:
    script = Script()
    for n in range(10):
        script.fault(1_000_000 * n + 1000, ANON + n * 4096, APP)
    columns = {"time_ns": [1000, 2_000_000, 3_000_000], "end_ns": [9_000_000, 4_000_000, 5_000_000]}
    script.batches.append(batch_of(SPAN, script.strings, **columns, pid=7, tid=7, flags=[0, 0, SPAN_OPEN],
                                   name=["load", "parse </script>", "write\x1b[2J"], span_id=[1, 2, 3], trace_high=0,
                                   trace_low=9))  # fmt: skip
    return script


def test_perfetto_shows_spans_as_slices_of_their_process(tmp_path):
    path = tmp_path / "x.pftrace"
    with_spans().trace().save(str(path))
    errors, slices = query(
        path, "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select s.name, s.ts, s.dur, s.depth, t.name, p.pid from slice s join process_track t on s.track_id = t.id "
        "join process p using (upid) where category = 'span' order by ts",
    )  # fmt: skip
    assert errors == []
    track = "spans of thread 7"
    assert slices == [
        ["load", 1000, 8_999_000, 0, track, 7],
        ["parse </script>", 2_000_000, 2_000_000, 1, track, 7],
        ["write\\x1b[2J (still open)", 3_000_000, 2_000_000, 0, track, 7],
    ]
