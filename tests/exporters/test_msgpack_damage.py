"""Damaged files: never an exception, never a wrong row, only the frames that were hit are lost."""

import random
import tracemalloc
from collections import Counter
from pathlib import Path

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.msgpack_scripted import STORED, started

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.format.layout import (
    EVENTS,
    HEAD_BYTES,
    LIMITS,
    MAPPINGS,
    STRINGS,
    SYNC,
    pack_frame,
    unpack_head,
)
from wstrace_exporters.msgpack.read.input import LocalInput
from wstrace_exporters.msgpack.read.scan import Damage, good_frames
from wstrace_exporters.msgpack.read.trace import TraceFile, open_trace

pytestmark = pytest.mark.slow


def write(path: Path, n: int = 400, rows: int = 50, **options: object) -> Path:
    """A small trace of n faults, a frame every `rows`."""
    exporter, context = started(path, **options)
    exporter.export(synthetic.mappings(context.strings, 12))
    exporter.export(synthetic.processes(context.strings))
    for batch in synthetic.faults(context.strings, n, rows=rows, n_mappings=12):
        exporter.export(batch)
        exporter.flush(1)
    exporter.export(synthetic.resident(context.strings, 5))
    context.ledger.add("recorded", n, "page_fault")
    exporter.close()
    return path


def rows_of(trace: TraceFile) -> Counter[tuple[int, ...]]:
    """Every fault as a tuple of its stored columns."""
    found = Counter()
    for batch in trace.batches("page_fault"):
        found.update(zip(*(batch[name].tolist() for name in STORED), strict=True))
    return found


def names_of(trace: TraceFile) -> set[str]:
    return {trace.strings[code] for batch in trace.batches("page_fault") for code in np.unique(batch["file"]).tolist()}


def frames_of(data: bytes) -> list[tuple[int, int, int]]:
    """(offset, length, kind) of every frame of an undamaged file."""
    found, at = [], 0
    while at < len(data):
        head = unpack_head(data, at)
        found.append((at, head.frame_len, head.kind))
        at += head.frame_len
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A whole file, its rows, and its frames."""
    path = write(tmp_path_factory.mktemp("whole") / "small.wst")
    data = path.read_bytes()
    with open_trace(str(path)) as trace:
        assert trace.clean
        rows = rows_of(trace)
    assert sum(rows.values()) == 400
    return data, rows, frames_of(data)


def read(path: Path, data: bytes, whole: Counter) -> tuple[Counter, TraceFile]:
    """The rows of damaged bytes, which must all be rows of the whole file, each as often at most."""
    path.write_bytes(data)
    trace = open_trace(str(path))
    rows = rows_of(trace)
    assert not rows - whole, "a row that was never written"
    _ = (
        trace.header,
        trace.facts,
        trace.info,
        trace.ledger,
        trace.processes,
        trace.marks,
        trace.state,
        trace.span(),
        trace.lost,
    )
    trace.close()
    return rows, trace


def rows_in(data: bytes, frames: list[tuple[int, int, int]], hit: set[int]) -> int:
    """How many faults stand in the EVENTS frames that were not hit."""
    from wstrace_exporters.msgpack.format.frames import peek_rows

    bodies = [
        peek_rows(data[at + HEAD_BYTES : at + length])
        for i, (at, length, kind) in enumerate(frames)
        if kind == EVENTS and i not in hit
    ]
    return sum(rows.n for rows in bodies if rows.stream == "page_fault")


@pytest.mark.timeout(900)
def test_every_truncation_keeps_every_whole_frame(small, tmp_path, request):
    """Every length with --long; else those about the edges and in the middle of frames."""
    data, whole, frames = small
    path = tmp_path / "cut.wst"
    header = frames[0][1]
    edges = {at + near for at, length, _ in frames for near in (-2, -1, 0, 1, 3, 11, 19, 20, 38, 39, 40, length // 2)}
    for size in range(len(data)) if request.config.getoption("--long") else sorted(edges & set(range(len(data)))):
        if size < header:
            path.write_bytes(data[:size])
            with pytest.raises(TraceFileError, match="is empty" if size == 0 else "no wstrace trace"):
                open_trace(str(path))
            continue
        rows, trace = read(path, data[:size], whole)
        kept = {i for i, (at, length, _) in enumerate(frames) if at + length <= size}
        assert sum(rows.values()) == rows_in(data, frames, set(range(len(frames))) - kept)
        assert trace.state == "cut"
        at_edge = any(at + length == size for at, length, _ in frames)
        assert (trace.damage()["tail_bytes"] == 0) == at_edge


def test_every_flipped_byte_costs_at_most_the_frame_it_is_in(small, tmp_path):
    data, whole, frames = small
    rng = random.Random(7)
    for _ in range(250):
        at = rng.randrange(len(data))
        hit = {i for i, (begin, length, _) in enumerate(frames) if begin <= at < begin + length}
        bad = bytearray(data)
        bad[at] ^= 1 << rng.randrange(8)
        rows, trace = read(tmp_path / "flip.wst", bytes(bad), whole)
        assert sum(rows.values()) == rows_in(data, frames, hit)
        last = len(frames) - 1
        assert trace.state == ("cut" if hit == {last} else "damaged") or hit <= {last, last - 1}


def test_swapped_frames_lose_nothing(small, tmp_path):
    data, whole, frames = small
    pieces = [data[at : at + length] for at, length, _ in frames]
    for i in range(1, len(pieces) - 1):
        swapped = [*pieces]
        swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
        rows, trace = read(tmp_path / "swap.wst", b"".join(swapped), whole)
        assert rows == whole
        assert trace.damage()["lost_frames"] == 0
        assert trace.damage()["reordered"] >= 1
    backwards = b"".join([pieces[0], *reversed(pieces[1:])])
    assert read(tmp_path / "back.wst", backwards, whole)[0] == whole


def test_repeated_frames_are_taken_once(small, tmp_path):
    data, whole, frames = small
    pieces = [data[at : at + length] for at, length, _ in frames]
    for i in range(len(pieces)):
        rows, trace = read(tmp_path / "twice.wst", b"".join([*pieces[: i + 1], *pieces[i:]]), whole)
        assert rows == whole
        assert trace.damage()["duplicates"] == 1


def test_missing_frames_are_counted_by_their_seq(small, tmp_path):
    data, whole, frames = small
    events = [i for i, (_, _, kind) in enumerate(frames) if kind == EVENTS]
    pieces = [data[at : at + length] for at, length, _ in frames]
    gone = set(events[2:5])
    rows, trace = read(tmp_path / "gap.wst", b"".join(p for i, p in enumerate(pieces) if i not in gone), whole)
    assert trace.damage()["lost_frames"] == 3
    assert trace.state == "damaged"
    assert sum(rows.values()) == rows_in(data, frames, gone)


@pytest.mark.parametrize("kind", [STRINGS, MAPPINGS])
def test_names_of_a_lost_table_read_lost(small, tmp_path, kind):
    data, whole, frames = small
    pieces = [data[at : at + length] for at, length, k in frames if k != kind]
    path = tmp_path / "tables.wst"
    path.write_bytes(b"".join(pieces))
    with open_trace(str(path)) as trace:
        assert rows_of(trace) == whole or kind == MAPPINGS
        assert "[lost]" in names_of(trace)
        assert not any(name.startswith("/usr/lib/lib") for name in names_of(trace))
        assert trace.damage()["lost_names"] > 0
        assert trace.state == "damaged"


def test_an_index_that_lies_is_not_believed(small, tmp_path):
    """Its frame is made good again after the change, CRC and all: only the tiling and each frame's own head tell."""
    from wstrace_exporters.msgpack.format.frames import unpack_index
    from wstrace_exporters.msgpack.format.layout import INDEX
    from wstrace_exporters.msgpack.format.values import packb

    data, whole, frames = small
    at, length, _ = next(f for f in frames if f[2] == INDEX)
    entries = unpack_index(data[at + HEAD_BYTES : at + length]).entries.tolist()
    head = unpack_head(data, at)
    lies = {
        "an entry less": entries[:5] + entries[6:],
        "an entry twice": [*entries, entries[3]],
        "another kind": [[2 if e[0] == EVENTS else e[0], *e[1:]] for e in entries],
        "another time": [[*e[:4], 1, 2] if e[0] == EVENTS else e for e in entries],
        "beyond the end": [[e[0], e[1] + len(data), *e[2:]] for e in entries],
        "none": [],
    }
    for why, lie in lies.items():
        index = pack_frame(head.file_id, INDEX, head.seq, packb({"f": lie}))
        end_at, end_len, _ = frames[-1]
        path = tmp_path / "lie.wst"
        moved = bytearray(data[:at] + index + data[at + length : end_at] + data[end_at : end_at + end_len])
        path.write_bytes(bytes(moved))
        with open_trace(str(path)) as trace:
            assert rows_of(trace) == whole, why


def test_a_file_that_is_no_trace_is_one_clear_error(tmp_path):
    others = {"text": b"hello\n" * 99, "zeros": bytes(5000), "sync": SYNC * 300, "png": b"\x89PNG\r\n\x1a\n"}
    for name, data in others.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(TraceFileError, match="is no wstrace trace file"):
            open_trace(str(path))
    with pytest.raises(TraceFileError, match="No such file"):
        open_trace(str(tmp_path / "none"))
    with pytest.raises(TraceFileError, match=r"cannot read|not a regular file"):
        open_trace(str(tmp_path))


@pytest.mark.parametrize("length", ["the rest of the file", "nothing", "more than the limit", "the next head"])
def test_two_megabytes_of_heads_are_refused_in_64_mib(tmp_path, small, length):
    """Where each head announces the rest of the file, checking every one would checksum 25 GB."""
    data, _, frames = small
    file_id = data[11:19]
    heads = bytearray(data[: frames[0][1]])
    total = 2 << 20
    count = (total - len(heads)) // HEAD_BYTES
    for i in range(count):
        left = (count - i - 1) * HEAD_BYTES
        rest = {"the rest of the file": left, "nothing": 0, "the next head": 39}.get(length, 1 << 31)
        start = pack_frame(file_id, EVENTS, i, b"")[:29]
        heads += start + b"\xce" + rest.to_bytes(4, "big") + b"\xce" + bytes(4)
    path = tmp_path / "heads.wst"
    path.write_bytes(bytes(heads))
    source, damage, read = LocalInput(str(path)), Damage(), list[int]()
    source.read = lambda at, n, whole=source.read: read.append(n) or whole(at, n)
    tracemalloc.start()
    assert len(list(good_frames(source, damage))) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    source.close()
    assert peak < 64 << 20
    assert damage.lost_bytes > total - 10_000
    assert sum(read) <= 2 * LIMITS.scan_ratio * len(heads) + LIMITS.large_body


def test_names_and_ids_past_the_limits_are_bad_frames_not_memory(tmp_path, small):
    from wstrace_exporters.msgpack.format.frames import pack_strings
    from wstrace_exporters.msgpack.format.values import packb

    data, whole, frames = small
    file_id, seq = data[11:19], len(frames)
    end = sum(length for _, length, kind in frames if kind not in (6, 7))
    hostile = [
        (STRINGS, packb({"n": 2**32 - 5, "c": {}, "s": ["x"] * 3})),
        (STRINGS, packb({"s": ["x"]})),
        (STRINGS, pack_strings(np.array([100]), ["x" * 70_000])),
        (STRINGS, pack_strings(np.arange(1, 6), ["other"] * 5)),  # the first that gave an id is believed
        (MAPPINGS, packb({"n": 5, "c": {}})),
        (200 - 128, packb({"what": "an application's own"})),
        (STRINGS, b"\x80" + b"\x80"),
    ]
    extra = b"".join(pack_frame(file_id, kind, seq + i, body) for i, (kind, body) in enumerate(hostile))
    path = tmp_path / "hostile.wst"
    path.write_bytes(data[:end] + extra)
    with open_trace(str(path)) as trace:
        assert rows_of(trace) == whole
        assert trace.damage()["bad_frames"] == 5
        assert any(name.startswith("/usr/lib/lib") for name in names_of(trace))
        assert "other" not in names_of(trace)
