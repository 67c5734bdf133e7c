"""wstrace inside an application: its global providers are used and never set; forked workers count for themselves."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from typing import Any

import pytest
from receiver import Receiver, plain, spans

if sys.platform == "win32":
    pytest.skip("fork and resource usage by thread: only on Linux", allow_module_level=True)


def run(code: str, *, words: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter: providers are set once in a process."""
    return subprocess.run(
        [*(words or (sys.executable,)), "-c", textwrap.dedent(code)] if not words else [*words],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip


HEAD = """
import json, os, time
from opentelemetry import metrics, trace, _logs
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from wstrace.session import Session
from wstrace.schema import PAGE_FAULT
from wstrace.testing import batch_of, ScriptedSource
from wstrace_exporters.otel.exporter import OtelExporter

def batch(n, file="/lib/a"):
    return batch_of(PAGE_FAULT, time_ns=1, pid=os.getpid(), tid=1, pc=1, va=list(range(n)), flags=0, file=file, kind=1)

def session(*batches):
    s = Session(sources=[ScriptedSource(batches)], exporters=[OtelExporter()], enrichers=[], record=False)
    s.start(); s.wait(5); s.stop()

def points(reader, name):
    data = reader.get_metrics_data()
    return {tuple(sorted(p.attributes.items())): p.value
            for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name
            for p in m.data.data_points} if data else {}
"""


def test_the_application_s_meter_gets_the_counts_of_all_its_sessions():
    done = run(
        HEAD
        + """
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
given = metrics.get_meter_provider()
session(batch(10), batch(5, "/lib/b"))
first = points(reader, "wstrace.page_faults")
session(batch(7))
second = points(reader, "wstrace.page_faults")
kernel = points(reader, "process.paging.faults")
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
assert metrics.get_meter_provider() is given
assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider", "a provider was set"
print(json.dumps([sorted(first.values()), sorted(second.values()),
                  dict((k[0][1], v) for k, v in kernel.items()), used.ru_minflt]))
"""
    )
    assert done.returncode == 0, done.stderr
    first, second, kernel, used = json.loads(done.stdout)
    assert (first, second) == ([5, 10], [5, 17])
    assert used - 200 <= kernel["minor"] <= used


def test_an_application_without_an_sdk_stays_without_one():
    done = run(
        HEAD
        + """
s = Session(sources=[ScriptedSource([batch(10)])], exporters=[OtelExporter(providers="global")], enrichers=[])
s.start(); s.wait(5); s.stop()
assert not s.ledger.losses()
assert type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider"
assert "Proxy" in type(trace.get_tracer_provider()).__name__
print(len(__import__("threading").enumerate()))
"""
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_a_forked_child_does_not_say_again_what_its_parent_counted():
    done = run(
        HEAD
        + """
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
exporter = OtelExporter()
s = Session(sources=[], exporters=[exporter], enrichers=[], record=False)
s.start()
exporter.export(batch(100))
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.write(write, json.dumps([sum(points(reader, "wstrace.page_faults").values()),
                                sum(points(reader, "wstrace.records").values())]).encode())
    os._exit(0)
os.waitpid(pid, 0)
print(os.read(read, 100).decode(), sum(points(reader, "wstrace.page_faults").values()))
s.stop()
"""
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[0, 0] 100"), done.stderr


WORKER = """
import contextlib, mmap, os, resource, sys, time
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

def work(pages):
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(memory), mmap.PAGESIZE): memory[at] = 1
"""


def kernel_counts(receiver: Receiver) -> dict[Any, list[int]]:
    """service.instance.id -> minor faults, one export after the other."""
    found = {}
    for message in receiver.messages("/v1/metrics"):
        for r in message.resource_metrics:
            for metric in (m for s in r.scope_metrics for m in s.metrics if m.name == "process.paging.faults"):
                for point in metric.sum.data_points:
                    if plain(point.attributes)["system.paging.fault.type"] == "minor":
                        found.setdefault(plain(r.resource.attributes)["service.instance.id"], []).append(point.as_int)
    return found


#: what a worker does: exports once, and says what the kernel had counted of it just before and just after
FLUSH = """
def flush():
    who = provider._sdk_config.resource.attributes["service.instance.id"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    provider.force_flush()
    return who, before, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""


def assert_reported(shown: dict[Any, list[int]], flushed: list[Any]) -> None:
    """Each worker sends one count for each export, between the kernel's before and after it: so does the sum."""
    for who, before, after in flushed:
        assert any(before <= count <= after for count in shown[who]), (before, shown[who], after)


def test_the_sum_over_forked_workers_is_the_kernel_s():
    """Set up before the fork, as a preforking server does it."""
    code = (
        WORKER
        + FLUSH
        + """
import json
from wstrace_exporters.otel.instrumentor import WstraceInstrumentor
provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=3_600_000)])
metrics.set_meter_provider(provider)
WstraceInstrumentor().instrument()
work(3000)  # the parent's own, which no worker may tell again
workers = []
for pages in (100, 300, 500, 700):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        work(pages)
        os.write(write, json.dumps(flush()).encode())
        os._exit(0)
    workers.append((pid, read))
found = []
for pid, read in workers:
    os.waitpid(pid, 0)
    found.append(json.loads(os.read(read, 200)))
print(json.dumps(found), flush=True)
os._exit(0)
"""
    )
    with Receiver() as receiver:
        done = run(code, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        assert done.returncode == 0, done.stderr
        shown = kernel_counts(receiver)
    flushed = json.loads(done.stdout)
    assert len(shown) == len(flushed) == 4
    assert_reported(shown, flushed)
    total = sum(count for counts in shown.values() for count in counts)
    assert sum(before for _, before, _ in flushed) <= total <= sum(after for _, _, after in flushed)
    for (_, before, _), pages in zip(flushed, (100, 300, 500, 700), strict=True):
        assert before >= pages


def distribution(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not distribution("opentelemetry.instrumentation"), reason="pip install opentelemetry-distro")
@pytest.mark.parametrize("disabled", ["", "wstrace"])
def test_opentelemetry_instrument_picks_it_up(disabled, tmp_path):
    app = tmp_path / "app.py"
    app.write_text(
        WORKER
        + "with trace.get_tracer('app').start_as_current_span('work'):\n    work(1000)\nprint('application ran')\n"
    )
    with Receiver() as receiver:
        script = "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.exit(run())"
        done = run("", words=(sys.executable, "-c", script, sys.executable, str(app)),
                   OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
                   OTEL_TRACES_EXPORTER="otlp", OTEL_METRICS_EXPORTER="otlp", OTEL_LOGS_EXPORTER="none",
                   OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=disabled)  # fmt: skip
        assert done.stdout == "application ran\n", done.stderr
        ((_, span),) = spans(receiver)
        counts = kernel_counts(receiver)
    if disabled:
        assert not counts
        assert "wstrace.faults.minor" not in plain(span.attributes)
    else:
        assert 1000 <= plain(span.attributes)["wstrace.faults.minor"] < 1100
        assert plain(span.attributes)["wstrace.faults.quality"] == "exact"
        assert all(n > 1000 for shown in counts.values() for n in shown)
        assert len(counts) == 1


def test_an_application_s_telemetry_has_no_process_0():
    done = run(
        HEAD
        + """
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from wstrace.schema import PROCESS, PROCESS_FORK
spans, events = InMemorySpanExporter(), InMemoryLogRecordExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))
_logs.set_logger_provider(LoggerProvider())
_logs.get_logger_provider().add_log_record_processor(SimpleLogRecordProcessor(events))
other = batch_of(PAGE_FAULT, time_ns=1, pid=7, tid=7, pc=1, va=1, flags=0, file="/lib/a", kind=1)
born = batch_of(PROCESS, time_ns=1, pid=7, ppid=os.getpid(), tid=7, event=PROCESS_FORK, name="child", code=-1)
for pid in (os.getpid(), os.getppid()):  # ourselves, and a process beside us
    s = Session(pid, sources=[ScriptedSource([born, batch(3), other])], exporters=[OtelExporter(providers="global")],
                enrichers=[], record=False)
    s.start(); s.wait(5); s.stop()
said = [(r.log_record.event_name, r.log_record.attributes.get("process.pid")) for r in events.get_finished_logs()]
print(json.dumps([os.getpid(), [said.count(("wstrace.page_fault", None)),
                                [(n, p) for n, p in said if n != "wstrace.page_fault"]],
                  [(s.name, s.attributes["process.pid"]) for s in spans.get_finished_spans()]]))
"""
    )
    assert done.returncode == 0, done.stderr
    own, (faults, said), made = json.loads(done.stdout)
    assert faults == 8, "those of all processes"
    assert said == [["wstrace.process.start", own], ["wstrace.process.start", os.getpid()]]
    assert [pid for _, pid in made] == [os.getpid()], "of the process beside us; the application has its own spans"


def test_where_the_system_has_one_counter_it_has_no_type(monkeypatch):
    from wstrace_exporters.otel.export import metrics

    def no_resource(name):
        raise ImportError(name)

    monkeypatch.setattr(metrics, "import_module", no_resource)  # as on Windows
    embedded = metrics.Embedded()
    session = Counter({("process.paging.faults", (kind,)): 5 for kind in metrics.TYPES})
    embedded._live.append(lambda: session)
    ((observed, attributes),) = [
        (one.value, one.attributes) for one in embedded._observe("process.paging.faults", None)
    ]
    assert attributes == {}
    assert observed > 100
