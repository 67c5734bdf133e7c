"""Mutual TLS with the OpenTelemetry Collector: certificates as the OTEL_* variables name them, refusals in words."""

import shutil
import subprocess

import pytest
from collector import Collector, attributes, records
from required import absent

from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import ScriptedSource, batch_of
from wstrace_exporters.otel.exporter import OtelExporter

pytestmark = pytest.mark.peers


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


def run(collector: Collector, protocol: str) -> tuple[Session, OtelExporter]:
    endpoint = collector.http if protocol == "http" else collector.grpc
    exporter = OtelExporter(to=protocol, endpoint=endpoint, events=1e9, providers="own")
    batch = batch_of(PAGE_FAULT, time_ns=list(range(300)), pid=9, tid=9, pc=1, va=list(range(300)), flags=0, file="/f")
    session = Session(sources=[ScriptedSource([batch])], exporters=[exporter], enrichers=[], record=False)
    session.start()
    session.wait(5)
    session.stop()
    collector.stop()
    return session, exporter


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_with_its_certificate_everything_arrives(secured, certificates, protocol, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates / "ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificates / "client.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(certificates / "client.key"))
    session, exporter = run(secured, protocol)
    assert not exporter.error
    assert not session.ledger.losses()
    found = [attributes(r)["wstrace.fault.address"] for _, r in records(secured.received("logs"), "logs")]
    assert sorted(found) == [f"{va:#018x}" for va in range(300)]
    assert secured.received("metrics")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("missing", ["trust", "client"])
def test_without_it_nothing_does_and_all_is_counted(secured, certificates, protocol, missing, monkeypatch):
    if missing != "trust":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates / "ca.pem"))
    session, exporter = run(secured, protocol)
    assert session.ledger.get("lost_otel", "otel.logs") == 300
    assert exporter.error
    assert not secured.received("logs")
