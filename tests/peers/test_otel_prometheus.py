"""Prometheus scrapes the exporter, and answers through its API with what was recorded."""

import socket
import urllib.request

import pytest
from collector import free_port
from kit.command_line import until, wstrace
from prometheus import Prometheus

from wstrace.errors import OutputError
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import batch_of
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
