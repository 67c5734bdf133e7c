"""Writes the seeds of tests/fuzz/corpus: small traces of every kind of frame, and pieces of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import kit.synthetic_trace as synthetic
import numpy as np
from kit.blame_scripted import ANON, APP, FILE, IMPORT, PAGE, Script, saved
from kit.codecs import by_codec

from wstrace.interfaces import Context, Level
from wstrace.schema import (
    FAULT_MAJOR,
    FAULT_WRITE,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_MOVED,
    LOSS_UNMAPPED,
    MARK,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_SHARED,
    PROCESS_EXIT,
    PROCESS_FORK,
)
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.format import columns
from wstrace_exporters.msgpack.format.layout import EVENTS, HEAD_BYTES, HEADER, pack_frame, unpack_head
from wstrace_exporters.msgpack.format.values import packb
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

CORPUS = Path(__file__).with_name("corpus")


def trace(folder: Path) -> bytes:
    """A trace of 1.5 KiB with every kind of frame."""
    context = Context()
    exporter = MsgpackExporter(path=str(folder / "x.wst"), force=True)
    exporter.start(context)
    exporter.export(synthetic.mappings(context.strings, 4))
    exporter.export(synthetic.processes(context.strings, name="p\udcff"))
    for batch in synthetic.faults(context.strings, 30, n_mappings=4):
        exporter.export(batch.with_columns({"odd": np.arange(30, dtype="<u2")}))
    exporter.export(batch_of(MARK, context.strings, time_ns=[9], pid=1, tid=1, text=["mark"]))
    exporter.export(synthetic.resident(context.strings, 3))
    context.info.level, context.info.command = Level("full"), ["a"]
    context.info.extra["nested"] = {"list": [1, 2.5, None, True]}
    context.ledger.add("recorded", 30, "page_fault")
    exporter.close()
    return (folder / "x.wst").read_bytes()


def forks(folder: Path) -> bytes:
    """A trace of deep stacks, a chain of forks with what each of them copies, moves, and a snapshot after each."""
    script = Script()
    deep = [(f"f{depth}", f"/srv/app/{depth % 3}.py", depth) for depth in range(1100)]
    for step, pid in enumerate(range(7, 12)):
        time = 100 * (step + 1)
        if step:
            script.batches.append(script.process(time, pid, PROCESS_FORK, "app"))
            script.lose(time, LOSS_FORKED, pid=pid, other=pid - 1)
        for page in range(4):
            script.fault(time + 1 + page, ANON + (page + step) * PAGE, APP, pid, FAULT_WRITE, cgroup=f"/box{step}")
        script.fault(time + 10, ANON + 40 * PAGE, deep, pid, native=[(3, depth) for depth in range(120)])
        script.fault(time + 11, FILE, IMPORT, pid, FAULT_MAJOR, cut=True)
        script.snapshot(time + 20, (ANON, 4, PAGE_EXCLUSIVE), (FILE, 2, PAGE_FILE | PAGE_SHARED), pid=pid, number=step)
    script.lose(700, LOSS_UNMAPPED, pid=8, start=ANON, end=ANON + PAGE)
    script.lose(710, LOSS_MOVED, pid=9, start=ANON, end=ANON + PAGE, to=ANON + 64 * PAGE)
    script.lose(720, LOSS_EXECUTED, pid=10)
    script.batches.append(script.process(730, 11, PROCESS_EXIT, "app"))
    saved(script.trace(), str(folder / "forks.wst"))
    return (folder / "forks.wst").read_bytes()


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        data = trace(Path(folder))
        seeds = {"forks": forks(Path(folder))}
    seeds |= {"whole": data, "cut": data[: len(data) // 2], "no-header": data[unpack_head(data).frame_len :]}
    at = 0
    while at < len(data):
        head = unpack_head(data, at)
        seeds.setdefault(f"kind-{head.kind}", bytes([head.kind]) + data[at + HEAD_BYTES : at + head.frame_len])
        at += head.frame_len
    numbers = np.arange(40, dtype="<u8")
    codecs = {name: by_codec(columns.encode(numbers, delta=True), name) for name in ("none", "zlib", "zstd")}
    codecs["unknown"] = ["f64", [["xor", 1]], "lz4", 320, bytes(4)]
    header = pack_frame(b"fuzzfuzz", HEADER, 0, packb({"v": [2, 0], "id": b"fuzzfuzz"}))
    body = packb({"s": "odd", "n": 40, "t": [1, 2], "c": codecs})
    seeds["codecs"] = header + pack_frame(b"fuzzfuzz", EVENTS, 1, body)
    for name, seed in seeds.items():
        (CORPUS / name).write_bytes(seed)


if __name__ == "__main__":
    main()
