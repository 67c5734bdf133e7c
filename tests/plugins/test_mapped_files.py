"""The enricher `mapped_files`: ids, late rows, questions to the system, memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wstrace.batch import Batch
from wstrace.interfaces import Context, Target, Usage
from wstrace.schema import (
    ADDRESS_SPACE,
    KIND_ANON,
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
from wstrace_mapped_files.enricher import MappedFiles

FILE, ANON = KIND_FILE << KIND_SHIFT, KIND_ANON << KIND_SHIFT
SECOND = 1_000_000_000


class TestContract(EnricherContract):
    def make(self) -> MappedFiles:
        return MappedFiles()

    def batch(self) -> Batch:
        return batch_of(PAGE_FAULT, time_ns=[5, 6], pid=[1, 2], tid=1, pc=2**63, va=[0x1000, 0x2000], flags=0)


class Half:
    """A fake half: answers with what it was given, and counts the questions."""

    COMPLETE = True
    LISTING_NS = 0

    def __init__(self, *rows: tuple[int, int, str]) -> None:
        self.rows, self.asked = rows, 0

    def listing(self, pid: int, addresses: Any, strings: Any) -> dict[str, Any] | None:
        self.asked += 1
        if not self.rows:
            return None
        start, end, files = zip(*self.rows, strict=True)
        return {"start": np.array(start, "u8"), "end": np.array(end, "u8"), "offset": np.zeros(len(start), "u8"),
                "file": np.array([strings.code(file) for file in files], "u4"),
                "flags": np.full(len(start), FILE, "u2")}  # fmt: skip


class FakeTarget(Target):
    """A target that runs: the system may be asked."""

    pid, name, launched = 7, "x", True

    def resume(self) -> None: ...

    def wait(self, timeout: float) -> int | None:
        return None

    def usage(self) -> Usage:
        return Usage()

    def signal(self, number: int) -> None: ...

    def close(self) -> None: ...


class Told:
    """An enricher that is told rows one by one, and what it gave out."""

    def __init__(self, half: Half | None = None) -> None:
        self.context = Context(targets=() if half is None else (FakeTarget(),))
        self.enricher = MappedFiles(reread=half is not None)
        self.enricher.system = half
        self.enricher.start(self.context)
        self.mappings: list[dict[str, int]] = []

    def give(self, batch: Batch) -> list[Batch]:
        out = list(self.enricher.enrich(batch))
        for mapping in (b for b in out if b.schema is MAPPING):
            self.mappings += [{n: int(mapping[n][row]) for n in mapping} for row in range(len(mapping))]
        return [b for b in out if b.schema is not MAPPING]

    def space(self, event: int, time: int, *rows: tuple[int, int, str], pid: int = 7, flags: int = FILE) -> None:
        start, end, files = zip(*rows, strict=True)
        columns = {"start": start, "end": end, "file": files, "offset": 0, "dev": 1, "ino": 2, "flags": flags}
        batch = batch_of(ADDRESS_SPACE, self.context.strings, time_ns=time, pid=pid, event=event, **columns)
        assert self.give(batch) == []

    def listing(self, time: int, *rows: tuple[int, int, str], pid: int = 7) -> None:
        self.space(SPACE_REPLACE, time, *rows[:1], pid=pid)
        if rows[1:]:
            self.space(SPACE_MAP, time, *rows[1:], pid=pid)

    def process(self, event: int, time: int, pid: int = 7, ppid: int = 1, tid: int = 0) -> None:
        row = batch_of(
            PROCESS, self.context.strings, time_ns=time, pid=pid, ppid=ppid, tid=tid or pid, event=event, name="x",
            code=0,
        )  # fmt: skip
        assert self.give(row) == [row]

    def fault(self, *faults: tuple[int, int], pid: int = 7) -> list[str]:
        """The files of faults (time, va)."""
        time, va = zip(*faults, strict=True)
        batch = batch_of(PAGE_FAULT, self.context.strings, time_ns=time, pid=pid, tid=pid, pc=va, va=va, flags=0)
        (out,) = self.give(batch)
        assert out["mapping"].tolist() == out["pc_mapping"].tolist()
        assert out["file"].tolist() == out["pc_file"].tolist()
        assert out["file"].dtype == out["mapping"].dtype == "<u4"
        return [self.context.strings[code] for code in out["file"].tolist()]

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.mappings]


def test_what_is_told_again_keeps_its_id_and_a_fork_adds_none() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x3000, "/a"), (0x5000, 0x6000, "/b"))
    told.space(SPACE_MAP, 11, (0x1000, 0x3000, "/a"))
    told.listing(12, (0x1000, 0x3000, "/a"), (0x5000, 0x6000, "/b"), (0x8000, 0x9000, "/c"))
    told.process(PROCESS_FORK, 20, pid=8, ppid=7)
    told.listing(21, (0x1000, 0x3000, "/a"), (0x5000, 0x6000, "/b"), (0x8000, 0x9000, "/c"), pid=8)
    assert told.fault((30, 0x1000), (30, 0x5FFF), (30, 0x8000), pid=8) == ["/a", "/b", "/c"]
    assert told.ids == [1, 2, 3, 4]  # the kernel's, and three
    assert [row["pid"] for row in told.mappings] == [0, 7, 7, 7]


def test_memory_without_a_file_is_the_same_whatever_offset_it_is_told_with() -> None:
    told = Told()
    for time, offset in ((10, 0x1000), (11, 0)):
        told.give(batch_of(ADDRESS_SPACE, told.context.strings, time_ns=time, pid=7, event=SPACE_MAP, start=0x1000,
                           end=0x2000, offset=offset, file="", dev=0, ino=0, flags=ANON))  # fmt: skip
    assert told.fault((20, 0x1000)) == ["[anon]"]
    assert told.ids == [1, 2]


def test_exec_begins_anew_and_its_first_faults_are_named_late() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/old"))
    told.process(PROCESS_EXEC, SECOND)
    told.space(SPACE_MAP, SECOND + 100, (0x1000, 0x2000, "/new"))
    told.space(SPACE_MAP, 3 * SECOND, (0x8000, 0x9000, "/later"))
    faults = [(20, 0x1000), (SECOND + 50, 0x1000), (SECOND + 100, 0x1000), (2 * SECOND, 0x8000), (3 * SECOND, 0x8000)]
    assert told.fault(*faults) == ["/old", "/new", "/new", "", "/later"]
    assert told.context.ledger.get("unresolved", "va") == told.context.ledger.get("unresolved", "pc") == 1


def test_faults_before_the_first_listing_belong_to_it() -> None:
    told = Told()
    told.listing(10 * SECOND, (0x1000, 0x2000, "/a"))
    assert told.fault((9 * SECOND, 0x1000)) == ["/a"]


def test_each_time_has_its_own_file_at_one_address() -> None:
    told = Told()
    for time, file in ((10, "/a"), (20, "/b"), (30, "/c")):
        told.space(SPACE_MAP, time, (0x1000, 0x4000, file))
    told.space(SPACE_UNMAP, 40, (0x2000, 0x3000, ""))
    faults = [(35, 0x2000), (15, 0x1000), (45, 0x2000), (25, 0x3FFF), (45, 0x3000), (10, 0x1000), (20, 0x1000)]
    assert told.fault(*faults) == ["/c", "/a", "", "/b", "/c", "/a", "/b"]


def test_the_offset_of_a_piece_follows_from_its_mapping() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x9000, "/a"))
    told.space(SPACE_MAP, 20, (0x4000, 0x5000, "/b"))
    assert told.fault((30, 0x3000), (30, 0x4000), (30, 0x5000)) == ["/a", "/b", "/a"]
    assert told.mappings[1]["start"] == 0x1000


def test_rows_of_a_second_source_that_come_late_fill_in_what_was_before() -> None:
    told = Told()
    told.listing(100, (0x1000, 0x2000, "/now"))
    assert told.fault((110, 0x1000)) == ["/now"]
    told.space(SPACE_MAP, 50, (0x1000, 0x2000, "/then"), (0x6000, 0x7000, "/gone"))
    told.space(SPACE_MAP, 60, (0x1000, 0x2000, "/now"))
    assert told.fault((55, 0x1000), (55, 0x6000), (110, 0x6000), (110, 0x1000)) == ["/then", "/gone", "", "/now"]


def test_an_exec_told_late_keeps_what_was_told_of_the_new_image() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/old"))
    told.listing(100, (0x5000, 0x6000, "/new"))
    assert told.fault((110, 0x5000)) == ["/new"]
    told.process(PROCESS_EXEC, 50)
    assert told.fault((20, 0x1000), (110, 0x5000), (110, 0x1000)) == ["/old", "/new", ""]


def test_process_rows_come_first_at_one_time() -> None:
    told = Told()
    told.space(SPACE_MAP, 50, (0x1000, 0x2000, "/new"))
    told.process(PROCESS_EXEC, 50)
    assert told.fault((60, 0x1000)) == ["/new"]


def test_a_number_that_is_given_again_is_another_process() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/first"))
    told.process(PROCESS_EXIT, 20)
    told.process(PROCESS_FORK, 30, pid=7, ppid=5)
    assert told.fault((40, 0x1000), (15, 0x1000)) == ["", "/first"]  # records of both may come in one batch
    told.process(PROCESS_EXIT, 50)
    told.fault((10 * SECOND, 0x1000), pid=8)
    assert told.enricher.statistics()["processes"] == 1


def test_births_and_ends_of_threads_change_nothing() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    told.process(PROCESS_FORK, 20, tid=71, ppid=1)
    told.process(PROCESS_EXIT, 30, tid=71)
    told.fault((10 * SECOND, 0x1000), pid=8)
    assert told.fault((10 * SECOND, 0x1000)) == ["/a"]


def test_an_exec_that_is_held_up_before_its_first_mapping() -> None:
    told = Told()
    told.process(PROCESS_EXEC, SECOND)
    told.space(SPACE_MAP, 2 * SECOND, (0x5000, 0x6000, "[stack]"))
    told.space(SPACE_MAP, 2 * SECOND + 100, (0x1000, 0x2000, "/new"))
    assert told.fault((2 * SECOND + 50, 0x1000)) == ["/new"]


def test_a_place_that_is_mapped_again_and_again_in_one_batch() -> None:
    """What takes its time is a look-up for each row, not for each mapping that ever lay there."""
    told = Told()
    n = 2000
    rows = [(time, event) for i in range(n) for time, event in ((10 * i, SPACE_MAP), (10 * i + 5, SPACE_UNMAP))]
    time, event = zip(*rows, strict=True)
    files = [f"/{t // 10 % 3}" for t in time]
    told.give(batch_of(ADDRESS_SPACE, told.context.strings, time_ns=time, pid=7, event=event, start=0x10_0000,
                       end=0x20_0000, offset=0, file=files, dev=1, ino=2, flags=FILE))  # fmt: skip
    when = np.random.default_rng(1).integers(0, 10 * n, 100_000).tolist()
    found = told.fault(*((t, 0x10_0000 + t % 256 * 4096) for t in when))
    assert found == [f"/{t // 10 % 3}" if t % 10 < 5 else "" for t in when]


def test_what_ended_long_ago_is_forgotten_however_it_is_told() -> None:
    """Three pieces end at each step: their number passes every power of two without meeting it."""
    told = Told()
    for step in range(1, 30):
        rows = []
        for i in range(300):
            time = step * SECOND + i * 10
            rows += [(time, SPACE_MAP, start, start + 0x1000) for start in (0x1000, 0x3000, 0x5000)]
            rows.append((time + 5, SPACE_UNMAP, 0x1000, 0x6000))
        time, event, start, end = zip(*rows, strict=True)
        told.give(batch_of(ADDRESS_SPACE, told.context.strings, time_ns=time, pid=7, event=event, start=start, end=end,
                           offset=0, file="/a", dev=1, ino=2, flags=FILE))  # fmt: skip
        told.fault((step * SECOND + SECOND // 2, 0x1000))
    assert told.enricher.statistics()["ended"] < 6000


def test_the_kernel_has_a_mapping_of_its_own() -> None:
    told = Told()
    batch = batch_of(
        PAGE_FAULT, told.context.strings, time_ns=5, pid=7, tid=7, pc=0xFFFF_FFFF_8100_0000, va=0x10, flags=2
    )
    (out,) = told.give(batch)
    assert told.context.strings[int(out["pc_file"][0])] == "[kernel]"
    assert told.mappings[0]["id"] == out["pc_mapping"][0] == 1
    assert told.mappings[0]["flags"] >> KIND_SHIFT == KIND_KERNEL
    assert told.context.ledger.get("unresolved", "pc") == 0


def test_records_without_a_time_have_the_end_of_their_window() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    told.space(SPACE_MAP, 30, (0x1000, 0x2000, "/b"))
    columns = {"pid": np.array([7], "u4"), "va": np.array([0x1000], "u8")}
    for window, file in (((0, 20), "/a"), ((20, 40), "/b")):
        (out,) = told.give(Batch(PAGE_FAULT, columns, window=window, strings=told.context.strings))
        assert told.context.strings[int(out["file"][0])] == file


def test_runs_of_pages_belong_to_the_process_of_their_header() -> None:
    told = Told()
    told.listing(10, (0x1000, 0x3000, "/a"))
    columns = {
        "start": np.array([0x1000, 0x9000], "u8"),
        "pages": np.array([2, 1], "u4"),
        "flags": np.array([1, 1], "u2"),
    }
    (out,) = told.give(
        Batch(RESIDENT_PAGES, columns, window=(10, 10), strings=told.context.strings, header={"pid": 7, "t": 10})
    )
    assert out["mapping"].tolist() == [2, 0]
    assert out["kind"].tolist() == [KIND_FILE, 0]
    assert told.context.ledger.get("unresolved", "resident") == 1


def test_a_replay_knows_better() -> None:
    told = Told()
    batch = batch_of(PAGE_FAULT, told.context.strings, time_ns=5, pid=7, va=0x1000, mapping=9)
    assert told.give(batch) == [batch]


def test_an_uncovered_address_is_asked_for() -> None:
    half = Half((0x1000, 0x2000, "/a"), (0x7000, 0x9000, "/moved"))
    told = Told(half)
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    assert told.fault((20, 0x7000), (30, 0x8000), (30, 0xF000)) == ["/moved", "/moved", ""]
    assert told.fault((40, 0x7000)) == ["/moved"]
    assert half.asked == 1  # and what it told is kept
    assert told.context.ledger.get("unresolved", "va") == 1


def test_an_answer_of_another_image_is_not_believed() -> None:
    told = Told(Half((0x40_0000, 0x40_1000, "/another"), (0x7000, 0x9000, "/moved")))
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    assert told.fault((20, 0x7000)) == [""]
    assert told.enricher.statistics()["listings_refused"] >= 1


def test_a_process_that_has_ended_meanwhile_answers_nothing() -> None:
    """A zombie's maps are an empty file."""
    half = Half((0x1000, 0x2000, "/a"))
    told = Told(half)
    told.process(PROCESS_FORK, 10, pid=8, ppid=99)
    half.listing = lambda *_: {"start": np.zeros(0, "u8"), "end": np.zeros(0, "u8"), "file": np.zeros(0, "u4")}  # type: ignore[method-assign]
    assert told.fault((20, 0x1000), pid=8) == [""]
    assert told.enricher.statistics()["listings_refused"] == 1
    told.process(PROCESS_EXIT, 30, pid=8)  # and its number may be another's now
    assert told.fault((20, 0x1000), pid=8) == [""]
    assert told.enricher.statistics()["listings"] == 1


def test_a_trace_without_targets_asks_nothing() -> None:
    """Its pids are those of another time or machine."""
    half = Half((0x1000, 0x2000, "/a"))
    enricher = MappedFiles()
    enricher.system = half
    enricher.start(Context())
    context = Told().context
    list(enricher.enrich(batch_of(PROCESS, context.strings, time_ns=1, pid=7, ppid=1, tid=7, event=PROCESS_FORK)))
    list(enricher.enrich(batch_of(PAGE_FAULT, context.strings, time_ns=2, pid=7, tid=7, pc=0, va=0x1000)))
    assert half.asked == 0


def test_nothing_is_asked_about_the_past_or_of_strangers() -> None:
    half = Half((0x1000, 0x2000, "/a"))
    told = Told(half)
    assert told.fault((5, 0x1000), pid=99) == [""]  # no row ever told of that process
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    told.space(SPACE_UNMAP, 20, (0x1000, 0x2000, ""))
    told.space(SPACE_MAP, 30, (0x1000, 0x2000, "/b"))
    assert told.fault((25, 0x1000)) == [""]  # what lay there then is gone
    told.process(PROCESS_EXEC, 40)
    assert told.fault((15, 0x5000)) == [""]  # an image that is gone
    assert half.asked == 0


def test_after_lost_rows_a_process_is_unknown_until_it_is_listed() -> None:
    half = Half((0x1000, 0x2000, "/a"))
    told = Told(half)
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    told.space(SPACE_UNMAP, 20, (0, 2**64 - 1, ""))
    assert told.fault((15, 0x1000), (25, 0x1000)) == ["/a", ""]
    assert half.asked == 0
    told.listing(30, (0x1000, 0x2000, "/a"))
    assert told.fault((25, 0x1000), (35, 0x1000)) == ["", "/a"]


def test_the_system_is_not_asked_too_often() -> None:
    half = Half((0x1000, 0x2000, "/a"))
    half.LISTING_NS = 3600 * SECOND
    told = Told(half)
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    for time in range(20, 40):
        told.fault((time, 0xF000))
    assert half.asked == 1


@pytest.mark.parametrize(
    "row", [(0x2000, 0x1000, "/backwards"), (2**63, 2**63 + 4096, "/kernel"), (0, 2**64 - 1, "/all")]
)
def test_mappings_that_cannot_be_do_no_harm(row: tuple[int, int, str]) -> None:
    told = Told()
    told.space(SPACE_MAP, 10, row)
    assert told.fault((20, 2**63 + 1)) == ["[kernel]"]


def test_close_gives_what_no_record_has_needed() -> None:
    told = Told()
    told.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    (batch,) = told.enricher.close()
    assert [told.context.strings[code] for code in batch["file"].tolist()] == ["[kernel]", "/a"]
    assert list(told.enricher.close()) == []


def execs(told: Told, first: int, last: int, files: int = 7) -> None:
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
                 "file": np.full(n, told.context.strings.code(f"/{number % files}"), "u4"),
                 "flags": np.full(n, FILE, "u2")}  # fmt: skip
        fault = {"time_ns": np.array([now + 20], "u8"), "pid": np.array([pid], "u4"), "va": at[:1]}
        for schema, columns in ((PROCESS, rows), (ADDRESS_SPACE, space), (PAGE_FAULT, fault)):
            for out in told.enricher.enrich(
                Batch(schema, columns, window=(now, now + 20), strings=told.context.strings)
            ):
                if schema is PAGE_FAULT and out.schema is MAPPING:
                    assert out["id"][-1] == 30 * (number + 1) + 1


def check(told: Told, count: int) -> None:
    statistics = told.enricher.statistics()
    assert statistics["mappings"] == 30 * count + 1
    assert statistics["processes"] < 300
    assert statistics["live"] + statistics["ended"] < 10_000
    assert told.context.ledger.get("unresolved") == 0


def test_memory_is_flat_over_many_execs() -> None:
    told = Told()
    execs(told, 0, 400)
    gc.collect()
    tracemalloc.start()
    try:
        execs(told, 400, 1000)
        gc.collect()
        # all that was held after the first ones is gone: the processes of the last two seconds are held
        assert tracemalloc.get_traced_memory()[0] < 6 << 20
    finally:
        tracemalloc.stop()
    check(told, 1000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_memory_is_flat_over_a_hundred_thousand_execs() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("only on Linux: /proc/self/statm")
    told = Told()
    execs(told, 0, 2000)
    before = resident()
    execs(told, 2000, 100_000)
    assert resident() - before < 16 << 20
    check(told, 100_000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_distinct_paths_cost_their_names_and_no_more() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("only on Linux: /proc/self/statm")
    told = Told()
    execs(told, 0, 2000, files=1 << 30)
    before = resident()
    execs(told, 2000, 50_000, files=1 << 30)
    assert resident() - before < 24 << 20  # 48,000 names, which the trace holds for good: about 250 bytes each
    check(told, 50_000)


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
