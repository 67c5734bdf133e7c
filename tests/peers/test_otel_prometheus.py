"""Prometheus scrapes the exporter, and answers what was recorded; the examples of README too."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from collector import free_port
from kit.command_line import until, wstrace
from prometheus import Prometheus
from required import absent

from wstrace.batch import Batch, SnapshotPart
from wstrace.errors import OutputError
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT, PROCESS, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace.session import Session
from wstrace.testing import ScriptedTarget, batch_of
from wstrace_exporters.otel.exporter import OtelExporter

pytestmark = pytest.mark.peers


def test_what_prometheus_answers_is_what_was_recorded(prometheus_binary, tmp_path, monkeypatch):
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    exporter = OtelExporter(to="prometheus", providers="own")
    session = Session(sources=[], exporters=[exporter], enrichers=[], record=False)
    session.start()
    batch = batch_of(PAGE_FAULT, time_ns=1, pid=[7] * 60 + [8] * 40, tid=1, pc=1, va=1,
                     flags=[int(i % 10 == 0) for i in range(100)], file=["/lib/a", "/lib/b"] * 50, kind=1)  # fmt: skip
    batch = batch.recode(session.context.strings)
    session.ledger.add("lost_kernel", 12, "page_fault")
    with Prometheus(tmp_path, f"127.0.0.1:{port}") as prometheus:
        for _ in range(3):
            exporter.export(batch)
        exporter.tick()
        found = prometheus.wait_for("wstrace_page_faults_total")
        assert sum(value for _, value in found) == 300
        by_pid = prometheus.query('sum by (process_pid) (wstrace_page_faults_total{file_path="/lib/a"})')
        assert {labels["process_pid"]: value for labels, value in by_pid} == {"7": 90, "8": 60}
        majors = prometheus.query('sum(process_paging_faults_total{system_paging_fault_type="major"})')
        assert [value for _, value in majors] == [30]
        lost = prometheus.query('wstrace_records_total{wstrace_stage="lost_kernel"}')
        assert [value for _, value in lost] == [12]
        exporter.export(batch)
        until(lambda: sum(v for _, v in prometheus.query("wstrace_page_faults_total")) == 400, 10)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    # a registry of its own: python_info and process_* of the tracer's interpreter would look like the target's
    assert "python_info" not in text
    assert "process_start_time_seconds" not in text
    session.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_busy_port_is_reported_before_the_target_runs(monkeypatch, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", port)
        with pytest.raises(OutputError, match=rf"127.0.0.1:{port}.*OTEL_EXPORTER_PROMETHEUS_PORT"):
            OtelExporter(to="prometheus", providers="own").start(Context())
        ran = tmp_path / "ran"
        done = wstrace("run", "-e", "otel:to=prometheus", "--", "touch", ran)
    assert done.returncode == OutputError.exit_code
    assert port in done.stderr
    assert "Traceback" not in done.stderr
    assert not ran.exists()


def test_it_listens_on_this_machine_only_by_default(monkeypatch):
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    exporter = OtelExporter(to="prometheus", providers="own")
    exporter.start(Context())
    try:
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex(("127.0.0.2", port)) != 0
    finally:
        exporter.close()


EXAMPLES = Path(__file__).parents[2] / "examples" / "observability"


def test_the_collector_takes_its_configuration(collector_binary):
    done = subprocess.run(
        [collector_binary, "validate", f"--config={EXAMPLES / 'collector.yaml'}"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_takes_its_configuration(prometheus_binary):
    if shutil.which("promtool") is None:
        absent("there is no promtool on this machine (it comes with prometheus)")
    done = subprocess.run(["promtool", "check", "config", EXAMPLES / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_panel_of_the_dashboard_has_data(prometheus_binary, tmp_path, monkeypatch):
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    exporter = OtelExporter(to="prometheus", providers="own")
    target = ScriptedTarget(os.getpid())  # live: memory is requested
    session = Session(targets=[target], sources=[], exporters=[exporter], enrichers=[], record=False)
    session.start()
    mine = {"pid": [sys.modules["os"].getpid()]}

    def give(batch, **header):
        moved = batch.recode(session.context.strings)
        exporter.export(
            Batch(
                moved.schema,
                dict(moved.columns),
                strings=session.context.strings,
                snapshot=SnapshotPart.from_dict(header),
            )
        )

    give(batch_of(PROCESS, time_ns=[1], ppid=[1], tid=mine["pid"], event=[1], name=["demo"], code=[0], **mine))
    with Prometheus(tmp_path, f"127.0.0.1:{port}") as prometheus:
        waiting = list(expressions)
        until = time.monotonic() + 30
        while waiting and time.monotonic() < until:
            give(
                batch_of(PAGE_FAULT, time_ns=1, pid=mine["pid"] * 2, tid=1, pc=1, va=1, flags=[0, 1], file="/f", kind=1)
            )
            give(batch_of(RESIDENT_PAGES, start=[0], pages=[3], flags=[16], kind=[1]), pid=mine["pid"][0], last=True)
            give(batch_of(WRITTEN_PAGES, start=[0], pages=[3], kind=[1]), pid=mine["pid"][0], last=True)
            session.ledger.add("lost_kernel", 1, "page_fault")
            exporter.tick()
            time.sleep(0.3)
            for expression in list(waiting):
                wanted = expression.replace("$__rate_interval", "30s").replace("$process", ".*")
                if prometheus.query(wanted):
                    waiting.remove(expression)
    session.stop()
    assert waiting == []


def test_the_embedded_example_tells_what_its_steps_brought_in():
    done = subprocess.run([sys.executable, EXAMPLES / "embedded.py"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    steps = {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+) minor", done.stdout, re.MULTILINE)}
    assert list(steps) == ["import", "allocate", "reuse"]
    assert steps["allocate"] >= 4096 or steps["allocate"] < 64  # base pages, or huge ones
    assert steps["reuse"] < 64


def test_the_service_s_requests_carry_their_faults(monkeypatch):
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from wstrace_exporters.otel.otel import FaultSpanProcessor

    spec = importlib.util.spec_from_file_location("example_service", EXAMPLES / "service.py")
    assert spec is not None
    assert spec.loader is not None
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(FaultSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(service, "tracer", provider.get_tracer("test"))
    sent = []

    async def send(event):
        sent.append(event)

    asyncio.run(service.app({"type": "http", "method": "GET", "path": "/8"}, None, send))
    assert [event["type"] for event in sent] == ["http.response.start", "http.response.body"]
    assert json.loads(sent[1]["body"]) == {"mib": 8}
    spans = {span.name: span for span in exported.get_finished_spans()}
    work = dict(spans["work"].attributes or {})
    assert work["wstrace.faults.quality"] in ("exact", "thread")  # other threads of the service may run meanwhile
    assert work["wstrace.faults.minor"] >= 4  # 8 MiB: 2048 base pages, or 4 huge ones
    assert spans["work"].parent.span_id == spans["GET /"].context.span_id
    assert dict(spans["GET /"].attributes or {})["wstrace.faults.quality"] == "thread_window"
