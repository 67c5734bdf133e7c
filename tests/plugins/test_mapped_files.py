"""The enricher `mapped_files` and the question `mapped_file()`: late rows, what lay where and when; by a model too."""

import ctypes
import gc
import mmap
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wstrace
from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.errors import TargetExited
from wstrace.interfaces import Context
from wstrace.schema import (
    ADDRESS_SPACE,
    DTYPES,
    KIND_FILE,
    KIND_KERNEL,
    KIND_SHIFT,
    MAPPING,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    RESIDENT_PAGES,
    SPACE_MAP,
    SPACE_REPLACE,
    SPACE_UNMAP,
)
from wstrace.testing import EnricherContract, batch_of
from wstrace_plugins.mapped_files.enricher import MappedFiles

SECOND = 1_000_000_000


class TestContract(EnricherContract):
    def make(self) -> MappedFiles:
        return MappedFiles()

    def batch(self) -> Batch:
        return batch_of(PAGE_FAULT, time_ns=[5, 6], pid=[1, 2], tid=1, pc=2**63, va=[0x1000, 0x2000], flags=0)


def test_exec_begins_anew_and_its_first_faults_are_named_late(drive):
    shown = drive()
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/old"))
    shown.process(PROCESS_EXEC, SECOND)
    shown.space(SPACE_MAP, SECOND + 100, (0x1000, 0x2000, "/new"))
    shown.space(SPACE_MAP, 3 * SECOND, (0x8000, 0x9000, "/later"))
    times = 20, SECOND + 50, SECOND + 100, SECOND + 50, 2 * SECOND, 3 * SECOND
    faults = list(zip(times, [0x1000] * 3 + [0x8000] * 3, strict=True))
    assert shown.fault(*faults) == ["/old", "/new", "/new", "", "", "/later"]
    assert shown.context.ledger.get("unresolved", "va") == shown.context.ledger.get("unresolved", "pc") == 2


def test_rows_of_a_second_source_that_come_late_fill_in_what_was_before(drive):
    shown = drive()
    shown.listing(100, (0x1000, 0x2000, "/now"))
    assert shown.fault((110, 0x1000)) == ["/now"]
    shown.space(SPACE_MAP, 50, (0x1000, 0x2000, "/then"), (0x6000, 0x7000, "/gone"))
    shown.space(SPACE_MAP, 60, (0x1000, 0x2000, "/now"))
    assert shown.fault((55, 0x1000), (55, 0x6000), (110, 0x6000), (110, 0x1000)) == ["/then", "/gone", "", "/now"]


def test_rows_from_before_a_listing_that_came_first(drive):
    """The final snapshot lists a short process before the rows of its last 100 ms have come."""
    shown = drive()
    shown.listing(100, (0x1000, 0x9000, "/a"))
    assert shown.fault((110, 0x1000)) == ["/a"]
    for time, *row in ((10, 0x1000, 0x9000, "/a"), (20, 0x2000, 0x3000, "/b"), (30, 0x1000, 0x9000, "/a"),
                       (40, 0x4000, 0x5000, "/b")):  # fmt: skip
        shown.space(SPACE_MAP, time, tuple(row))
    shown.process(PROCESS_FORK, 50, pid=8, ppid=7)
    pages = range(0x1000, 0x6000, 0x1000)
    assert shown.fault(*((25, page) for page in pages)) == ["/a", "/b", "/a", "/a", "/a"]
    assert shown.fault(*((60, page) for page in pages), pid=8) == ["/a", "/a", "/a", "/b", "/a"]
    assert shown.fault(*((120, page) for page in pages)) == ["/a"] * 5


def test_the_kernel_has_a_mapping_of_its_own(drive):
    shown = drive()
    batch = batch_of(
        PAGE_FAULT, shown.context.strings, time_ns=5, pid=7, tid=7, pc=0xFFFF_FFFF_8100_0000, va=0x10, flags=2
    )
    (out,) = shown.give(batch)
    assert shown.context.strings[int(out["pc_file"][0])] == "[kernel]"
    assert shown.mappings[0]["id"] == out["pc_mapping"][0] == 1
    assert shown.mappings[0]["flags"] >> KIND_SHIFT == KIND_KERNEL
    assert shown.context.ledger.get("unresolved", "pc") == 0


def test_a_replay_knows_better(drive):
    shown = drive()
    batch = batch_of(PAGE_FAULT, shown.context.strings, time_ns=5, pid=7, va=0x1000, mapping=9)
    assert shown.give(batch) == [batch]


def test_close_gives_what_no_record_has_needed(drive):
    shown = drive()
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    (batch,) = shown.enricher.close()
    assert [shown.context.strings[code] for code in batch["file"].tolist()] == ["[kernel]", "/a"]
    assert list(shown.enricher.close()) == []


def snapshot(shown: Any, time_ns: int, source: str = "") -> None:
    pages = batch_of(RESIDENT_PAGES, shown.context.strings, start=0x8000, pages=1, flags=0, shares=1)
    columns = {name: pages[name] for name in pages}
    part, window = SnapshotPart(pid=7, time_ns=time_ns), (time_ns, time_ns)
    shown.give(Batch(RESIDENT_PAGES, columns, window=window, source=source, strings=pages.strings, snapshot=part))


def test_a_fork_waits_for_the_mappings_of_its_time_when_another_source_comes_between(drive):
    """A source gives its process rows, then its address_space rows; the final snapshot is another source's."""
    shown = drive()
    shown.process(PROCESS_EXEC, 10)
    shown.process(PROCESS_FORK, 30, pid=8, ppid=7)
    snapshot(shown, 50, "other")
    shown.space(SPACE_MAP, 20, (0x1000, 0x2000, "/a"))
    assert shown.fault((40, 0x1000)) == ["/a"]
    assert shown.fault((40, 0x1000), pid=8) == ["/a"]


def test_what_ended_is_known_until_the_faults_themselves_have_passed_it(drive):
    """After a pause of the tracer, one window of seconds comes in many batches, and a snapshot may be ahead of it."""
    shown = drive()
    shown.process(PROCESS_FORK, 5, pid=8, ppid=7)
    shown.process(PROCESS_EXIT, SECOND, pid=8)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"), pid=8)
    for time in (20, SECOND // 2):
        faults = batch_of(PAGE_FAULT, shown.context.strings, time_ns=time, pid=8, tid=8, pc=0x1000, va=0x1000, flags=0)
        columns = {name: faults[name] for name in faults}
        (out,) = shown.give(Batch(PAGE_FAULT, columns, window=(0, 9 * SECOND), strings=faults.strings))
        assert [shown.context.strings[code] for code in out["file"].tolist()] == ["/a"]
        snapshot(shown, 9 * SECOND)


def test_what_ended_is_known_while_a_record_of_then_is_held(drive):
    """Samples of stacks are looked up after the faults of the same read of the rings, which may span many seconds."""
    shown = drive()
    shown.process(PROCESS_FORK, 5, pid=8, ppid=7)
    shown.process(PROCESS_EXIT, SECOND, pid=8)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"), pid=8)
    of_then = np.array([8], "<u4"), np.array([0x1000], "<u8"), np.array([SECOND - 1], "<u8")
    for held, known in ((SECOND, True), (50 * SECOND, False)):
        shown.context.progress.held_since = held
        shown.fault((50 * SECOND, 0x5000))
        assert bool(shown.context.mappings_at(*of_then)[0]) is known


def test_what_ended_before_a_snapshot_is_known_to_the_first_faults_that_come_behind_it(drive):
    """A tracer that reads its rings for the first time after ten seconds, in which others looked at the memory."""
    shown = drive()
    snapshot(shown, 9 * SECOND)
    shown.process(PROCESS_FORK, 5, pid=8, ppid=7)
    shown.process(PROCESS_EXIT, SECOND, pid=8)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"), pid=8)
    for time in (20, SECOND // 2):
        assert shown.fault((time, 0x1000), pid=8) == ["/a"]


FILE = KIND_FILE << KIND_SHIFT


class Half:
    """A fake backend: answers with what it was given, and counts the questions."""

    def __init__(self, *rows: tuple[int, int, str]) -> None:
        self.rows, self.wanted = rows, 0

    def listing(self, pid: int, strings: Any) -> dict[str, Any] | None:
        self.wanted += 1
        if not self.rows:
            return None
        start, end, files = zip(*self.rows, strict=True)
        return {"start": np.array(start, "u8"), "end": np.array(end, "u8"), "offset": np.zeros(len(start), "u8"),
                "file": np.array([strings.code(file) for file in files], "u4"),
                "flags": np.full(len(start), FILE, "u2")}  # fmt: skip


def test_an_uncovered_address_is_requested(drive):
    backend = Half((0x1000, 0x2000, "/a"), (0x7000, 0x9000, "/moved"))
    shown = drive(backend)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    assert shown.fault((20, 0x7000), (30, 0x8000), (30, 0xF000)) == ["/moved", "/moved", ""]
    assert shown.fault((40, 0x7000)) == ["/moved"]
    assert backend.wanted == 1  # and its answer is kept
    assert shown.context.ledger.get("unresolved", "va") == 1


def test_an_answer_of_another_image_is_not_believed(drive):
    shown = drive(Half((0x40_0000, 0x40_1000, "/another"), (0x7000, 0x9000, "/moved")))
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    assert shown.fault((20, 0x7000)) == [""]


def test_a_process_that_has_ended_meanwhile_answers_nothing(drive):
    """A zombie's maps are an empty file."""
    backend = Half((0x1000, 0x2000, "/a"))
    shown = drive(backend)
    shown.process(PROCESS_FORK, 10, pid=8, ppid=99)
    listings = []
    nothing = {"start": np.zeros(0, "u8"), "end": np.zeros(0, "u8"), "file": np.zeros(0, "u4")}
    backend.listing = lambda pid, _: listings.append(pid) or nothing
    assert shown.fault((20, 0x1000), pid=8) == [""]
    shown.process(PROCESS_EXIT, 30, pid=8)  # and its number may be another's now
    assert shown.fault((20, 0x1000), pid=8) == [""]
    assert listings == [8]


def test_a_trace_without_targets_asks_nothing(drive):
    """Its pids are those of another time or machine."""
    backend = Half((0x1000, 0x2000, "/a"))
    enricher = MappedFiles()
    enricher.system = backend
    enricher.start(Context())
    context = drive().context
    list(enricher.enrich(batch_of(PROCESS, context.strings, time_ns=1, pid=7, ppid=1, tid=7, event=PROCESS_FORK)))
    list(enricher.enrich(batch_of(PAGE_FAULT, context.strings, time_ns=2, pid=7, tid=7, pc=0, va=0x1000)))
    assert backend.wanted == 0


def test_nothing_is_read_of_the_past_or_of_strangers(drive):
    backend = Half((0x1000, 0x2000, "/a"))
    shown = drive(backend)
    assert shown.fault((5, 0x1000), pid=99) == [""]  # no row ever named that process
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    shown.space(SPACE_UNMAP, 20, (0x1000, 0x2000, ""))
    shown.space(SPACE_MAP, 30, (0x1000, 0x2000, "/b"))
    assert shown.fault((25, 0x1000)) == [""]  # what lay there then is gone
    shown.process(PROCESS_EXEC, 40)
    assert shown.fault((15, 0x5000)) == [""]  # an image that is gone
    assert backend.wanted == 0


def test_after_lost_rows_a_process_is_unknown_until_it_is_listed(drive):
    backend = Half((0x1000, 0x2000, "/a"))
    shown = drive(backend)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    shown.space(SPACE_UNMAP, 20, (0, 2**64 - 1, ""))
    assert shown.fault((15, 0x1000), (25, 0x1000)) == ["/a", ""]
    assert backend.wanted == 0
    shown.listing(30, (0x1000, 0x2000, "/a"))
    assert shown.fault((25, 0x1000), (35, 0x1000)) == ["", "/a"]


def execs(shown: Any, first: int, last: int, files: int = 7) -> None:
    """Processes that live a millisecond: fork, exec, 30 mappings at places of their own, a fault, exit."""
    start = 0x7F00_0000_0000 + np.arange(30, dtype="u8") * 0x10_0000
    n = len(start)
    for number in range(first, last):
        now, pid, at = (number + 1) * 10_000_000, 100 + number % 30_000, start + np.uint64(number % 5000 * 4096)
        rows = {"time_ns": np.array([now, now + 1, now + 900_000], "u8"), "pid": np.full(3, pid, "u4"),
                "ppid": np.ones(3, "u4"),
                "event": np.array([PROCESS_FORK, PROCESS_EXEC, PROCESS_EXIT], "u1")}  # fmt: skip
        space = {"time_ns": np.full(n, now + 10, "u8"), "pid": np.full(n, pid, "u4"), "start": at,
                 "end": at + np.uint64(8192), "event": np.full(n, SPACE_MAP, "u1"),
                 "file": np.full(n, shown.context.strings.code(f"/{number % files}"), "u4"),
                 "flags": np.full(n, FILE, "u2")}  # fmt: skip
        fault = {"time_ns": np.array([now + 20], "u8"), "pid": np.array([pid], "u4"), "va": at[:1]}
        for schema, columns in ((PROCESS, rows), (ADDRESS_SPACE, space), (PAGE_FAULT, fault)):
            for out in shown.enricher.enrich(
                Batch(schema, columns, window=(now, now + 20), strings=shown.context.strings)
            ):
                if schema is PAGE_FAULT and out.schema is MAPPING:
                    assert out["id"][-1] == 30 * (number + 1) + 1


@pytest.mark.slow
def test_memory_is_flat_over_many_execs(drive):
    shown = drive()
    execs(shown, 0, 400)
    gc.collect()
    tracemalloc.start()
    try:
        execs(shown, 400, 1000)
        gc.collect()
        # all that was held after the first ones is gone: the processes of the last two seconds are held
        assert tracemalloc.get_traced_memory()[0] < 6 << 20
    finally:
        tracemalloc.stop()
    assert shown.context.ledger.get("unresolved") == 0


PAGE = 4096
FILES = ("/a", "/b", "/c")


@dataclass
class Model:
    """What each page of each process holds now: page -> (file, offset of the mapping at address 0)."""

    pages: dict[int, dict[int, tuple[str, int]]] = field(default_factory=dict)

    def map(self, pid: int, first: int, n: int, file: str, offset: int) -> None:
        table = self.pages.setdefault(pid, {})
        table.update(dict.fromkeys(range(first, first + n), (file, offset - first * PAGE)))

    def unmap(self, pid: int, first: int, n: int) -> None:
        for page in range(first, first + n):
            self.pages.setdefault(pid, {}).pop(page, None)


def batch(schema, strings: Dictionary, rows: list[dict]) -> Batch:
    columns = {
        c.name: np.array([row[c.name] for row in rows], DTYPES[c.type])
        for c in schema.columns
        if rows and c.name in rows[0]
    }
    times = [row["time_ns"] for row in rows]
    return Batch(schema, columns, window=(min(times), max(times)), strings=strings)


pids = st.integers(1, 4)
page = st.integers(16, 47)
actions = st.one_of(
    st.tuples(st.just("map"), pids, page, st.integers(1, 12), st.sampled_from(FILES), st.integers(0, 3)),
    st.tuples(st.just("unmap"), pids, page, st.integers(1, 12)),
    st.tuples(
        st.just("listing"),
        pids,
        st.lists(st.tuples(page, st.sampled_from(FILES)), max_size=4, unique_by=lambda p: p[0]),
    ),
    st.tuples(st.just("fork"), pids, pids),
    st.tuples(st.just("exec"), pids),
    st.tuples(st.just("exit"), pids),
    st.tuples(st.just("fault"), pids, page),
    st.tuples(st.just("fault"), pids, page),
    st.tuples(st.just("drain")),
)


@settings(max_examples=400)
@given(st.lists(actions, max_size=60), st.booleans())
def test_every_fault_has_the_file_that_lay_there_at_its_time(script, one_batch):
    """GIVEN any story of maps, unmaps, listings, forks, execs and exits WHEN faults are shown in batches after them
    THEN each has the file and the offset that lay at its address at its own time.
    """
    context = Context()
    enricher = MappedFiles()
    enricher.start(context)
    model = Model()
    code = context.strings.code
    spaces, processes, faults, expected, given_out = [], [], [], [], []

    def space(event, time, pid, first, n, file="", offset=0):
        spaces.append({"time_ns": time, "pid": pid, "event": event, "start": first * PAGE, "end": (first + n) * PAGE,
                       "offset": offset, "file": code(file), "dev": 1, "ino": len(file),
                       "flags": FILE if file else 0})  # fmt: skip

    def process(event, time, pid, ppid=0):
        processes.append({"time_ns": time, "pid": pid, "ppid": ppid, "tid": pid, "event": event, "name": 0, "code": 0})

    def drain():
        for schema, rows in ((PROCESS, processes), (ADDRESS_SPACE, spaces), (PAGE_FAULT, faults)):
            if rows:
                given_out.extend(enricher.enrich(batch(schema, context.strings, rows)))
                rows.clear()

    # faults before the first row of a process, or just after an exec, are taken late: see the tests of that
    for pid in range(1, 5):
        process(PROCESS_EXEC, 1, pid)
        space(SPACE_MAP, 2, pid, 1, 1, "/a")
        model.map(pid, 1, 1, "/a", 0)
    second = 1_000_000_000
    for step, (action, *args) in enumerate(script):
        time = (step + 1) * second // 8
        match action, *args:
            case "map", pid, first, n, file, offset:
                space(SPACE_MAP, time, pid, first, n, file, offset * PAGE)
                model.map(pid, first, n, file, offset * PAGE)
            case "unmap", pid, first, n:
                space(SPACE_UNMAP, time, pid, first, n)
                model.unmap(pid, first, n)
            case "listing", pid, rows:
                rows = [(1, "/a"), *sorted(rows)]
                model.pages[pid] = {}
                for number, (first, file) in enumerate(rows):
                    space(SPACE_MAP if number else SPACE_REPLACE, time, pid, first, 1, file)
                    model.map(pid, first, 1, file, 0)
            case "fork", pid, child if pid != child:
                process(PROCESS_FORK, time, child, pid)
                model.pages[child] = dict(model.pages.get(pid, {}))
            case "exec", pid:
                process(PROCESS_EXEC, time, pid)
                model.pages[pid] = {}
                time += second // 16  # settled
                space(SPACE_MAP, time, pid, 1, 1, "/a")
                model.map(pid, 1, 1, "/a", 0)
            case "exit", pid:
                process(PROCESS_EXIT, time, pid)
            case "fault", pid, number:
                held = model.pages.get(pid, {}).get(number)
                early = any(
                    p["event"] == PROCESS_EXEC and p["pid"] == pid and time - p["time_ns"] <= second // 8
                    for p in processes
                )
                if held or not early:
                    faults.append(
                        {"time_ns": time, "pid": pid, "tid": pid, "pc": PAGE, "va": number * PAGE + 7, "flags": 0}
                    )
                    expected.append(held and (held[0], held[1] + number * PAGE))
            case ("drain",) if not one_batch:
                drain()
    drain()
    given_out.extend(enricher.close())

    mappings = {}
    for out in given_out:
        if out.schema.name == "mapping":
            for row in zip(*(out[name].tolist() for name in ("id", "start", "offset", "file")), strict=True):
                assert row[0] == len(mappings) + 1  # append-only, from 1 on
                mappings[row[0]] = row[1:]
    found = []
    for out in given_out:
        if out.schema.name == "page_fault":
            for va, mapping, file in zip(*(out[n].tolist() for n in ("va", "mapping", "file")), strict=True):
                start, offset, code_of_file = mappings.get(mapping, (0, 0, 0))
                assert code_of_file == file
                found.append((context.strings[file], offset + (va - 7) - start) if mapping else None)
    assert found == expected
    unresolved = context.ledger.get("unresolved", "va")
    assert unresolved == sum(e is None for e in expected)


linux = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


@linux
def test_every_line_of_maps():
    """GIVEN a process that waits WHEN each of its mappings is requested THEN the answer is its line in maps."""
    code = "import sys, mmap; m = mmap.mmap(-1, 1 << 20); print('x', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        files = 0
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            fields = line.split(None, 5)
            start, end = (int(word, 16) for word in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 and fields[5].startswith("/") else None
            expected = None if path is None or path.startswith("/dev/zero") else path
            files += expected is not None
            if start < 1 << 63:
                for address in (start, end - 1):
                    assert wstrace.mapped_file(address, process.pid) == expected, line
        assert files > 10
        process.kill()


@linux
def test_odd_and_deleted_names(tmp_path):
    path = tmp_path / "a b\nc\tü (deleted) x"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        address = address_of(mapped)
        assert wstrace.mapped_file(address + 5000) == str(path)
        path.unlink()
        assert wstrace.mapped_file(address) == str(path)


@linux
def test_addresses_without_a_file():
    with mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as anonymous:
        assert wstrace.mapped_file(address_of(anonymous)) is None
    for nothing in (0, 1, 1 << 62, (1 << 64) - 1, 1 << 64, -1):
        assert wstrace.mapped_file(nothing) is None


@linux
def test_a_process_that_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(TargetExited, match=str(process.pid)):
        wstrace.mapped_file(0x1000, process.pid)
