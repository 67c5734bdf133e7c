"""Structure-aware fuzzing of the reader and of every command on a trace: mutants with frames whole by their CRC.

    python tests/fuzz/fuzz_commands.py SEED SECONDS       # says what raised; keeps the inputs in the folder `found`

A flipped bit dies at the CRC. So frames are taken apart, values, keys, columns and the order of frames are changed, and
the file is put together again with right lengths and CRCs. No command may raise anything but what main() makes a
sentence of, say "internal error", or print a control character.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from fuzz_trace import read_all
from kit.codecs import by_codec

import wstrace.cli
from wstrace.errors import WstraceError
from wstrace.schema import DTYPES
from wstrace_exporters.msgpack.format import columns as col
from wstrace_exporters.msgpack.format.layout import END, HEAD_BYTES, INDEX, SYNC, pack_frame, unpack_head
from wstrace_exporters.msgpack.format.values import Body

HERE = Path(__file__).parent
SEEDS = [HERE.parent / "golden" / "wstf-2.0.wst", HERE / "corpus" / "whole", HERE / "corpus" / "forks"]
EDGES = [0, 1, -1, 2, 127, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53,
         (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63), 4096]  # fmt: skip
TEXTS = ["", "\x1b]0;pwn\x07\x1b[31m", "a\nb", "x" * 300, "é", "page_fault", "process", "resident", "mapping", "mark",
         'x"; drop table t; --', "%s", "[red]x[/]", "file", "time_ns", "va", "map", "str", "u8", "f64"]  # fmt: skip
VIEWS = ("faults", "pages", "processes", "stacks", "unshared", "still_resident")

Frames = list[tuple[int, bytes]]


def frames_of(data: bytes) -> Frames:
    """(kind, body) of the frames that can be found."""
    found, at = [], data.find(SYNC)
    while at >= 0:
        head = unpack_head(data, at)
        if head is not None and at + head.frame_len <= len(data):
            found.append((head.kind, data[at + HEAD_BYTES : at + head.frame_len]))
        at = data.find(SYNC, at + 1)
    return found


def built(frames: Frames) -> bytes:
    """A file of frames, with right heads."""
    return b"".join(pack_frame(b"fuzzfuzz", kind, seq, body) for seq, (kind, body) in enumerate(frames))


class Mutator:
    """Makes odd files of good ones. The same seed makes the same files."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._parsed = [frames_of(path.read_bytes()) for path in SEEDS]

    def file(self) -> bytes:
        """The next one."""
        rng = self._random
        frames = list(rng.choice(self._parsed))
        if rng.random() < 0.7:  # without its end it is scanned, so that no lie of the index hides the change
            frames = [frame for frame in frames if frame[0] not in (INDEX, END)]
        if rng.random() < 0.2:
            self._reorder(frames)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(frames))
            frames[at] = frames[at][0], self._body(frames[at][1])
        return built(frames)

    def _reorder(self, frames: Frames) -> None:
        rng = self._random
        what = rng.randrange(4)
        if what == 0 and len(frames) > 1:
            del frames[rng.randrange(len(frames))]
        elif what == 1:
            rng.shuffle(frames)
        elif what == 2:
            frames.insert(rng.randrange(len(frames)), rng.choice(rng.choice(self._parsed)))
        else:
            frames.insert(1, (rng.randrange(10), msgpack.packb(self._value())))

    def _value(self) -> Any:
        rng = self._random
        kind = rng.randrange(10)
        if kind < 5:
            return rng.choice(EDGES)
        if kind == 5:
            return rng.choice([float("nan"), float("inf"), 0.5, None, True, b"", b"\xff\x1b[2J"])
        if kind == 6:
            return [self._value() for _ in range(rng.randrange(4))]
        if kind == 7:
            return {rng.choice(("m", "t", "n", "pid", "ledger", "facts", "text")): self._value() for _ in range(3)}
        return rng.choice(TEXTS)

    def _body(self, body: bytes) -> bytes:
        rng = self._random
        try:
            value = msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogateescape")
        except ValueError:
            return body
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            columns = value.get("c") if isinstance(value, dict) else None
            if isinstance(columns, dict) and columns and rng.random() < 0.45:
                name = rng.choice(list(columns))
                columns[name] = self._column(columns[name])
            else:
                self._change(value)
        return bytes(msgpack.packb(value, unicode_errors="surrogateescape"))

    def _column(self, column: Any) -> Any:
        rng = self._random
        with contextlib.suppress(Exception):  # whatever a column that was changed before has become
            n = column[3] // np.dtype(DTYPES[column[0]]).itemsize
            array = col.decode(Body(msgpack.packb(column)), n)
            assert array is not None
            changed = array.copy()
            bits = changed.view(f"<u{changed.itemsize}")
            for _ in range(rng.choice((1, 1, 3, 20))):
                bits[rng.randrange(n)] = rng.choice(EDGES) & ((1 << 8 * changed.itemsize) - 1)
            made = col.encode(changed, delta=rng.random() < 0.5, shuffle=rng.random() < 0.5)
            return by_codec(made, rng.choice(("zstd", "zlib", "none")))
        return column

    def _change(self, value: Any) -> None:
        rng = self._random
        path = rng.choice(list(_paths(value)))
        if not path:
            return
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        key, what = path[-1], rng.randrange(7)
        if what < 4:
            parent[key] = self._value()
        elif what == 4:
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, parent[key])
        elif what == 5:
            parent[f"other {rng.randrange(9)}"] = parent[key]
        else:
            other = rng.choice(list(parent))
            parent[key], parent[other] = parent[other], parent[key]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in list(value):
            yield from _paths(value[key], (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value[:200]):
            yield from _paths(item, (*path, at))


def commands(path: Path, other: Path, folder: Path) -> list[list[str]]:
    """Every command that reads a trace, in its ways."""
    by = ("file", "module", "package", "thread", "process", "kind", "section", "function")
    words = [
        ["info", path], ["info", "--json", path], ["info", "--quick", path], ["info", path, other],
        ["report", path], ["report", path, "--json"], ["report", path, "--format", "lines"],
        ["report", path, "--format", "jsonl"], ["report", path, "--hard", "--start", "0.1", "--end", "5"],
        *(["report", path, "--by", one] for one in by),
        ["convert", path, "-e", f"msgpack:path={folder / 'r.wst'},force=true"],
        ["convert", path, "-f", "-o", folder / "o.csv"], ["convert", path, "-f", "-o", folder / "p.jsonl"],
        ["convert", path, "-f", "-o", folder / "o.jsonl", "--stream", "process"],
        ["convert", path, "-f", "-o", folder / "o.parquet", "--start", "0.1"],
        ["convert", path, "-f", "-o", folder / "c.wst"], ["convert", path, other, "-f", "-o", folder / "m.wst"],
        ["query", path, "select * from page_fault limit 5"],
        ["query", path, "select file, count(*) from page_fault group by 1"],
        ["diff", path, other], ["diff", SEEDS[0], path], ["diff", SEEDS[0], path, "--by", "line", "--json", "--all"],
        ["report", path], ["report", path, "--over-time", "1s", "--json"], ["report", path, "--over-time", "0.1s"],
        ["report", path, "--by", "line,process"], ["report", path, "--at", "start", "--sort", "faults"],
        ["unshared", path], ["unshared", path, "--json"], ["report", path, "--by", "stack"],
        ["report", path, "--by", "thread,line", "--json"], ["diff", path, other, "-f", "--html", folder / "d.html"],
        ["imports", path], ["imports", path, "--json"],
        ["report", path, "--at", "exit", "--json"], ["report", path, "-f", "--html", folder / "r.html"],
        *(["convert", path, "-f", "-o", folder / f"o.{one}"] for one in ("folded", "pb.gz", "pftrace", "html")),
        ["query", "--schema", path], *(["query", path, f"select * from {view}"] for view in VIEWS),
    ]  # fmt: skip
    return [[str(word) for word in one] for one in words]


def run(words: list[str]) -> str:
    """What is wrong with how a command took its input; "" when nothing is."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            read_all(Path(words[1])) if words[0] == "library" else wstrace.cli.main(words)
    except WstraceError:
        pass
    except Exception as error:  # what main() lets through
        return f"{type(error).__name__}: {error}"
    text = said.getvalue()
    for word in ("internal error", "Traceback", "Error:", "exporter "):
        if word in text:
            return text[max(0, text.index(word) - 200) :][:2000]
    control = {character for character in text if ord(character) < 32 and character != "\n"} - {"\t"}
    return f"control characters {control}" if control else ""


def fuzz(seed: int, *, files: int = 0, seconds: float = 0.0, each: int = 3) -> Iterator[tuple[bytes, list[str], str]]:
    """(input, command, what was wrong) of so many files or seconds, `each` commands a file."""
    mutator, rng = Mutator(seed), random.Random(seed)
    until, n = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory(prefix="wstrace-fuzz-") as name:
        folder = Path(name)
        path, other = folder / "x.wst", folder / "y.wst"
        while n < files or time.monotonic() < until:
            n += 1
            data = mutator.file()
            path.write_bytes(data)
            other.write_bytes(mutator.file() if rng.random() < 0.4 else rng.choice(SEEDS).read_bytes())
            for words in [["library", str(path)], *rng.sample(commands(path, other, folder), each)]:
                if wrong := run(words):
                    yield data, words, wrong


def main() -> int:
    """Fuzzes for some seconds; says each new kind of failure once."""
    known = set()
    folder = Path("found")
    for data, words, wrong in fuzz(int(sys.argv[1]), seconds=float(sys.argv[2])):
        kind = f"{words[0]}: {wrong[-160:]}"
        if kind not in known:
            known.add(kind)
            folder.mkdir(exist_ok=True)
            name = folder / f"{hashlib.sha256(data).hexdigest()[:12]}.wst"
            name.write_bytes(data)
            print(f"{name}: {' '.join(words)}\n{wrong}\n", flush=True)
    print(f"{len(known)} kinds of failure in {sys.argv[2]} s")
    return bool(known)


if __name__ == "__main__":
    sys.exit(main())
