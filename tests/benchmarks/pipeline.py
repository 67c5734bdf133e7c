"""What a record costs behind the kernel, by stage: a trace is recorded once, and its bytes go through again and again.

    python tests/benchmarks/pipeline.py [--faults 1000000] [--threads 1] [--rounds 7] [--other PYTHON]
    python tests/benchmarks/pipeline.py --profile STAGE     # the calls of one stage
    python tests/benchmarks/pipeline.py ... -- COMMAND      # the faults of another program

The bytes of the rings are kept as the drains read them, with the rows of processes and mappings between them; they go
through samples, enrichers, summary and file on one thread without any target, so that the figures are steady: ns of CPU
a record and stage, the median of the rounds, and the least, as other work on the machine only adds. `--other` measures
the Python of another installation in turn, A B A B, in processes of their own. Run it as root, or with
perf_event_paranoid <= 1.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pickle
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from wstrace.batch import Batch
from wstrace.bus import Bus
from wstrace.interfaces import Context
from wstrace.plugins import default_plugins
from wstrace.schema import PAGE_FAULT, STREAMS
from wstrace.session import Session
from wstrace_plugins.page_faults.linux import backend
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import NoStacks
from wstrace_plugins.page_faults.linux.python_stacks.protocol import StackRows
from wstrace_plugins.page_faults.linux.python_stacks.waiting import WaitingStacks
from wstrace_plugins.page_faults.linux.samples import RingSamples, merge, settled

#: each thread touches 64 MiB of fresh pages again and again
TARGET = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
static long faults;
static void *touch(void *unused) {
    long pages = 16384;
    char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, pages * 4096, MADV_NOHUGEPAGE);
    for (long i = 0; i < faults; i++) {
        if (i % pages == 0) madvise(p, pages * 4096, MADV_DONTNEED);
        ((volatile char *)p)[i % pages * 4096] = 1;
    }
    return unused;
}
int main(int argc, char **argv) {
    long threads = atol(argv[2]);
    pthread_t all[64];
    faults = atol(argv[1]) / threads;
    for (long i = 0; i < threads; i++) pthread_create(&all[i], 0, touch, 0);
    for (long i = 0; i < threads; i++) pthread_join(all[i], 0);
    return 0;
}
"""

FOREVER = (1 << 64) - 1
LATEST_NS = 100_000_000
#: what one drain gave: the bytes of each fault ring, or rows of another stream, or the watermark that it reached
Event: TypeAlias = "tuple[str, Any]"


def record(command: list[str], stacks: str, rows: int) -> list[Event]:
    """Traces the command and keeps what its drains read, as drains of that many rows."""
    events: list[Event] = []
    taken, merged, published = RingSamples.take, backend.merge, Bus.publish

    def taking(samples: RingSamples, raw: Any, *times: int, doubled: bool) -> None:
        if len(raw):
            events.append(("ring", (id(samples), samples.major, np.array(raw))))
        taken(samples, raw, *times, doubled=doubled)

    def merging(samples: Any, until: int) -> Any:
        events.append(("until", until))
        return merged(samples, until)

    def publishing(bus: Bus, batch: Batch) -> None:
        if batch.schema.name != PAGE_FAULT.name:
            events.append(("rows", (batch.schema.name, dict(batch.columns), batch.window, batch.source)))
        published(bus, batch)

    RingSamples.take, backend.merge, Bus.publish = taking, merging, publishing
    try:
        target = default_plugins().platform.launch(command)
        session = Session(targets=[target], sources=["page_faults:stacks=none"], record=False)
        session.start()
        session.wait()
        session.stop()
    finally:
        RingSamples.take, backend.merge, Bus.publish = taken, merged, published
    events = coalesced(events, rows)
    events.append(("names", session.context.strings.names(1, len(session.context.strings))))
    return events


def coalesced(events: list[Event], rows: int) -> list[Event]:
    """The same with drains of that many rows, as they are where the machine is free: a busy one slows the target."""
    found: list[Event] = []
    waiting: dict[int, list[Any]] = {}
    majors = {}
    for kind, told in events:
        if kind == "ring":
            waiting.setdefault(told[0], []).append(told[2])
            majors[told[0]] = told[1]
        elif kind != "until":
            found.append((kind, told))
        enough = sum(len(raw) for parts in waiting.values() for raw in parts) >= rows * perf.SAMPLE.itemsize
        if waiting and kind == "until" and (enough or told == FOREVER):
            found += [("ring", (ring, majors[ring], np.concatenate(parts))) for ring, parts in waiting.items()]
            found.append(("until", told))
            waiting.clear()
    return found


class Stages:
    """CPU seconds of this thread by stage; one of them may be profiled."""

    def __init__(self, profiled: str = "") -> None:
        self.seconds: dict[str, float] = {}
        self.profile, self._profiled = cProfile.Profile(time.thread_time), profiled

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if name == self._profiled:
            self.profile.enable()
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - began
            if name == self._profiled:
                self.profile.disable()

    def each(self, name: str, batches: Callable[[], Iterable[Batch]]) -> list[Batch]:
        """What the call gives, all of it counted to the stage."""
        with self(name):
            return list(batches())


def replay(events: list[Event], stacks: str, folder: str, profiled: str = "") -> tuple[Stages, int]:
    """One pass of all that was recorded through the stages; the number of records, too."""
    from wstrace_exporters.console.console import Console
    from wstrace_exporters.msgpack.write.exporter import MsgpackExporter
    from wstrace_plugins.mapped_files.enricher import MappedFiles

    default_plugins().platform.keep_freed_memory()  # as every command that records
    context, costs, n = Context(), Stages(profiled), 0
    context.strings.codes(next(names for kind, names in events if kind == "names"))
    enricher, console = MappedFiles(reread=False), Console(io.StringIO())
    file = MsgpackExporter(path=f"{folder}/trace.wst", force=True)
    for one in (enricher, console, file):
        one.start(context)
    python = NoStacks() if stacks == "none" else WaitingStacks(context.strings, None, lambda *_: NoStacks())
    pairs = (lambda: None) if stacks == "none" else StackRows
    samples = {told[0]: RingSamples(told[1], pairs()) for what, told in events if what == "ring"}
    samples[0] = RingSamples(True, pairs())  # a ring that stays empty

    def on(batches: list[Batch]) -> None:
        for batch in batches:
            for out in costs.each("files", lambda batch=batch: enricher.enrich(batch)):
                for name, exporter in (("summary", console), ("trace file", file)):
                    if exporter.streams is None or out.schema.name in exporter.streams:
                        with costs(name):
                            exporter.export(out)

    for kind, told in events:
        if kind == "ring":
            with costs("samples"):
                samples[told[0]].take(told[2], 0, 1 << 63, doubled=False)
        elif kind == "rows":
            name, columns, window, source = told
            python.saw(Batch(STREAMS[name], columns, window=window, strings=context.strings))
            on([Batch(STREAMS[name], columns, window=window, source=source, strings=context.strings)])
        elif kind == "until":
            with costs("samples"):
                every = list(samples.values())
                until = settled(every, max(one.last_seen for one in every) - LATEST_NS)
                columns = merge(every, told if told == FOREVER else until)
            if rows := len(columns["time_ns"]):
                n += rows
                with costs("samples"):
                    columns = python.with_stacks(columns)
                times = columns["time_ns"]
                on([Batch(PAGE_FAULT, columns, window=(int(times[0]), int(times[-1])), strings=context.strings)])
    with costs("trace file"):
        file.close()
    with costs("end of summary"):
        console.close()
    return costs, n


def child(python: str, recorded: str, stacks: str) -> dict[str, float]:
    """ns a record and stage, as the Python of an installation measures itself."""
    told = subprocess.run(
        [python, __file__, "--replay", recorded, "--stacks", stacks], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, float] = json.loads(told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--stacks", choices=("auto", "none"), default="auto", help="auto: as of a program without Python"
    )
    parser.add_argument("--drain", type=int, default=32_768, help="records that a drain reads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other", help="the Python of another installation")
    parser.add_argument("--profile", default="", metavar="STAGE", help="the calls of one stage, instead of figures")
    parser.add_argument("--replay", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.replay:
            events = pickle.loads(Path(asked.replay).read_bytes())
            passes = [replay(events, asked.stacks, folder) for _ in range(3)][1:]  # the first one also fills the heap
            print(json.dumps({name: min(stages.seconds[name] / n for stages, n in passes) * 1e9
                              for name in passes[0][0].seconds}))  # fmt: skip
            return
        command = asked.command
        if not command:
            Path(folder, "target.c").write_text(TARGET)
            subprocess.run(["gcc", "-O2", "-pthread", "-o", f"{folder}/target", f"{folder}/target.c"], check=True)
            command = [f"{folder}/target", str(asked.faults), str(asked.threads)]
        events = record(command, asked.stacks, asked.drain)
        if asked.profile:
            replay(events, asked.stacks, folder)
            stages, _ = replay(events, asked.stacks, folder, asked.profile)
            pstats.Stats(stages.profile).sort_stats("tottime").print_stats(25)
            return
        kept = f"{folder}/recorded"
        Path(kept).write_bytes(pickle.dumps(events))
        pythons = [sys.executable, *([asked.other] if asked.other else [])]
        rounds = [[child(python, kept, asked.stacks) for python in pythons] for _ in range(asked.rounds)]
    names = list(rounds[0][0])
    for middle, word in ((statistics.median, "median"), (min, "least")):
        for number, python in enumerate(pythons):
            stages = {name: middle(one[number][name] for one in rounds) for name in names}
            whole = middle(sum(one[number].values()) for one in rounds)
            told = ", ".join(f"{name} {ns:.1f}" for name, ns in stages.items())
            print(f"{word:6} {whole:6.1f} ns a record: {told}  {python}")


if __name__ == "__main__":
    main()
