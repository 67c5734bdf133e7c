"""What the tests of trace files share: an exporter that writes one, and what of a made-up trace is in it."""

from collections.abc import Iterable
from pathlib import Path

import msgpack
import numpy as np

import kit.synthetic_trace as synthetic
from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.schema import MARK
from wstrace.testing import batch_of
from wstrace.trace_info import Level, Usage
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

#: the columns of a fault that stand in the file; the others are computed again
STORED = ("time_ns", "pid", "tid", "pc", "va", "flags", "mapping", "pc_mapping")


def started(path: Path | str, *, command: Iterable[str] = (), **options: object) -> tuple[MsgpackExporter, Context]:
    """An exporter that has begun a trace of that command, and its context."""
    context = Context()
    context.info.command = list(command)
    exporter = MsgpackExporter(path=str(path), **options)
    exporter.start(context)
    return exporter, context


def everything(
    exporter: MsgpackExporter, context: Context, n: int = 10_000, rows: int = 1000, *, name: str = "made-up",
    seed: int = 1, flush: bool = False,
) -> list[Batch]:  # fmt: skip
    """Exports mappings, the process of that name and n faults, flush: each batch in a frame; gives the faults."""
    exporter.export(synthetic.mappings(context.strings))
    exporter.export(synthetic.processes(context.strings, name=name))
    batches = list(synthetic.faults(context.strings, n, rows=rows, seed=seed))
    for batch in batches:
        exporter.export(batch)
        if flush:
            exporter.flush(1)
    return batches


def recorded(path: Path | str, n: int, rows: int = 1000, seed: int = 1, **options: object) -> list[Batch]:
    """A whole trace of every stream, with losses and facts, a frame every `rows` faults; gives the faults."""
    exporter, context = started(path, **options)
    batches = everything(exporter, context, n, rows, seed=seed, flush=True)
    exporter.export(batch_of(MARK, context.strings, time_ns=[2_500_000], pid=7, tid=8, text=["warm"]))
    exporter.export(synthetic.resident(context.strings))
    context.ledger.add("recorded", n, "page_fault")
    context.ledger.add("lost_kernel", 7, "page_fault")
    context.info.level, context.info.usage = Level("full"), Usage(peak_resident_bytes=123)
    exporter.close()
    return batches


def column(batches: Iterable[Batch], name: str) -> np.ndarray:
    """A column of all batches."""
    return np.concatenate([batch[name] for batch in batches])


def frames_in(path: Path) -> list[list]:
    """Every frame of a file, as plain msgpack gives it."""
    with path.open("rb") as file:
        return list(msgpack.Unpacker(file, strict_map_key=False))
