"""The OpenTelemetry Collector received what the trace file of the same run holds, by value, also over TLS."""

import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from collector import Collector, attributes, records
from kit.command_line import wstrace as run_wstrace
from required import absent

import wstrace
from wstrace.batch import Batch
from wstrace.schema import FAULT_MAJOR, PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import ScriptedSource, batch_of
from wstrace_exporters.otel.exporter import OtelExporter

pytestmark = pytest.mark.peers
TYPE = "system.paging.fault.type"
TARGET = """
import mmap, os, sys
memory = mmap.mmap(-1, 2000 * mmap.PAGESIZE)
for at in range(0, len(memory), mmap.PAGESIZE): memory[at] = 1
pid = os.fork()
if not pid:
    other = mmap.mmap(-1, 300 * mmap.PAGESIZE)
    for at in range(0, len(other), mmap.PAGESIZE): other[at] = 1
    os._exit(0)
os.waitpid(pid, 0)
print(os.environ["TRACEPARENT"] if "TRACEPARENT" in os.environ else "", os.getpid(), pid)
sys.exit(5)
"""


def run(tmp_path: Path, collector: Collector, protocol: str, *options: str, **environ: str) -> tuple[Path, list[str]]:
    """Traces the target to a file and to the collector at once; gives the file and what the target printed."""
    file = tmp_path / "run.wst"
    endpoint = collector.http if protocol == "http" else collector.grpc
    spec = f"otel:to={protocol},endpoint={endpoint}" + "".join(f",{option}" for option in options)
    words = ["run", "-q", "-o", file, "-e", spec, "--", sys.executable, "-c", TARGET]
    done = run_wstrace(*words, environment=environ)
    if done.returncode == 122:
        pytest.skip(f"page faults cannot be traced here: {done.stderr.strip()[-300:]}")
    assert done.returncode == 5, done.stderr
    assert "lost_otel" not in done.stderr
    collector.stop()
    return file, done.stdout.split()


def faults_of(file: Path) -> Counter[tuple[int, str]]:
    """(pid, type) -> page faults in the file."""
    found = Counter()
    with wstrace.open_trace(str(file)) as trace:
        for batch in trace.batches("page_fault"):
            for pid, flags in zip(batch["pid"].tolist(), batch["flags"].tolist(), strict=True):
                found[pid, "major" if flags & FAULT_MAJOR else "minor"] += 1
    return found


def last_values(collector: Collector, metric: str) -> dict[tuple[int, tuple[tuple[str, Any], ...]], float]:
    """(process.pid, attributes) -> the last value of a metric."""
    found = {}
    for about, record in records(collector.received("metrics"), "metrics"):
        if record["name"] == metric and about["wstrace.role"] != "tracer":
            for point in record["sum"]["dataPoints"]:
                value = float(point["asInt"] if "asInt" in point else point["asDouble"])
                found[about.get("process.pid", 0), tuple(sorted(attributes(point).items()))] = value
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_signal_holds_what_the_file_holds(tmp_path, collector, protocol):
    above = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    file, (shown, pid, child) = run(
        tmp_path, collector, protocol, TRACEPARENT=above, OTEL_EXPORTER_OTLP_COMPRESSION="gzip"
    )
    held = faults_of(file)
    with wstrace.open_trace(str(file)) as trace:
        ledger = trace.ledger
        counted = {kind: ledger.get("counted", kind) for kind in ("minor", "major")}
        lost = sum(n for stage, _, n in ledger.losses())
    assert held[int(child), "minor"] >= 300

    # metrics: the breakdown is what was recorded, and with what was lost it is what the kernel counted
    by_type = Counter()
    for (of, labels), value in last_values(collector, "wstrace.page_faults").items():
        by_type[of, dict(labels)[TYPE]] += int(value)
    assert {k: n for k, n in by_type.items() if n} == dict(held)
    kernel = Counter()
    for (_, labels), value in last_values(collector, "process.paging.faults").items():
        kernel[dict(labels)[TYPE]] += int(value)
    if lost == 0 and counted["minor"]:
        assert dict(kernel) == counted

    # events: their weights add up to the file, for each process and type
    weights = Counter()
    logs = list(records(collector.received("logs"), "logs"))
    for about, record in logs:
        if record["eventName"] == "wstrace.page_fault":
            of = attributes(record)
            weights[about["process.pid"], of[TYPE]] += of["wstrace.sample.weight"]
    assert weights == held
    events = {(about["process.pid"], record["eventName"]) for about, record in logs}
    for process in (int(pid), int(child)):
        assert (process, "wstrace.process.start") in events
        assert (process, "wstrace.process.exit") in events

    # spans: one a process, the root below TRACEPARENT, the child below the root
    spans = {about["process.pid"]: span for about, span in records(collector.received("traces"), "traces")}
    root = spans[int(pid)]
    assert (root["traceId"], root["parentSpanId"]) == tuple(above.split("-")[1:3])
    assert shown.split("-")[1:3] == [root["traceId"], root["spanId"]]  # what the target was given
    assert attributes(root)["process.exit.code"] == 5
    assert root["status"]["code"] == 2
    assert spans[int(child)]["parentSpanId"] == root["spanId"]
    assert attributes(spans[int(child)])["wstrace.faults.minor"] == held[int(child), "minor"]


def scripted(n: int) -> Batch:
    now = time.monotonic_ns()
    return batch_of(PAGE_FAULT, time_ns=[now + i for i in range(n)], pid=[77 + i % 2 for i in range(n)], tid=77, pc=1,
                    va=list(range(n)), flags=[int(i % 10 == 0) for i in range(n)], file="/f", kind=1)  # fmt: skip


def test_an_outage_costs_no_count_of_a_cumulative_metric(tmp_path, collector):
    exporter = OtelExporter(to="http", endpoint=collector.http, interval_s=0.2, providers="own", events=50.0)
    session = Session(sources=[], exporters=[exporter], enrichers=[], record=False)
    session.start()
    total = 0
    for phase in ("up", "down", "up again"):
        if phase == "down":
            collector.stop()
        if phase == "up again":
            collector.start()
        for _ in range(10):
            exporter.export(scripted(1000))
            total += 1000
            exporter.tick()
            time.sleep(0.05)
    session.stop()
    collector.stop()
    assert sum(last_values(collector, "wstrace.page_faults").values()) == total
    assert sum(last_values(collector, "process.paging.faults").values()) == total
    events = [a for _, r in records(collector.received("logs"), "logs") if r["eventName"] == "wstrace.page_fault"
              for a in [attributes(r)]]  # fmt: skip
    lost = session.ledger.get("lost_otel", "otel.logs")
    majors = sum(of[TYPE] == "major" for of in events)
    assert majors <= total // 10 <= majors + lost


def test_a_thousand_processes_arrive_as_64_and_other(collector):
    exporter = OtelExporter(to="grpc", endpoint=collector.grpc, providers="own", logs=False, spans=False)
    session = Session(sources=[], exporters=[exporter], enrichers=[], record=False)
    session.start()
    batch = batch_of(PAGE_FAULT, time_ns=1, pid=[1 + i % 1000 for i in range(5000)], tid=1, pc=1, va=1, flags=0,
                     file=[f"/lib/{i % 300}" for i in range(5000)], kind=1)  # fmt: skip
    exporter.export(batch)
    session.stop()
    collector.stop()
    values = last_values(collector, "wstrace.page_faults")
    assert sum(values.values()) == 5000
    assert len({of for of, _ in values}) == 65
    assert sum(n for (of, _), n in values.items() if not of) == 5 * (1000 - 64)


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, and certificates of it for a server at 127.0.0.1 and for a client."""
    if shutil.which("openssl") is None:
        absent("there is no openssl on this machine")
    folder = tmp_path_factory.mktemp("tls")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-subj", "/CN=test CA", "-keyout", f"{folder}/ca.key",
            "-out", f"{folder}/ca.pem")  # fmt: skip
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl("req", *new, "-subj", f"/CN={name}", "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.csr")
        signed = ("-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", f"{folder}/{name}.csr", *signed, "-extfile", f"{folder}/san",
                "-out", f"{folder}/{name}.pem")  # fmt: skip
    return folder


@pytest.fixture
def secured(collector_binary, tmp_path, certificates):
    with Collector(tmp_path / "collector", tls=certificates) as running:
        yield running


def sent(collector: Collector, protocol: str) -> Session:
    endpoint = collector.http if protocol == "http" else collector.grpc
    exporter = OtelExporter(to=protocol, endpoint=endpoint, events=1e9, providers="own")
    batch = batch_of(PAGE_FAULT, time_ns=list(range(300)), pid=9, tid=9, pc=1, va=list(range(300)), flags=0, file="/f")
    session = Session(sources=[ScriptedSource([batch])], exporters=[exporter], enrichers=[], record=False)
    session.start()
    session.wait(5)
    session.stop()
    collector.stop()
    return session


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_with_its_certificate_everything_arrives(secured, certificates, protocol, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates / "ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificates / "client.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(certificates / "client.key"))
    session = sent(secured, protocol)
    assert not session.ledger.losses()
    found = [attributes(r)["wstrace.fault.address"] for _, r in records(secured.received("logs"), "logs")]
    assert sorted(found) == [f"{va:#018x}" for va in range(300)]
    assert secured.received("metrics")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("missing", ["trust", "client"])
def test_without_it_nothing_does_and_all_is_counted(secured, certificates, protocol, missing, monkeypatch):
    if missing != "trust":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates / "ca.pem"))
    session = sent(secured, protocol)
    assert session.ledger.get("lost_otel", "otel.logs") == 300
    assert not secured.received("logs")
