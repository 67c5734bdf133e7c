"""The trace file against its goals and its peers, on a real capture and on synthetic rows, ratios in one run.

    python tests/benchmarks/trace_file.py                          # all of it: minutes, 2 GB of disk
    python tests/benchmarks/trace_file.py --rows 300000 --faults 100000     # a smoke test

Goals: write and read to columns at least as fast as Arrow IPC with zstd in the same run, at half its size; writer
memory <= 20 MB, a one-second window out of 10M rows <= 10 ms. Neither reader uses threads. Peers: Parquet and Arrow IPC
by pyarrow. Rows a second are of the processor time of the one process (what a core does).
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

sys.path.insert(0, str(Path(__file__).parents[1]))

import kit.synthetic_trace as synthetic
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from wstrace.batch import Batch, Dictionary
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


def rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds / 1e6:6.1f} M rows/s"


def line(what: str, value: str, goal: str = "") -> None:
    print(f"  {what:<44}{value:>18}{'   goal ' + goal if goal else ''}", flush=True)


class Data:
    """Faults in memory, and what else a trace of them needs."""

    def __init__(self, batches: list[Batch], first: list[Batch], strings: Dictionary) -> None:
        self.batches, self.first, self.strings = batches, first, strings
        self.rows = sum(map(len, batches))

    @classmethod
    def synthetic(cls, rows: int) -> Data:
        strings = Dictionary()
        first = [synthetic.mappings(strings), synthetic.processes(strings)]
        return cls(list(synthetic.faults(strings, rows)), first, strings)

    @classmethod
    def captured(cls, path: Path) -> Data:
        with open_trace(str(path)) as trace:
            batches = [batch.take(slice(None)) for batch in trace.batches("page_fault", STORED)]
            return cls(batches, [trace.mappings, trace.processes], trace.strings)


def capture(path: Path, faults: int) -> None:
    """A real capture of at least so many faults."""
    command = [sys.executable, "-m", "wstrace", "run", "-q", "-f", "-o", str(path), "--",
               sys.executable, "-c", WORKLOAD, str(int(faults * 1.3))]  # fmt: skip
    subprocess.run(command, check=True)


# -- ours and the peers: write one file, read it back ----------------------------------------------------------------


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
    """Every format in turn, A B A B."""
    write = {name: [] for name in FORMATS}
    read = {name: [] for name in FORMATS}
    size = {}
    for _ in range(rounds):
        for name, (writer, reader) in FORMATS.items():
            path = folder / "compared"
            began = time.process_time()
            writer(data, path)
            write[name].append(time.process_time() - began)
            size[name] = path.stat().st_size / data.rows
            began = time.process_time()
            assert reader(path) == data.rows
            read[name].append(time.process_time() - began)
            path.unlink()
    peer = "Arrow IPC, zstd"
    goals = [rate(data.rows, min(write[peer])), rate(data.rows, min(read[peer])), f"{size[peer] / 2:6.2f} B/record"]
    for name in FORMATS:
        goal = [text.strip() for text in goals] if name == "wstf" else ["", "", ""]
        line(f"{name}: write", rate(data.rows, min(write[name])), goal[0])
        line(f"{name}: read to columns", rate(data.rows, min(read[name])), goal[1])
        line(f"{name}: size", f"{size[name]:6.2f} B/record", goal[2])


# -- the other goals -------------------------------------------------------------------------------------------------

MEMORY = f"""
import itertools, pathlib, sys
sys.path[:0] = {sys.path!r}
from wstrace.interfaces import Context
import kit.synthetic_trace as synthetic
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter
context = Context()
def kib(name):
    lines = pathlib.Path('/proc/self/status').read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])
batches = [synthetic.mappings(context.strings), *synthetic.faults(context.strings, 655_360)]
pathlib.Path('/proc/self/clear_refs').write_text('5')  # VmHWM begins anew: what made the batches does not count
begin = kib('VmRSS')
exporter = MsgpackExporter(path=sys.argv[1], force=True)
exporter.start(context)
exporter.export(batches[0])
for batch in itertools.islice(itertools.cycle(batches[1:]), int(sys.argv[2]) // 65_536): exporter.export(batch)
exporter.close()
print(kib('VmHWM') - begin)
"""


def memory(folder: Path, rows: int) -> float:
    """MB that writing adds to a process's resident set, at most (Linux)."""
    command = [sys.executable, "-c", MEMORY, str(folder / "m.wst"), str(rows)]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) * 1024 / 1e6


def window(path: Path) -> float:
    """Seconds to open a trace and read one second out of its middle."""
    began = time.perf_counter()
    with open_trace(str(path)) as trace:
        low, high = trace.span() or (0, 0)
        middle = (low + high) // 2
        assert sum(map(len, trace.batches("page_fault", STORED, middle, middle + 1_000_000_000)))
    return time.perf_counter() - began


def spread(path: Path, rows: int) -> None:
    """A trace of so many rows at 20,000 a second: a frame a second, as a session cuts them."""
    context = Context()
    exporter = MsgpackExporter(path=str(path), force=True, fsync="none")
    exporter.start(context)
    exporter.export(synthetic.mappings(context.strings))
    for batch in synthetic.faults(context.strings, rows, rows=20_000, ns=50_000):
        exporter.export(batch)
        exporter.flush(1)
    exporter.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--faults", type=int, default=3_000_000, help="of the real capture")
    parser.add_argument("--capture", type=Path, help="a capture to use instead of making one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary one")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.folder) as name:
        folder = Path(name)
        captured = wanted.capture or folder / "captured.wst"
        if wanted.capture is None:
            capture(captured, wanted.faults)
        real = Data.captured(captured)
        print(f"a real capture, {real.rows:,} faults, {wanted.rounds} rounds")
        compare(real, folder, wanted.rounds)
        del real
        data = Data.synthetic(wanted.rows)
        print(f"synthetic, {data.rows:,} rows")
        compare(data, folder, wanted.rounds)
        path = folder / "synthetic.wst"
        del data
        line("writer's memory", f"{memory(folder, min(wanted.rows, 3_000_000)):.1f} MB", "20")
        spread(path, wanted.rows)
        seconds = min(window(path) for _ in range(5))
        line("a second out of them, 20,000 a second", f"{seconds * 1e3:.1f} ms", "10")


if __name__ == "__main__":
    main()
