"""What the exporter `otel` costs, and what it keeps when the collector is away.

    python tests/benchmarks/otel.py                    # all; --outage 60 for a whole minute, --quick for a look
    python tests/benchmarks/otel.py metrics span       # some

metrics   CPU a fault of the aggregating path                                        <= 0.1 us
span      CPU that FaultSpanProcessor adds to a span                                 <= 8 us
target    run time of a target with the exporter against without it                  within 5 %
outage    collector away and back: cumulative counts, memory, losses                 exact, bounded, counted
exit      seconds that stop() takes with nothing listening                           <= 4 s
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

ROWS = 16_384  # about what a drain gives at 160,000 faults/s


def batch(strings: Dictionary, seed: int, n: int = ROWS, processes: int = 4, files: int = 60) -> Batch:
    """Page faults as the enriched capture gives them."""
    random = np.random.default_rng(seed)
    names = np.array([strings.code(f"/usr/lib/x86_64-linux-gnu/lib{i}.so.6") for i in range(files)], "<u4")
    now = time.monotonic_ns()
    columns = {
        "time_ns": np.sort(random.integers(now - 10**8, now, n)).astype("<u8"),
        "pid": (4000 + random.integers(0, processes, n)).astype("<u4"),
        "tid": (4000 + random.integers(0, 2 * processes, n)).astype("<u4"),
        "pc": random.integers(0x400000, 0x500000, n).astype("<u8"),
        "va": (random.integers(0x7F0000000, 0x7FFFFFFFF, n) << 12).astype("<u8"),
        "flags": (random.random(n) < 0.0001).astype("u1"),
        "file": names[random.integers(0, files, n)],
        "pc_file": names[random.integers(0, 8, n)],
        "kind": random.integers(1, 4, n).astype("u1"),
    }
    return Batch(PAGE_FAULT, columns, window=(int(columns["time_ns"][0]), int(columns["time_ns"][-1])), strings=strings)


def cpu(call: Callable[[], None]) -> float:
    """CPU seconds of this process that the call takes."""
    started = time.process_time()
    call()
    return time.process_time() - started


def metrics(quick: bool) -> dict[str, Any]:
    """The aggregating path alone, and with events at their default rate."""
    from receiver import Receiver

    from wstrace_exporters.otel.exporter import OtelExporter

    rounds = 8 if quick else 64
    found = {}
    with Receiver() as receiver:
        for name, logs in (("metrics", False), ("metrics and events", True)):
            exporter = OtelExporter(to="http", endpoint=receiver.url, providers="own", logs=logs, spans=False)
            context = Context()
            batches = [batch(context.strings, seed) for seed in range(8)]
            exporter.start(context)
            exporter.export(batches[0])
            seconds = cpu(lambda: [exporter.export(batches[i % 8]) for i in range(rounds)] and None)  # noqa: B023
            exporter.close()
            found[f"us a fault, {name}"] = round(seconds / (rounds * ROWS) * 1e6, 4)
    return found


def span(quick: bool) -> dict[str, Any]:
    """Started and ended spans with 4 attributes, with and without the processor: short rounds in turn, the least."""
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from wstrace_exporters.otel.application.processor import FaultSpanProcessor

    n, rounds = 500, 20 if quick else 200
    given = {"http.request.method": "GET", "url.path": "/", "http.response.status_code": 200, "server.port": 80}

    def worker(processor: SpanProcessor) -> Callable[[], None]:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("benchmark")

        def work() -> None:
            for _ in range(n):
                with tracer.start_as_current_span("request", attributes=given):
                    pass

        return work

    workers = worker(SpanProcessor()), worker(FaultSpanProcessor(SpanProcessor()))
    took = [[cpu(work) / n for work in workers] for _ in range(rounds)]
    plain, counted = (min(column) for column in zip(*took, strict=True))
    return {"us a span, SDK": round(plain * 1e6, 2), "us a span, added": round((counted - plain) * 1e6, 2)}


TARGET = """
import mmap, time
began = time.perf_counter()
for _ in range(ROUNDS):
    memory = mmap.mmap(-1, 8192 * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(memory), mmap.PAGESIZE): memory[at] = 1
    memory.close()
print(time.perf_counter() - began)
"""


def target(quick: bool) -> dict[str, Any]:
    """A target that takes a fault every few hundred ns; medians of interleaved runs."""
    from receiver import Receiver

    code = TARGET.replace("ROUNDS", "10" if quick else "60")
    took: dict[str, list[float]] = {"without": [], "with": []}
    with Receiver() as receiver:
        for _ in range(2 if quick else 11):
            for name, words in (("without", []), ("with", ["-e", f"otel:to=http,endpoint={receiver.url}"])):
                done = subprocess.run(
                    [sys.executable, "-m", "wstrace", "run", "-q", *words, "--", sys.executable, "-c", code],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                took[name].append(float(done.stdout))
    without, with_it = (statistics.median(took[name]) for name in ("without", "with"))
    return {
        "s without": round(without, 3),
        "s with": round(with_it, 3),
        "percent": round(100 * (with_it / without - 1), 1),
    }


def outage(quick: bool, seconds: float) -> dict[str, Any]:
    """Faults go on while the collector is away; afterwards its last values are compared with what was given."""
    from collector import Collector, records

    from wstrace_exporters.otel.exporter import OtelExporter

    seconds = min(seconds, 3.0) if quick else seconds
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(Path(folder)).start()
        exporter = OtelExporter(to="http", endpoint=collector.http, interval_s=1.0, providers="own")
        session = Session(sources=[], exporters=[exporter], enrichers=[], record=False)
        session.start()
        strings = session.context.strings
        batches = [batch(strings, seed) for seed in range(4)]
        given, peaks = 0, []
        for phase, length in (("up", 2.0), ("away", seconds), ("back", 4.0)):
            if phase == "away":
                collector.stop()
            elif phase == "back":
                collector.start()
            until = time.monotonic() + length
            while time.monotonic() < until:
                exporter.export(batches[given % 4])
                given += 1
                exporter.tick()
                time.sleep(0.05)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        session.stop()
        collector.stop()
        last: dict[str, int] = {}
        for about, record in records(collector.received("metrics"), "metrics"):
            if record["name"] == "wstrace.page_faults":
                for point in record["sum"]["dataPoints"]:
                    last[json.dumps([about["process.pid"], point["attributes"]])] = int(point["asInt"])
        return {"seconds away": seconds, "faults given": given * ROWS, "faults at the collector": sum(last.values()),
                "MiB peak before, during, after": peaks, "lost by signal": {
                    who: n for stage, who, n in session.ledger.losses() if stage == "lost_otel"}}  # fmt: skip


def leave(quick: bool) -> dict[str, Any]:
    """A traced command with nothing listening: how much longer it all takes than the same with otel off."""
    took = []
    for words in ([], ["-e", "otel:to=http,endpoint=http://127.0.0.1:9,events=1e9"]):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "wstrace", "run", "-q", *words, "--", "true"], capture_output=True,
                       env={**os.environ})  # fmt: skip
        took.append(time.monotonic() - began)
    return {"s without": round(took[0], 2), "s with": round(took[1], 2)}


def main() -> None:
    """Runs what is asked for and prints a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["metrics", "span", "target", "outage", "exit", []])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--outage", type=float, default=10.0, help="seconds")
    asked = parser.parse_args()
    benchmarks: dict[str, Callable[[], dict[str, Any]]] = {
        "metrics": lambda: metrics(asked.quick),
        "span": lambda: span(asked.quick),
        "target": lambda: target(asked.quick),
        "outage": lambda: outage(asked.quick, asked.outage),
        "exit": lambda: leave(asked.quick),
    }
    for name in asked.what or benchmarks:
        print(name, json.dumps(benchmarks[name]()), flush=True)


if __name__ == "__main__":
    main()
