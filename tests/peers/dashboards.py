"""A Collector with k8sattributes between wstrace and Prometheus, and every query of the dashboard answered there.

    python tests/peers/dashboards.py DIRECTORY    # Go and prometheus; builds the first time, four minutes of CPU

The Collector is built from collector-kubernetes.yaml by its own builder, once, into the user's cache. The Kubernetes
that it asks is a stub on this machine, which knows one pod by its uid: what wstrace sends needs the resource attribute
`k8s.pod.uid`, and the Collector adds the pod's name. Prints each query with the number of its series, and exits with 1
when one of them has none, or when the pod is not named.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from built_with_go import built_once, go
from collector import free_port, wait_http
from prometheus import Prometheus

from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import PAGE_FAULT, PROCESS, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace.session import Session
from wstrace.testing import ScriptedTarget, batch_of
from wstrace_exporters.otel.exporter import OtelExporter

BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.159.0"
MANIFEST = Path(__file__).with_name("collector-kubernetes.yaml")
DASHBOARD = Path(__file__).parents[2] / "examples" / "observability" / "grafana.json"
UID, POD = "5f3a6d1e-8c41-4f0e-9a39-6d2f1f6f7a10", "api-7f"
SECONDS = 90


def built() -> Path:
    """The path of the Collector, which is built first where that has not been done."""
    return built_once(f"otelcol-kubernetes-{hashlib.sha256(MANIFEST.read_bytes()).hexdigest()[:16]}", _build)


def _build(wanted: Path) -> None:
    compiler, work = go("the Collector"), wanted.with_suffix(".part")
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOBIN": str(work),
        "PATH": f"{Path(compiler).parent}:{os.environ['PATH']}",
    }
    work.mkdir(parents=True, exist_ok=True)
    manifest = work / "manifest.yaml"
    manifest.write_text(MANIFEST.read_text().replace("dist:", f"dist:\n  output_path: {work}/out", 1))
    subprocess.run(["nice", compiler, "install", BUILDER], env=environment, check=True)
    subprocess.run(["nice", work / "builder", f"--config={manifest}"], env=environment, check=True)
    (work / "out" / "otelcol-kubernetes").rename(wanted)
    shutil.rmtree(work)


class Kubernetes(BaseHTTPRequestHandler):
    """As much of the API as k8sattributes asks: lists of one pod and of nothing else, and watches that tell nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        pod = {"kind": "Pod", "apiVersion": "v1",
               "metadata": {"name": POD, "namespace": "shop", "uid": UID, "resourceVersion": "1",
                            "creationTimestamp": "2026-11-22T00:00:00Z"},
               "spec": {"nodeName": "node1", "containers": []},
               "status": {"podIP": "10.0.0.7", "phase": "Running"}}  # fmt: skip
        kind = path.rpartition("/")[2]
        items = [pod] if kind == "pods" else []
        if "watch=" in self.path:
            self._watch(items if "sendInitialEvents" in self.path else [], kind)
            return
        answer = {
            "kind": f"{kind[:-1].title()}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "1"},
            "items": items,
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, items: list[Any], kind: str) -> None:
        """Tells of the items, that this is all, and then nothing more."""
        end = {"kind": kind[:-1].title(), "apiVersion": "v1",
               "metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}  # fmt: skip
        events = [*({"type": "ADDED", "object": item} for item in items), {"type": "BOOKMARK", "object": end}]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write("".join(json.dumps(event) + "\n" for event in events).encode())
        self.wfile.flush()
        time.sleep(SECONDS)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def collector(folder: Path) -> Iterator[tuple[int, int]]:
    """(port of OTLP over HTTP, port that Prometheus scrapes) of a running Collector."""
    otlp, scraped = free_port(), free_port()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubernetes)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }))  # fmt: skip
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{otlp}"}}}},
        "processors": {"k8s_attributes": {
            "auth_type": "kubeConfig",
            "extract": {"metadata": ["k8s.pod.name", "k8s.namespace.name"]},
            "pod_association": [{"sources": [{"from": "resource_attribute", "name": "k8s.pod.uid"}]}],
        }},
        "exporters": {"prometheus": {"endpoint": f"127.0.0.1:{scraped}",
                                     "resource_to_telemetry_conversion": {"enabled": True}}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"metrics": {
                "receivers": ["otlp"], "processors": ["k8s_attributes"], "exporters": ["prometheus"]}},
        },
    }  # fmt: skip
    (folder / "collector.yaml").write_text(json.dumps(config))  # JSON is YAML
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    with (folder / "collector.log").open("wb") as log:
        running = subprocess.Popen([built(), f"--config=file:{folder / 'collector.yaml'}"], stdout=log, stderr=log,
                                   env=environment)  # fmt: skip
        try:
            wait_http(f"http://127.0.0.1:{scraped}/metrics", 60)
            yield otlp, scraped
        finally:
            running.terminate()
            running.wait(20)
            server.shutdown()


def requested(prometheus: Prometheus, expression: str) -> int:
    """The number of series that a query of the dashboard gives, with its variables filled in."""
    return len(prometheus.query(expression.replace("$__rate_interval", "30s").replace("$process", ".*")))


def give(exporter: OtelExporter, session: Session) -> None:
    """A little of everything that a panel shows."""
    pid, strings = os.getpid(), session.context.strings
    batches = [
        (
            batch_of(PROCESS, strings, time_ns=[1], pid=[pid], ppid=[1], tid=[pid], event=[1], name=["demo"], code=[0]),
            False,
        ),
        (
            batch_of(PAGE_FAULT, strings, time_ns=1, pid=[pid] * 2, tid=1, pc=1, va=1, flags=[0, 1], file="/f", kind=1),
            False,
        ),
        (batch_of(RESIDENT_PAGES, strings, start=[0], pages=[3], flags=[16], kind=[1]), True),
        (batch_of(WRITTEN_PAGES, strings, start=[0], pages=[3], kind=[1]), True),
    ]
    for batch, snapshot in batches:
        part = SnapshotPart(pid=pid) if snapshot else None
        exporter.export(Batch(batch.schema, dict(batch.columns), strings=strings, snapshot=part))
    session.ledger.add("lost_kernel", 1, "page_fault")
    exporter.tick()


def main(folder: Path) -> int:
    """Runs all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    dashboard = json.loads(DASHBOARD.read_text())
    waiting = {t["expr"]: 0 for panel in dashboard["panels"] for t in panel["targets"]}
    named = 0
    with collector(folder) as (otlp, scraped), Prometheus(folder / "prometheus", f"127.0.0.1:{scraped}") as prometheus:
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp}",
                       "OTEL_RESOURCE_ATTRIBUTES": f"k8s.pod.uid={UID}",
                       "OTEL_METRIC_EXPORT_INTERVAL": "1000"}  # fmt: skip
        exporter = OtelExporter(providers="own")
        target = ScriptedTarget(os.getpid())  # live: its memory is requested
        session = Session(targets=[target], sources=[], exporters=[exporter], enrichers=[], record=False)
        session.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not (named and all(waiting.values())):
            give(exporter, session)
            time.sleep(1)
            waiting = {expression: n or requested(prometheus, expression) for expression, n in waiting.items()}
            named = len(prometheus.query(f'{{k8s_pod_name="{POD}"}}'))
        session.stop()
    for expression, n in waiting.items():
        print(f"{n:4} series  {expression}")
    print(f"{named:4} series  named by k8sattributes as of the pod {POD}")
    return 0 if named and all(waiting.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
