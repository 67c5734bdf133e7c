"""The trace file against its goals and its peers, on a real capture, ratios in one run.

    python tests/benchmarks/trace_file.py [--faults 3000000] [--rounds 3]

Goals: write and read to columns at least as fast as Arrow IPC with zstd in the same run, at half its size. Neither
reader uses threads. Peers: Parquet and Arrow IPC by pyarrow. Rows a second are of the processor time of the one process
(what a core does).
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from wstrace.interfaces import Context
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

STORED = ("time_ns", "pid", "tid", "pc", "va", "flags", "mapping", "pc_mapping")
#: touches memory as programs do: a heap that grows, files mapped and read in runs and at random, children, threads
WORKLOAD = """
import mmap, os, random, sys, threading, glob
faults = int(sys.argv[1]); rng = random.Random(1)
files = [p for p in glob.glob(os.path.dirname(os.__file__) + '/**/*.so', recursive=True) + glob.glob('/usr/lib/*/*.so*')
         if os.path.isfile(p) and os.path.getsize(p) > 1 << 16][:200] or [sys.executable]
def heap(n):
    while n > 0:
        k = min(n, rng.randrange(64, 4096)); n -= k
        block = mmap.mmap(-1, k * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for i in range(k): block[i * 4096] = 1
        block.close()
def mapped(n):
    while n > 0:
        with open(rng.choice(files), 'rb') as f: m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
        m.madvise(mmap.MADV_RANDOM); pages = len(m) // 4096; k = min(n, 200); n -= k
        for _ in range(k): m[rng.randrange(pages) * 4096]
        m.close()
def part(n):
    if n > 400_000:
        for _ in range(2):
            pid = os.fork()
            if pid == 0: part(n // 4); os._exit(0)
            os.waitpid(pid, 0)
        n //= 2
    threads = [threading.Thread(target=heap, args=(n // 5,)) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    mapped(n // 5)
part(faults)
"""


class Data:
    """Faults in memory, and what else a trace of them needs."""

    def __init__(self, path: Path) -> None:
        with open_trace(str(path)) as trace:
            self.batches = [batch.take(slice(None)) for batch in trace.batches("page_fault", STORED)]
            self.first, self.strings = [trace.mappings, trace.processes], trace.strings
        self.rows = sum(map(len, self.batches))


def capture(path: Path, faults: int) -> None:
    """A real capture of at least so many faults."""
    command = [sys.executable, "-m", "wstrace", "run", "-q", "-f", "-o", str(path), "--",
               sys.executable, "-c", WORKLOAD, str(int(faults * 1.3))]  # fmt: skip
    subprocess.run(command, check=True)


def write_wstf(data: Data, path: Path) -> None:
    context = Context(strings=data.strings)
    exporter = MsgpackExporter(path=str(path), force=True, fsync="none")
    exporter.start(context)
    for batch in itertools.chain(data.first, data.batches):
        exporter.export(batch)
    exporter.close()


def read_wstf(path: Path, columns: tuple[str, ...] | None) -> int:
    with open_trace(str(path)) as trace:
        return sum(len(batch) for batch in trace.batches("page_fault", columns))


def table_batches(data: Data) -> Iterator[pa.RecordBatch]:
    for batch in data.batches:
        yield pa.record_batch({name: np.ascontiguousarray(batch[name]) for name in STORED})


def write_parquet(data: Data, path: Path) -> None:
    schema = next(table_batches(data)).schema
    with parquet.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for batch in table_batches(data):
            writer.write_batch(batch)


def read_parquet(path: Path) -> int:
    return sum(batch.num_rows for batch in parquet.ParquetFile(path).iter_batches(65_536, use_threads=False))


def write_arrow(data: Data, path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_file(path, next(table_batches(data)).schema, options=options) as writer:
        for batch in table_batches(data):
            writer.write_batch(batch)


def read_arrow(path: Path) -> int:
    with pa.ipc.open_file(pa.OSFile(str(path)), options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


FORMATS: dict[str, tuple[Callable[[Data, Path], None], Callable[[Path], int]]] = {
    "wstf": (write_wstf, lambda path: read_wstf(path, STORED)),
    "Parquet, zstd 1": (write_parquet, read_parquet),
    "Arrow IPC, zstd": (write_arrow, read_arrow),
}


def compare(data: Data, folder: Path, rounds: int) -> None:
    """Every format in turn, A B A B: M rows a second written and read, and bytes a record."""
    write, read, size = ({name: [] for name in FORMATS} for _ in range(3))
    path = folder / "compared"
    for _ in range(rounds):
        for name, (writer, reader) in FORMATS.items():
            began = time.process_time()
            writer(data, path)
            written = time.process_time()
            assert reader(path) == data.rows
            write[name].append(written - began)
            read[name].append(time.process_time() - written)
            size[name].append(path.stat().st_size / data.rows)
            path.unlink()
    for name in FORMATS:
        rates = (
            f"{what} {data.rows / min(of[name]) / 1e6:6.1f} M rows/s" for what, of in (("write", write), ("read", read))
        )
        print(f"  {name:<18}{'  '.join(rates)}  {size[name][0]:6.2f} B/record", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        capture(folder / "captured.wst", wanted.faults)
        data = Data(folder / "captured.wst")
        print(f"{data.rows:,} faults, {wanted.rounds} rounds")
        compare(data, folder, wanted.rounds)


if __name__ == "__main__":
    main()
