"""Page faults on spans: exact counts, honest labels, forks, and an application that never breaks."""

import _thread
import asyncio
import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import Any

import anyio
import anyio.to_thread
import fastapi
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import wstrace
from wstrace_exporters.otel.instrumentor import WstraceInstrumentor
from wstrace_exporters.otel.otel import FaultSpanProcessor
from wstrace_exporters.otel.spans import span_intervals

resource = pytest.importorskip("resource", reason="only on Linux: page faults are counted by thread")
pytestmark = pytest.mark.skipif(
    not hasattr(resource, "RUSAGE_THREAD"), reason="only on Linux: page faults are counted by thread"
)
MINOR, MAJOR, BYTES, QUALITY = (f"wstrace.faults.{name}" for name in ("minor", "major", "bytes", "quality"))
PAGE = mmap.PAGESIZE


@pytest.fixture
def exported():
    return InMemorySpanExporter()


@pytest.fixture
def processor():
    return FaultSpanProcessor()


@pytest.fixture
def tracer(processor, exported):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    provider.add_span_processor(processor)
    time.sleep(0.02)  # the SDK has used threads, which are still ending and take a fault for it
    yield provider.get_tracer("test")
    provider.shutdown()


def toucher(pages: int) -> Callable[[], None]:
    """A call that takes one minor fault for each of so many pages, and next to none else."""
    memory = mmap.mmap(-1, pages * PAGE)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)

    def touch():
        for at in range(0, pages * PAGE, PAGE):
            memory[at] = 1

    return touch


def of(exported: InMemorySpanExporter, name: str) -> dict[str, Any]:
    (span,) = [s for s in exported.get_finished_spans() if s.name == name]
    return dict(span.attributes or {})


def test_a_thousand_fresh_pages_are_a_thousand_minor_faults(tracer, exported):
    touch, warm = toucher(1000), toucher(1)
    with tracer.start_as_current_span("warm"):
        warm()
    with tracer.start_as_current_span("work", attributes={"kept": "yes"}):
        touch()
    found = of(exported, "work")
    assert 1000 <= found[MINOR] <= 1010  # the interpreter may take a few of its own
    assert (found[MAJOR], found[QUALITY], found["kept"]) == (0, "exact", "yes")
    assert found[BYTES] == found[MINOR] * PAGE


def test_a_span_includes_its_children_and_stays_exact(tracer, exported):
    first, second = toucher(300), toucher(200)
    with tracer.start_as_current_span("outer"):
        first()
        with tracer.start_as_current_span("middle"), tracer.start_as_current_span("inner"):
            second()
    outer, inner = of(exported, "outer"), of(exported, "inner")
    assert outer[MINOR] >= 500
    assert 200 <= inner[MINOR] < 300
    assert outer[QUALITY] == inner[QUALITY] == of(exported, "middle")[QUALITY] == "exact"


def test_threads_count_for_themselves(tracer, exported):
    def work(pages):
        touch = toucher(pages)
        with tracer.start_as_current_span(f"t{pages}"):
            touch()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (200, 400, 800)))
    for pages in (200, 400, 800):
        assert pages <= of(exported, f"t{pages}")[MINOR] < pages + 60
        assert of(exported, f"t{pages}")[QUALITY] in ("exact", "thread")  # the others may have run meanwhile


def in_a_pool(work):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def in_a_living_pool(work, pool=ThreadPoolExecutor(1)):  # noqa: B008
    pool.submit(work).result()


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_timer(work):
    timer = threading.Timer(0.01, work)
    timer.start()
    timer.join()


def by_asyncio(work):
    asyncio.run(asyncio.to_thread(work))


def by_anyio(work):
    anyio.run(anyio.to_thread.run_sync, work)


@pytest.mark.parametrize("hand", [in_a_pool, in_a_living_pool, in_a_thread, in_a_timer, by_asyncio, by_anyio])
def test_work_of_other_threads_counts_to_the_span_that_gave_it(tracer, exported, hand):
    hand(lambda: None)  # a pool's thread may be there already
    touch, own = toucher(1000), toucher(200)
    with tracer.start_as_current_span("above"):
        with tracer.start_as_current_span("work"):
            own()
            hand(touch)
        own()
    for name in ("work", "above"):
        assert 1200 <= of(exported, name)[MINOR] < 1400  # once: a new thread takes some of its own
        assert of(exported, name)[QUALITY] in ("exact", "thread")


def test_a_thread_that_could_not_start_runs_when_it_is_started_again(tracer, exported, monkeypatch):
    touch = toucher(300)
    thread = threading.Thread(target=touch)
    with tracer.start_as_current_span("work"):
        with monkeypatch.context() as full:
            for name in ("_start_new_thread", "_start_joinable_thread"):  # up to Python 3.12, and since
                full.setattr(threading, name, refused, raising=False)
            with pytest.raises(RuntimeError, match="no room"):
                thread.start()
        thread.start()
        thread.join()
    assert of(exported, "work")[MINOR] >= 300


def refused(*_, **__):
    raise RuntimeError("no room for a thread")


def test_a_thread_that_nothing_is_known_of_leaves_no_exact_number(tracer, exported):
    touch, done = toucher(300), threading.Event()
    with tracer.start_as_current_span("work"):
        _thread.start_new_thread(lambda: (touch(), done.set()), ())
        done.wait()
    found = of(exported, "work")
    assert (found[MINOR] < 100, found[QUALITY]) == (True, "thread")


def test_work_that_ends_behind_its_span_is_not_counted_to_it(tracer, exported):
    touch, go, pool = toucher(300), threading.Event(), ThreadPoolExecutor(1)
    with tracer.start_as_current_span("first"):
        later = pool.submit(lambda: (go.wait(), touch()))
    go.set()
    later.result()
    pool.shutdown()
    assert of(exported, "first")[MINOR] < 100


def test_an_endpoint_of_fastapi_without_async_has_its_faults():
    exported, touch = InMemorySpanExporter(), toucher(2000)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    provider.add_span_processor(FaultSpanProcessor())
    app = fastapi.FastAPI()

    @app.middleware("http")
    async def traced(request, following):
        with provider.get_tracer("server").start_as_current_span("GET /"):
            return await following(request)

    @app.get("/")
    def endpoint():
        touch()

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        assert message.get("status", 200) == 200

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    asyncio.run(app(scope, receive, send))
    found = of(exported, "GET /")
    assert 2000 <= found[MINOR] < 4000
    assert found[QUALITY] == "thread_window"


def test_a_span_that_ends_on_another_thread_has_no_number(tracer, exported):
    span = tracer.start_span("moved")
    thread = threading.Thread(target=span.end)
    thread.start()
    thread.join()
    found = of(exported, "moved")
    assert found == {QUALITY: "thread_changed"}


def test_interleaved_tasks_are_labelled(tracer, exported):
    async def request(name):
        with tracer.start_as_current_span(name):
            await asyncio.sleep(0.01)

    async def main():
        await asyncio.gather(request("a"), request("b"))

    asyncio.run(main())
    assert of(exported, "a")[QUALITY] == of(exported, "b")[QUALITY] == "thread_window"


def test_what_the_limits_dropped_stays_reported(exported):
    provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=2, max_events=1), shutdown_on_exit=False)
    provider.add_span_processor(FaultSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exported))
    with provider.get_tracer("t").start_as_current_span("s", attributes={"a": 1, "b": 2, "c": 3}) as span:
        span.add_event("one")
        span.add_event("two")
        span.set_status(trace.Status(trace.StatusCode.ERROR, "why"))
    (found,) = exported.get_finished_spans()
    assert (found.dropped_attributes, found.dropped_events, len(found.events)) == (1, 1, 1)
    assert (found.status.description, found.instrumentation_scope.name) == ("why", "t")
    assert QUALITY in (found.attributes or {})


def test_a_counter_that_raises_costs_nothing_but_the_count(exported):
    span_intervals.forget()

    def broken():
        raise OSError("no")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor := FaultSpanProcessor(counter=broken))
    provider.add_span_processor(SimpleSpanProcessor(exported))
    with provider.get_tracer("t").start_as_current_span("s", attributes={"a": 1}):
        pass
    assert of(exported, "s") == {"a": 1}
    assert processor.uncounted >= 1
    assert (
        span_intervals.find(threading.get_native_id(), time.monotonic_ns()) is None
    )  # it is not taken for open any more


def test_open_spans_are_bounded_and_ended_ones_forgotten(exported):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor := FaultSpanProcessor(max_open=100))
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("t")
    spans = [tracer.start_span(str(i)) for i in range(300)]
    for span in spans:
        span.end()
    for _ in range(100):  # those that have ended leave room
        tracer.start_span("after").end()
    assert processor.uncounted == 200
    assert sum(QUALITY in one.attributes for one in exported.get_finished_spans()) == 200
    assert len(exported.get_finished_spans()) == 400


def test_spans_that_overlap_on_a_thread_are_labelled(tracer, exported):
    with tracer.start_as_current_span("outer"):
        first, second = tracer.start_span("first"), tracer.start_span("second")
        first.end()
        second.end()
    assert of(exported, "first")[QUALITY] == of(exported, "second")[QUALITY] == "thread_window"


def test_a_fork_with_an_open_span_starts_anew(tracer, processor, exported):
    read, write = os.pipe()
    with tracer.start_as_current_span("before"):
        pid = os.fork()
        if pid == 0:  # nothing but plain calls here: pytest must not run twice
            try:
                touch = toucher(100)
                with tracer.start_as_current_span("child"):
                    touch()
                found = next(s for s in exported.get_finished_spans() if s.name == "child").attributes or {}
                os.write(write, f"{found[MINOR]},{found[QUALITY]},{len(processor._open)}".encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    count, quality, still_open = os.read(read, 100).decode().split(",")
    os.close(read)
    os.close(write)
    assert 100 <= int(count) < 200
    assert quality in ("exact", "thread")  # the SDK starts a thread in the child
    assert still_open == "0"
    assert of(exported, "before")[QUALITY] in ("exact", "thread")  # threads of earlier tests may take faults meanwhile


def test_a_span_of_wstrace_carries_its_faults(monkeypatch):
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    touch = toucher(500)
    with wstrace.span("load", item=3):
        touch()
    found = of(exported, "load")
    assert 500 <= found[MINOR] < 520
    assert (found[QUALITY], found["item"]) == ("exact", 3)


def test_a_span_of_wstrace_without_an_sdk_passes_values_and_errors():
    with pytest.raises(ZeroDivisionError), wstrace.span("nowhere"):
        1 / 0  # noqa: B018
    assert wstrace.otel.FaultSpanProcessor is FaultSpanProcessor


@pytest.fixture
def instrumentor():
    found = WstraceInstrumentor()
    yield found
    found.uninstrument()


def test_the_entry_point_is_there_and_needs_no_contrib():
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="wstrace")
    assert entry.load() is WstraceInstrumentor
    assert "opentelemetry.instrumentation" not in sys.modules
    assert WstraceInstrumentor().instrumentation_dependencies() == ()


def test_spans_of_tracers_made_before_are_counted_and_not_after_uninstrument(instrumentor):
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("early")
    instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
    instrumentor.instrument(tracer_provider=provider)
    with tracer.start_as_current_span("on"):
        pass
    late = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(late))
    instrumentor.uninstrument()
    with tracer.start_as_current_span("off"):
        pass
    assert QUALITY in of(exported, "on")
    assert of(exported, "off") == {}
    assert len(late.get_finished_spans()) == 1


def test_an_application_it_cannot_instrument_goes_on(instrumentor, caplog):
    class Strange:
        def add_span_processor(self, processor: SpanProcessor) -> None:
            raise RuntimeError("strange")

    instrumentor.instrument(tracer_provider=Strange())
    assert "cannot instrument" in caplog.text
    instrumentor.instrument(tracer_provider=object())
