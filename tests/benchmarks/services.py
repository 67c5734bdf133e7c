"""What attaching to a service costs: requests a second and the 99th percentile of their time, over untraced, in pairs.

    python tests/benchmarks/services.py [redis pgbench gunicorn node idle] [--pairs 5] [--seconds 5]

Each round measures every service untraced, under `wstrace attach` with stacks=none and with the defaults, in turn, with
a trace file. redis-benchmark and pgbench are the services' own; HTTP is asked for by a client here. `idle` is the
tracer's CPU beside one sleeping process, and beside 200. A service that is not installed is left out and named:
tests/install-peers, apt-get install postgresql, pip install gunicorn. Run it as root, on a quiet machine; 5 pairs take
6 minutes. Goals: idle <= 0.2 % of a CPU, 200 processes <= 1 %.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from capture import cpu_of, find

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
WAYS = {"untraced": None, "stacks=none": ["-s", "page_faults:stacks=none"], "defaults": []}
CONNECTIONS = 8

GUNICORN = """
def app(environ, start_response):
    body = bytearray(200_000)  # faults at each request
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""
NODE = """
require("http").createServer((request, response) => {
  Buffer.alloc(200000);
  response.end("ok");
}).listen(Number(process.argv[1]), "127.0.0.1");
"""


class Load(NamedTuple):
    """What a load measured."""

    rate: float  #: requests a second
    p99_ms: float


class Service(NamedTuple):
    """A running service, and what asks it for the seconds that are passed."""

    pid: int
    load: Callable[[float], Load]


def initdb() -> list[Path]:
    """The program of every PostgreSQL that Debian has installed, the newest last."""
    return sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def await_port(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


@contextmanager
def running(command: list[str], port: int, **more: object) -> Iterator[int]:
    """The pid of a service that listens at that port."""
    process = subprocess.Popen(command, **QUIET, **more)
    try:
        await_port(port)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


# -- services ----------------------------------------------------------------------------------------------------------


@contextmanager
def redis(folder: str) -> Iterator[Service]:
    port = free_port()

    def load(seconds: float) -> Load:
        words = ["redis-benchmark", "-p", str(port), "-t", "set", "-d", "1000", "-r", "100000", "-c", "50", "--csv",
                 "-n", str(int(20_000 * seconds))]  # fmt: skip
        [row] = csv.DictReader(subprocess.check_output(words, text=True, stderr=subprocess.DEVNULL).splitlines())
        return Load(float(row["rps"]), float(row["p99_latency_ms"]))

    with running(["redis-server", "--port", str(port), "--save", "", "--dir", folder], port) as pid:
        yield Service(pid, load)


@contextmanager
def pgbench(folder: str) -> Iterator[Service]:
    port, data = free_port(), f"{folder}/data"
    Path(folder).chmod(0o755)
    Path(data).mkdir()
    shutil.chown(data, "postgres")
    programs = initdb()[-1].parent
    words = ["pgbench", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]

    def load(seconds: float) -> Load:
        for old in Path(folder).glob("log.*"):
            old.unlink()
        log = ["-l", f"--log-prefix={folder}/log"]
        told = subprocess.check_output([*words, "-c", "4", "-T", str(max(1, round(seconds))), *log, "postgres"],
                                       text=True, stderr=subprocess.DEVNULL)  # fmt: skip
        rate = next(float(line.split()[2]) for line in told.splitlines() if line.startswith("tps"))
        lines = (line for path in Path(folder).glob("log.*") for line in path.read_text().splitlines())
        return Load(rate, percentile([float(line.split()[2]) / 1e3 for line in lines]))

    subprocess.run(["runuser", "-u", "postgres", "--", f"{programs}/initdb", "-D", data, "-A", "trust"], check=True,
                   **QUIET)  # fmt: skip
    server = [f"{programs}/postgres", "-D", data, "-p", str(port), "-k", data, "-c", "fsync=off"]
    with running(server, port, user="postgres", group="postgres", extra_groups=[]) as pid:
        subprocess.run([*words, "-i", "-q", "-s", "2", "postgres"], check=True, **QUIET)
        yield Service(pid, load)


@contextmanager
def gunicorn(folder: str) -> Iterator[Service]:
    port = free_port()
    Path(folder, "served.py").write_text(GUNICORN)
    words = ["-m", "gunicorn", "-w", "2", "-k", "gthread", "--threads", "4", "-b", f"127.0.0.1:{port}", "served:app"]
    with running([sys.executable, *words], port, cwd=folder) as pid:
        yield Service(pid, lambda seconds: http(port, seconds))


@contextmanager
def node(folder: str) -> Iterator[Service]:
    port = free_port()
    with running(["node", "-e", NODE, str(port)], port, cwd=folder) as pid:
        yield Service(pid, lambda seconds: http(port, seconds))


def http(port: int, seconds: float) -> Load:
    """Asks again and again over a few connections that stay open."""
    ask, took, polled = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", list[float](), selectors.DefaultSelector()
    began, asked = time.perf_counter(), dict[socket.socket, float]()
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            polled.register(connection, selectors.EVENT_READ, bytearray())
            asked[connection] = time.perf_counter()
            connection.sendall(ask)
        while (now := time.perf_counter()) < began + seconds:
            for key, _ in polled.select(1.0):
                connection, answer = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                more = connection.recv(4096)
                if not more:
                    raise ConnectionError("the service closed a connection")
                answer += more
                if b"\r\n\r\n" not in answer or not answer.endswith((b"ok", b"ok\r\n0\r\n\r\n")):
                    continue
                answer.clear()
                now = time.perf_counter()
                took.append((now - asked[connection]) * 1e3)
                asked[connection] = now
                connection.sendall(ask)
    return Load(len(took) / (now - began), percentile(took))


def percentile(values: list[float], share: float = 0.99) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


# -- the tracer --------------------------------------------------------------------------------------------------------


@contextmanager
def attached(pid: int, words: list[str], trace: str) -> Iterator[subprocess.Popen[bytes]]:
    """The tracer of a process and its children, from the moment on when its events are open."""
    command = [sys.executable, "-m", "wstrace", "attach", "-q", "-f", "-o", trace, *words, str(pid)]
    tracer = subprocess.Popen(command, **QUIET)
    events = before = -1
    while before != events or events <= 0:
        before = events
        time.sleep(0.5)
        if tracer.poll() is not None:
            raise ChildProcessError(f"{' '.join(command)} ended with {tracer.returncode}")
        events = sum("perf_event" in link for link in map(link_of, Path(f"/proc/{tracer.pid}/fd").iterdir()))
    try:
        yield tracer
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(60)


def link_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def counted(trace: str) -> tuple[int, int]:
    """The faults in a trace file, and those that were lost."""
    told = subprocess.check_output([sys.executable, "-m", "wstrace", "info", "--json", trace])
    ledger = find(json.loads(told), "ledger") or {}
    lost = ("lost_kernel", "lost_tracer", "dropped_bus", "dropped_lane", "failed_lane")
    return ledger.get("recorded:page_fault", 0), sum(n for key, n in ledger.items() if key.split(":")[0] in lost)


def measure(make: Callable[[str], AbstractContextManager[Service]], pairs: int, seconds: float) -> None:
    """Prints a line for each way."""
    runs: dict[str, list[Load]] = {way: [] for way in WAYS}
    faults = dict.fromkeys(WAYS, (0, 0))
    with tempfile.TemporaryDirectory() as folder, make(folder) as service:
        service.load(1.0)
        for _ in range(pairs):
            for way, words in WAYS.items():
                if words is None:
                    runs[way].append(service.load(seconds))
                    continue
                with attached(service.pid, words, f"{folder}/{way}.wst"):
                    runs[way].append(service.load(seconds))
                recorded, lost = counted(f"{folder}/{way}.wst")
                faults[way] = faults[way][0] + recorded, faults[way][1] + lost
    for way, loads in runs.items():
        both = list(zip(loads, runs["untraced"], strict=True))
        rate = statistics.median(load.rate / bare.rate for load, bare in both)
        late = statistics.median(load.p99_ms / bare.p99_ms for load, bare in both)
        rates, p99 = (statistics.median(load[part] for load in loads) for part in (0, 1))
        recorded, lost = faults[way]
        told = f"{recorded:,} faults, {lost:,} lost" if recorded else ""
        print(f"  {way:12} {rates:9,.0f}/s ({rate:.3f})  p99 {p99:7.2f} ms ({late:.3f})  {told}", flush=True)


def idle(seconds: float = 10.0) -> None:
    """Prints the percent of one CPU that an attached tracer takes while nothing happens."""
    for processes in (1, 200):
        shell = f"for i in $(seq {processes - 1}); do sleep 1000 & done; exec sleep 1000"
        sleepers = subprocess.Popen(["sh", "-c", shell], start_new_session=True)
        try:
            with tempfile.TemporaryDirectory() as folder, attached(sleepers.pid, [], f"{folder}/x.wst") as tracer:
                time.sleep(2)
                before, at = cpu_of(tracer.pid), time.monotonic()
                time.sleep(seconds)
                percent = 100 * (cpu_of(tracer.pid) - before) / (time.monotonic() - at)
            print(f"  {processes} sleeping: {percent:.2f} % of a CPU", flush=True)
        finally:
            os.killpg(sleepers.pid, signal.SIGKILL)
            sleepers.wait()


SERVICES: dict[str, tuple[Callable[[str], AbstractContextManager[Service]], Callable[[], object]]] = {
    "redis": (redis, lambda: shutil.which("redis-server")),
    "pgbench": (pgbench, initdb),
    "gunicorn": (gunicorn, lambda: importlib.util.find_spec("gunicorn")),
    "node": (node, lambda: shutil.which("node")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="*", choices=[*SERVICES, "idle", []], help="all, if none is named")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    for name in asked.what or [*SERVICES, "idle"]:
        if name == "idle":
            print(name, flush=True)
            idle()
            continue
        make, there = SERVICES[name]
        print(f"{name}{'' if there() else ': not installed, left out'}", flush=True)
        if there():
            measure(make, asked.pairs, asked.seconds)


if __name__ == "__main__":
    main()
