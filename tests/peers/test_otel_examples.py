"""The files of examples/observability work with the programs that they are for."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from collector import free_port
from prometheus import Prometheus
from required import absent

from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import PAGE_FAULT, PROCESS, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace.session import Session
from wstrace.testing import ScriptedTarget, batch_of
from wstrace_exporters.otel.exporter import OtelExporter

pytestmark = pytest.mark.peers
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
    assert work["wstrace.faults.quality"] == "exact"
    assert work["wstrace.faults.minor"] >= 4  # 8 MiB: 2048 base pages, or 4 huge ones
    assert spans["work"].parent.span_id == spans["GET /"].context.span_id
    assert dict(spans["GET /"].attributes or {})["wstrace.faults.quality"] == "thread_window"
