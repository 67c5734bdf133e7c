"""Small traces, scripted batch by batch, and what the console prints of them. The fixture `kit` is this module."""

import io
import types
from typing import Any

import numpy as np
import pytest

from wstrace.analysis.filter import Filter
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Batch
from wstrace.interfaces import Context, MappedFile, Place
from wstrace.schema import MAPPING, PAGE_FAULT
from wstrace.testing import ScriptedTarget
from wstrace_exporters.console.console import Console
from wstrace_exporters.console.lines import lines_of

LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


def target(pid: int = 700, *, launched: bool = True) -> ScriptedTarget:
    return ScriptedTarget(pid, "python3", launched=launched)


class Trace:
    """Makes the batches of a small trace, with names as codes of one dictionary."""

    def __init__(self, *, live: bool = True) -> None:
        self.context = Context(targets=(target(),) if live else ())
        self.code = self.context.strings.code

    def faults(self, rows: list[tuple[int, str, str]], *, pid: int = 700, tid: int = 700, major: bool = False,
               **columns: Any) -> Batch:  # fmt: skip
        """Rows of (how many, the page's file, the instruction's file)."""
        file = np.repeat([self.code(row[1]) for row in rows], [row[0] for row in rows]).astype("u4")
        n = len(file)
        kinds = {"[heap]": 3, "[stack]": 4, "[anon]": 2, "": 0}
        given = {
            "time_ns": np.arange(n, dtype="u8") * 1000 + 5_000_000_000,
            "pid": np.full(n, pid, "u4"),
            "tid": np.full(n, tid, "u4"),
            "pc": np.full(n, 0x7F0000001234, "u8"),
            "va": np.arange(n, dtype="u8") * 4096 + 0x7F1000000000,
            "flags": np.full(n, int(major), "u1"),
            "file": file,
            "pc_file": np.repeat([self.code(row[2]) for row in rows], [row[0] for row in rows]).astype("u4"),
            "kind": np.repeat([kinds.get(row[1], 1) for row in rows], [row[0] for row in rows]).astype("u1"),
        }
        return Batch(
            PAGE_FAULT, {**given, **columns}, strings=self.context.strings, window=(5_000_000_000, 6_000_000_000)
        )

    def mappings(self, rows: list[tuple[int, int, int, int, str]], pid: int = 700) -> Batch:
        """Rows of (id, start, end, offset, file)."""
        names = [("id", "u4"), ("start", "u8"), ("end", "u8"), ("offset", "u8")]
        columns = {name: np.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(names)}
        columns |= {"pid": np.full(len(rows), pid, "u4"), "file": np.array([self.code(row[4]) for row in rows], "u4")}
        return Batch(MAPPING, columns, strings=self.context.strings)


def printed(trace: Trace, stream: Any = None, **options: Any) -> str:
    """What the exporter writes of a kept trace."""
    stream = stream or io.StringIO()
    console = Console(stream, **options)
    console.start(trace.context)
    console.flush(1)
    console.close()
    if isinstance(stream, io.StringIO):
        return stream.getvalue()
    stream.flush()
    return str(stream.buffer.getvalue().decode(stream.encoding))


def fault_lines(trace: Trace, batches: list[Batch], form: str, **chosen: Any) -> str:
    """What `report --format` prints of the faults of a trace."""
    symbolizer = Symbolizer(trace.context)
    return "".join(lines_of(batches, symbolizer, Filter(**chosen), as_json=form == "jsonl"))


class KnownSections:
    """A resolver of known answers."""

    def __init__(self, *, broken: bool = False) -> None:
        self.wanted = []
        self.broken = broken
        self.name = "sections"

    def resolve(self, file: MappedFile, offsets: Any) -> list[Place]:
        if self.broken:
            raise RuntimeError("no")
        self.wanted.append((file.path, offsets.tolist(), file.pid))
        name = file.path.rpartition("/")[2]
        return [
            Place(name, ".text", 14, "f", 3, o) if o < 0x2000 else Place(name, ".data", 20, address=o)
            for o in offsets.tolist()
        ]


def small(trace: Trace) -> list[Batch]:
    start, code = 0x7F1000000000, 0x7F0000000000
    mapped = {"mapping": np.array([1, 1, 1, 2, 0], "u4"), "pc_mapping": np.array([3, 3, 3, 3, 0], "u4")}
    rows = [(1, LIBC, PYTHON), (1, LIBC, PYTHON), (1, LIBC, PYTHON), (1, "[heap]", PYTHON), (1, "", "[kernel]")]
    return [
        trace.mappings(
            [
                (1, start, start + 0x3000, 0x1000, LIBC),
                (2, start + 0x3000, start + 0x4000, 0, "[heap]"),
                (3, code, code + 0x9000, 0, PYTHON),
            ]
        ),
        trace.faults(rows, flags=np.array([0, 1, 16 | 4, 16, 2], "u1"), **mapped),
    ]


@pytest.fixture
def kit():
    """The names of this module: tests are not on the import path."""
    return types.SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})
