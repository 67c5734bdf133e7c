"""Files that a stranger made: every frame is whole by its CRC, and what it says is odd."""

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.command_line import in_process

from wstrace.schema import DTYPES
from wstrace_exporters.msgpack.format import columns as col
from wstrace_exporters.msgpack.format.columns import zstd
from wstrace_exporters.msgpack.format.layout import END, EVENTS, HEADER, MAPPINGS, MARK, STRINGS, pack_frame
from wstrace_exporters.msgpack.format.values import packb

FILE_ID = b"ABCDEFGH"


def write(path: Path, bodies: list[tuple[int, Any]], file_id: bytes = FILE_ID) -> str:
    """A file of those frames, in the order given."""
    frames = [
        pack_frame(file_id, kind, n, b if isinstance(b, bytes) else packb(b)) for n, (kind, b) in enumerate(bodies)
    ]
    path.write_bytes(b"".join(frames))
    return str(path)


def header(**fields: Any) -> tuple[int, Any]:
    return HEADER, {"v": [2, 0], "need": [], "id": FILE_ID, "part": 0, "prev": None, "created_ns": 1, "boot_id": "x",
                    "clock": {"name": "c", "realtime_offset_ns": 0}, "page_size": 4096, "host": {"name": "h"},
                    "writer": "w", "command": ["c"], "schema": {}, **fields}  # fmt: skip


def events(stream: str, n: int, columns: dict[str, Any], t: tuple[int, int] = (1, 2)) -> tuple[int, Any]:
    packed = {name: col.encode(array) if isinstance(array, np.ndarray) else array for name, array in columns.items()}
    return EVENTS, {"s": stream, "n": n, "t": list(t), "lost": 0, "c": packed}


def faults(**more: Any) -> tuple[int, Any]:
    """Two faults as every writer gives them."""
    two = {"time_ns": np.array([1, 2], "<u8"), "pid": np.array([7, 7], "<u4"), "tid": np.array([7, 7], "<u4"),
           "pc": np.array([5, 6], "<u8"), "va": np.array([5, 6], "<u8"), "flags": np.zeros(2, "|u1")}  # fmt: skip
    return events("page_fault", 2, {**two, **more})


def wstrace(*words: object) -> tuple[int, str]:
    """A command in this process: its exit code, and all that it said."""
    code, out, err = in_process(*words)
    return code, out + err


def commands(path: str, folder: Path) -> list[list[str]]:
    """What a user does with a file that he was sent."""
    return [
        ["info", path],
        ["info", "--json", path],
        ["report", path],
        ["report", path, "--json"],
        ["report", path, "--start", "0.1", "--end", "5"],
        ["report", path, "--over-time", "1s"],
        ["convert", path, "-f", "-o", str(folder / "recovered.wst")],
        ["convert", path, path, "-f", "-o", str(folder / "merged.wst")],
        ["convert", path, "-e", f"msgpack:path={folder / 'replayed.wst'},force=true"],
        ["convert", path, "-f", "-o", str(folder / "x.csv"), "--start", "0.1"],
        *([["query", path, "select count(*) from page_fault"]] if importlib.util.find_spec("duckdb") else []),
    ]


def assert_held(path: str, folder: Path) -> None:
    for words in commands(path, folder):
        code, said = wstrace(*words)
        for word in ("internal error", "Traceback", "KeyError", "Error:", "exporter"):
            assert word not in said, (words, said[-2000:])
        assert code in (0, 121, 123), (words, code, said)


def clash(n: int) -> tuple[int, Any]:
    ids = np.array([1, 0xFFFF_FFFF], "<u4")
    table = {"id": ids, "time_ns": np.full(2, n, "<u8"), "start": np.arange(2, dtype="<u8") * 4096 + n}
    return MAPPINGS, {"n": 2, "c": {name: col.encode(array) for name, array in table.items()}}


def end(*bodies: tuple[int, Any], **fields: Any) -> list[tuple[int, Any]]:
    """Those frames, and the end of a clean trace."""
    return [*bodies, (END, {"index": [], "frames": len(bodies) + 1, "rows": {}, "ledger": {}, "clean": True, **fields})]


FILES: dict[str, list[tuple[int, Any]]] = {
    "S11 a mark whose kind is a list": [
        header(), (MARK, {"m": [1], "t": 1}), (MARK, {"m": {"a": 1}, "t": 1}), faults()
    ],
    "S11 a mark's text is no UTF-8": [
        header(boot_id="\udcff", host={"name": "\udcff", "\udcfe": 1}, writer="\udcff"),
        (MARK, b"\x83\xa1m\xa5other\xa1t\x01\xa4text\xa2\xff\x1b"),
        (MARK, b"\x83\xa1m\xa5other\xa1t\x01\xa2\xff\xfe\xa2\xff\x1b"),
        (EVENTS, b"\x84\xa1s\xa2\xff\xfe\xa1n\x01\xa1t\x92\x01\x01\xa1c\x81\xa1a"
         + packb(col.encode(np.ones(1, "<u4")))),
        faults(),
    ],
    "S18 a clock near 2**64": [
        header(),
        (MARK, {"m": "clock", "t": 1, "monotonic": (1 << 64) - 1, "realtime": (1 << 64) - 1}),
        events("page_fault", 2, {"time_ns": np.array([1, (1 << 64) - 1], "<u8"), "va": np.ones(2, "<u8")},
               (1, (1 << 64) - 1)),
        faults(time_ns=np.array([1, (1 << 64) - 1], "<u8")),
    ],
    "S18 a negative clock": [header(), (MARK, {"m": "clock", "t": 1, "monotonic": -(1 << 63)}), faults()],
    "S19 faults without flags": [header(), events("page_fault", 2, {"va": np.array([5, 6], "<u8")}), faults()],
    "S19 processes and pages without what makes them": [
        header(),
        events("process", 2, {"time_ns": np.ones(2, "<u8")}),
        (4, {"s": "resident", "snap": 1, "part": 0, "last": True, "pid": 7, "t": 1, "n": 1, "c": {}}),
        (4, {"s": "written", "snap": [], "pid": {}, "n": 0, "c": {}}),
        (4, {"s": "resident", "snap": "x", "part": "y", "last": "z", "pid": "q", "t": "w", "pages": "p", "n": 1,
             "c": {"start": col.encode(np.ones(1, "<u8")), "pages": col.encode(np.ones(1, "<u4"))}}),
        faults(),
    ],
    "ends of processes without a pid": [
        header(), faults(),
        events("process", 1, {"time_ns": np.ones(1, "<u8"), "tid": np.ones(1, "<u4"), "event": np.ones(1, "|u1")}),
    ],
    **{f"an index at {at:#x}": end(header(), faults(), rows={"page_fault": 2}, index=[at])
       for at in ((1 << 63) - 1, 1 << 63, (1 << 64) - 1)},
    "rows of a stream without columns": [header(), faults(), events("\x1b[2J", 3, {})],
    **{f"S19 header {field}": [header(**{field: value}), faults()] for field, value in {
        "page_size": 0, "created_ns": (1 << 64) - 1, "boot_id": "\x1b[2J", "part": 1 << 63,
        "clock": {"realtime_offset_ns": "x"}, "clock ": {"realtime_offset_ns": 1 << 63},
        "host": {"name": ["\x1b[2J"], "system": {"a": 1}}, "command": ["\x1b]0;x\x07"],
        "schema": {"page_fault": [["va", "u8", "str"]], "x": [["a", "f64", "count"], ["b", "u8", "map"]]},
    }.items()},
    **{f"S19 facts {facts}": [header(), (MARK, {"m": "facts", "t": 1, "facts": facts}), faults()] for facts in (
        {"exit_code": "x\x1b[31m"}, {"peak_resident_bytes": "zz"}, {"usage": 5}, {"counted": [1]}, {"level": {"a": 1}},
        {"command": 5}, {"usage_minor": {}, "page_size": [], "started_ns": "x", "not_visible": 7, "sampled": "s"},
    )},
}  # fmt: skip
FILES = {name: [(kind, {key.strip(): value for key, value in body.items()} if isinstance(body, dict) else body)
                for kind, body in frames] for name, frames in FILES.items()}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_odd_frames_is_read_as_far_as_it_can_be(tmp_path, name):
    assert_held(write(tmp_path / "x.wst", FILES[name]), tmp_path)


def test_faults_without_columns_that_are_always_there_are_in_every_report(tmp_path):
    space = {"id": np.ones(1, "<u4"), "time_ns": np.ones(1, "<u8"), "pid": np.full(1, 7, "<u4"),
             "start": np.full(1, START, "<u8"), "end": np.full(1, START + 4096, "<u8"), "file": np.ones(1, "<u4"),
             "flags": np.full(1, 1 | 1 << 8, "<u2")}  # fmt: skip
    mapped = MAPPINGS, {"n": 1, "c": {name: col.encode(array) for name, array in space.items()}}
    rows = {"time_ns": np.ones(2, "<u8"), "pid": np.full(2, 7, "<u4"), "mapping": np.ones(2, "<u4"),
            "native_stack": np.ones(2, "<u4"), "weight": np.ones(2, "<u4")}  # fmt: skip
    path = write(tmp_path / "x.wst", [header(), strings(1, "/p/x"), mapped, events("page_fault", 2, rows)])
    for by in ("section", "function", "stack"):
        code, said = wstrace("report", path, "--by", by)
        assert code == 0, said


def test_ids_of_two_sessions_that_do_not_fit_behind_each_other_are_refused_in_a_line(tmp_path):
    rows = {"va": np.array([5, 6], "<u8"), "mapping": np.array([1, 0xFFFF_FFFF], "<u4")}
    paths = [
        write(tmp_path / f"{n}.wst", [header(id=file_id, created_ns=n + 1), clash(5 + n), faults(**rows)], file_id)
        for n, file_id in enumerate((b"ABCDEFGH", b"BCDEFGHI"))
    ]
    for words in (["info", *paths], ["report", *paths], ["convert", *paths, "-o", tmp_path / "m.wst"]):
        code, said = wstrace(*words)
        assert (code, said.count("\n")) == (125, 1)
        assert "do not fit behind those of the sessions before" in said
    assert json.loads(wstrace("info", "--json", paths[1])[1])["mappings"] == 2


def test_a_part_that_names_too_many_mapped_files_is_refused_in_a_line(tmp_path):
    ids = np.arange(1, (1 << 16) + 2, dtype="<u4")
    n, starts = len(ids), START + ids.astype("<u8") * np.uint64(8192)
    space = {"id": ids, "file": ids, "time_ns": np.ones(n, "<u8"), "pid": np.full(n, 100, "<u4"),
             "start": starts, "end": starts + np.uint64(4096), "flags": np.full(n, 1 | 1 << 8, "<u2")}  # fmt: skip
    mapped = MAPPINGS, {"n": n, "c": {name: col.encode(array) for name, array in space.items()}}
    path = write(tmp_path / "x.wst", [header(), strings(1, *(f"/p/{one}" for one in ids.tolist())), mapped])
    for words in (["info", path], ["report", path]):
        assert wstrace(*words) == (125, f"wstrace: {path}: it names 65,537 files, and at most 65,536 are read; "
                                        "record in shorter parts: rotate_bytes=64MiB\n")  # fmt: skip


N = 1 << 20


@functools.cache
def constant(kind: str, value: int, n: int = N) -> list[Any]:
    """A column of one value: a few dozen bytes for a million rows."""
    array = np.full(n, value, DTYPES[kind])
    return [kind, [], "zstd", array.nbytes, zstd().compress(array.tobytes(), 3)]


def ascending(kind: str, first: int, step: int = 1, n: int = N) -> list[Any]:
    """A column first, first + step, ...: no two values alike, and no larger."""
    return [kind, [["delta", first]], *constant(kind, step, n)[2:]]


def strings(first: int, *names: str) -> tuple[int, Any]:
    ids = np.arange(first, first + len(names), dtype="<u4")
    return STRINGS, {"n": len(names), "c": {"id": col.encode(ids, delta=True)}, "s": list(names)}


def grown(what: str, frames: int) -> list[tuple[int, Any]]:
    """A file that gives millions of distinct processes, mappings or names."""
    bodies = [header(), strings(1, "name", "/usr/lib/libc.so.6")]
    for i in range(frames):
        first = i * N + 1
        if what == "processes":
            columns = {"time_ns": ascending("u64", first), "event": constant("u8", 1), "pid": ascending("u32", first),
                       "tid": ascending("u32", first), "ppid": constant("u32", 1),
                       "name": constant("u32", 1)}  # fmt: skip
            bodies.append(events("process", N, columns))
        elif what == "mappings":
            columns = {"id": ascending("u32", first), "start": ascending("u64", first * 4096, 4096),
                       "end": ascending("u64", first * 4096 + 4096, 4096), "file": constant("u32", 2)}  # fmt: skip
            bodies.append((MAPPINGS, {"n": N, "c": columns}))
        else:
            names = [f"{i:x}.{n:x}" for n in range(120_000)]
            bodies.append(strings(3 + i * len(names), *names))
    return [*bodies, faults()]


COST = """
import resource, sys
from wstrace.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(f"cost {code} {used.ru_utime + used.ru_stime} {int(status['VmHWM'].split()[0]) // 1024}", file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only on Linux: VmHWM, since ru_maxrss begins with the peak of who started it"
)
@pytest.mark.parametrize(("what", "frames"), [("processes", 20), ("mappings", 20), ("names", 9)])
@pytest.mark.parametrize("command", ["info", "report"])
def test_what_a_file_makes_grow_stays_in_bounds(tmp_path, what, frames, command):
    path = write(tmp_path / "x.wst", grown(what, frames))
    done = subprocess.run([sys.executable, "-c", COST, command, path], capture_output=True, text=True, timeout=100)
    code, seconds, mib = next(line.split()[1:] for line in done.stderr.splitlines() if line.startswith("cost "))
    print(f"{command} of {frames} frames of {what}, {Path(path).stat().st_size:,} B: {seconds} s, {mib} MiB")
    assert int(mib) < 256
    if what == "processes":
        assert code == "125", done.stderr
        assert done.stderr.startswith(f"wstrace: {path}: it names more than 393,216 processes")
    else:
        assert code == "0", done.stderr
        assert "bad frames" in done.stdout or command == "report", done.stdout[:500]


CHAIN, FORKS, PAGES = 20_000, 60_000, 1 << 16
START, BYTES = 0x1000_0000, PAGES * 4096


def snapshot(pid: int, pages: int, runs: int = 1, number: int = 0) -> tuple[int, Any]:
    columns = {"start": START + (np.arange(runs, dtype="<u8") << np.uint64(34)), "pages": np.full(runs, pages, "<u4"),
               "flags": np.full(runs, 3, "<u2"), "mapping": np.ones(runs, "<u4")}  # fmt: skip
    packed = {name: col.encode(array) for name, array in columns.items()}
    return 4, {"s": "resident", "snap": number, "part": 0, "last": True, "pid": pid, "t": 10**9 + number,
               "pages": pages * runs, "n": runs, "c": packed}  # fmt: skip


def forked(parents: np.ndarray) -> list[tuple[int, Any]]:
    """As many children as parents are given, all of them after a fault on each of the pages."""
    n = len(parents)
    pids, times = np.arange(1000, 1000 + n, dtype="<u4"), np.arange(10**6, 10**6 + n, dtype="<u8")
    process = {"time_ns": times, "pid": pids, "ppid": parents, "tid": pids, "event": np.full(n, 2, "|u1"),
               "name": np.full(n, 1, "<u4")}  # fmt: skip
    lost = {"time_ns": times, "pid": pids, "event": np.full(n, 6, "|u1"), "start": np.zeros(n, "<u8"),
            "end": np.full(n, (1 << 64) - 1, "<u8"), "to": np.zeros(n, "<u8"), "other": parents}  # fmt: skip
    later = touched(n, pid=pids, tid=pids, time_ns=times + np.uint64(10**6))
    return [touched(PAGES), events("process", n, process), events("content_loss", n, lost), later]


def touched(n: int, **more: np.ndarray) -> tuple[int, Any]:
    """Writes to n pages, one after the other, by process 100."""
    every = {"time_ns": np.arange(1000, 1000 + n, dtype="<u8"), "pid": np.full(n, 100, "<u4"),
             "tid": np.full(n, 100, "<u4"), "pc": np.full(n, 1, "<u8"), "mapping": np.ones(n, "<u4"),
             "va": START + np.arange(n, dtype="<u8") * np.uint64(4096), "flags": np.full(n, 20, "|u1")}  # fmt: skip
    return events("page_fault", n, every | more)


def bomb(what: str) -> list[tuple[int, Any]]:
    """A small file that took gigabytes, or minutes."""
    space = {"id": np.ones(1, "<u4"), "time_ns": np.ones(1, "<u8"), "pid": np.full(1, 100, "<u4"),
             "start": np.full(1, START, "<u8"), "end": np.full(1, 1 << 46, "<u8"), "file": np.full(1, 2, "<u4"),
             "flags": np.full(1, 3 | 3 << 8, "<u2")}  # fmt: skip
    mapped = MAPPINGS, {"n": 1, "c": {name: col.encode(array) for name, array in space.items()}}
    long = "/" + "b" * 60_000
    first = [header(), strings(1, long if what == "names" else "name", "[heap]"), mapped]
    if what in ("stacks", "names"):
        ids = np.arange(1, (CHAIN if what == "stacks" else 200) + 1, dtype="<u4")
        site = {"id": ids, "parent": ids - 1, **{name: np.ones(len(ids), kind) for name, kind in (
            ("kind", "|u1"), ("mapping", "<u4"), ("offset", "<u8"), ("function", "<u4"), ("file", "<u4"))},
            "line": ids, "flags": np.zeros(len(ids), "|u1")}  # fmt: skip
        stacks = {"stack": ids, "stack_how": np.ones(len(ids), "|u1")}
        return [*first, events("call_site", len(ids), site), touched(len(ids), **stacks), snapshot(100, len(ids))]
    if what == "threads":
        threads = np.arange(1000, 1000 + PAGES, dtype="<u4")
        return [*first, *(touched(PAGES, tid=threads + np.uint32(n * PAGES)) for n in range(15))]
    if what == "snapshots":
        return [*first, touched(PAGES), *(snapshot(100, 1, 64, n) for n in range(3000))]
    if what == "pages":
        return [*first, touched(1000), snapshot(100, 1 << 20, 64)]
    ids = np.arange(1000, 1000 + FORKS, dtype="<u4")
    parents = np.where(ids == 1000, 100, ids - 1) if what == "chain of forks" else np.full(FORKS, 100)
    return [*first, *forked(parents.astype("<u4")), snapshot(100 if what == "forks" else 999 + FORKS, PAGES)]


def test_a_query_that_a_file_refuses_is_a_line_in_the_words_of_the_refusal(tmp_path):
    pytest.importorskip("duckdb")
    path = write(tmp_path / "x.wst", bomb("pages"))
    code, said = wstrace("query", path, "select count(*) from pages")
    assert (code, said.count("\n"), "Error" in said) == (125, 1, False), said
    assert "resident pages, more than the" in said


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: VmHWM")
@pytest.mark.parametrize("what", ["stacks", "names", "pages", "threads", "snapshots", "forks", "chain of forks"])
def test_a_small_file_is_answered_in_five_seconds_and_512_mib_by_every_command(tmp_path, what):
    path = write(tmp_path / "x.wst", bomb(what))
    outputs = [["convert", path, "-o", tmp_path / f"o.{one}"] for one in ("wst", "csv", "folded", "pb.gz", "pftrace")]
    by = ("line", "stack", "process,line", "thread,line")
    for words in (["info", path], *(["report", path, "--by", one] for one in by), ["report", path, "--over-time", "1s"],
                  ["report", path, "--html", tmp_path / "r.html"], ["unshared", path], ["imports", path],
                  ["diff", path, path], ["query", path, "select count(*) from pages"], *outputs):  # fmt: skip
        done = subprocess.run([sys.executable, "-c", COST, *words], capture_output=True, text=True)
        said = done.stderr.splitlines()
        code, seconds, mib = next(line.split()[1:] for line in said if line.startswith("cost "))
        assert code in ("0", "125"), (words, done.stderr)
        assert code == "0" or len(said) == 2, (words, "refused in one line", said)
        assert float(seconds) < 5, (words, seconds)
        assert int(mib) < 512, (words, mib)


@pytest.mark.parametrize("size", [1, 3, 2048, 1 << 31, 1 << 63])
def test_pages_of_a_size_that_no_machine_has_are_refused(tmp_path, size):
    path = write(tmp_path / "x.wst", [header(page_size=size), faults()])
    for words in commands(path, tmp_path):
        code, said = wstrace(*words)
        assert (code, said.count("\n"), "as on no machine" in said) == (125, 1, True), (words, said)


@pytest.mark.skipif(sys.platform == "win32", reason="no file may have such a name there")
@pytest.mark.parametrize(
    "command",
    [
        ["convert", "{path}", "-o", "{other}.wst"],
        ["convert", "{path}", "-o", "{other}.csv"],
        ["report", "{path}", "--html", "{other}.html"],
    ],
    ids=lambda command: command[0],
)
def test_the_name_of_a_file_cannot_write_to_the_terminal(tmp_path, command):
    path = write(tmp_path / "evil\n\x1b[2J.wst", [header(), faults()])
    code, said = wstrace(*(word.format(path=path, other=tmp_path / "other\n\x1b[2J") for word in command))
    assert code == 0, said
    assert said.count("\n") == 1, said
    assert "other\\x0a\\x1b[2J" in said
    assert "\x1b" not in said
