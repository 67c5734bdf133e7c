"""The Linux half without a kernel: golden records, merging, loss, the side band, moved mappings."""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.batch import Dictionary
from wstrace.errors import Unavailable
from wstrace.schema import DTYPES, KINDS, PAGE_FAULT, PROCESS_EXEC
from wstrace_page_faults.linux import perf_event as perf
from wstrace_page_faults.linux import records
from wstrace_page_faults.linux.events import Settings
from wstrace_page_faults.linux.remaps import Remaps
from wstrace_page_faults.linux.rings import MAJOR, MINOR, SIDE
from wstrace_page_faults.linux.samples import RingSamples, merge
from wstrace_page_faults.linux.shared_spaces import SharedSpaces
from wstrace_page_faults.linux.side_band import SideBand


def sample(time_ns: int, *, va: int = 0x7000, pid: int = 7, tid: int = 8, pc: int = 0x400, misc: int = 2) -> bytes:
    return struct.pack("<IHHQIIQQ", 9, misc, 40, pc, pid, tid, time_ns, va)


def lost(count: int, time_ns: int) -> bytes:
    return struct.pack("<IHHQQIIQ", 2, 0, 40, 99, count, 7, 8, time_ns)


def take(samples: RingSamples, *rows: bytes, armed: int = 0, now: int = 10**9, doubled: bool = False) -> None:
    samples.take(np.frombuffer(b"".join(rows), np.uint8), armed, now, doubled=doubled)


# -- attributes --------------------------------------------------------------------------------------------------------


def test_attributes_are_those_of_the_header() -> None:
    """Offsets and bits as <linux/perf_event.h> has them, packed by hand."""
    [minor] = Settings(kernel=False, period=5).attributes(MINOR, lost=True)
    flags = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 18 | 1 << 25  # disabled inherit exclude_* sample_id_all clockid
    expected = struct.pack("<IIQQQQQ", 1, 112, 5, 5, 1 | 2 | 4 | 8, 16, flags)
    assert minor.tobytes()[:48] == expected
    assert minor.tobytes()[92:96] == struct.pack("<i", 1)
    [side] = Settings(children=False, on_exec=True).attributes(SIDE, lost=False)
    flags = sum(1 << bit for bit in (0, 1, 8, 9, 12, 13, 17, 18, 23, 24, 25, 35))
    assert side.tobytes()[:48] == struct.pack("<IIQQQQQ", 1, 112, 9, 0, 2 | 4, 0, flags)
    assert Settings().attributes(MAJOR, lost=False)[0]["config"] == 6


@pytest.mark.parametrize(
    ("number", "answer", "paranoid", "capabilities", "why"),
    [
        (
            errno.EACCES,
            errno.EINVAL,
            3,
            "0",
            "kernel.perf_event_paranoid is 3; sudo sysctl kernel.perf_event_paranoid=1, or sudo",
        ),
        (errno.EPERM, errno.EACCES, 4, "0", "kernel.perf_event_paranoid is 4; sudo sysctl"),
        (errno.EPERM, errno.EPERM, 4, "4000000000", "a seccomp filter, that of a container"),
        (errno.EPERM, errno.EPERM, 2, "0", "a seccomp filter"),
        (errno.EACCES, errno.EACCES, 2, "0", "a seccomp filter"),  # paranoid 2 leaves us our own processes
        (errno.EACCES, errno.EINVAL, 2, "0", "by what is not known, possibly a seccomp filter; look for"),
        (errno.EPERM, errno.EPERM, 1, "0", "start the container with --cap-add PERFMON"),
        (errno.ENOSYS, errno.ENOSYS, 1, "0", "a seccomp filter"),
        (errno.EACCES, errno.EINVAL, 1, "0", "by what is not known, possibly a seccomp filter; look for a security"),
        (errno.EPERM, errno.EINVAL, 4, "4000000000", "by what is not known"),
        (errno.ENOENT, errno.EINVAL, 1, "0", "no page fault events"),
        (errno.EPERM, errno.ENOSYS, None, "0", "no page fault events"),
        (errno.EIO, errno.EINVAL, 1, "0", "page faults cannot be recorded"),
    ],
)
def test_what_a_refusal_means(
    monkeypatch: Any, number: int, answer: int, paranoid: int, capabilities: str, why: str
) -> None:
    """answer: what the system says to flags that no kernel knows; EINVAL is the kernel's own."""
    monkeypatch.setattr(perf.procfs, "setting", lambda path: paranoid)
    monkeypatch.setattr(perf.procfs, "status", lambda pid: {"CapEff": capabilities, "Seccomp": "2"})
    monkeypatch.setattr(perf.libc, "syscall", lambda *arguments: -1)
    monkeypatch.setattr(perf.libc, "last_error", lambda: OSError(answer, os.strerror(answer)))
    refused = perf.refusal(OSError(number, os.strerror(number), "perf_event_open"))
    assert isinstance(refused, Unavailable)
    assert why in str(refused)
    assert "\n" not in str(refused)


def test_paranoid_2_forbids_events_that_count_in_the_kernel_and_no_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(perf.procfs, "setting", lambda path: 2)
    monkeypatch.setattr(perf.procfs, "status", lambda pid: {"CapEff": "0", "Seccomp": "0"})
    monkeypatch.setattr(perf.libc, "syscall", lambda *arguments: -1)
    monkeypatch.setattr(perf.libc, "last_error", lambda: OSError(errno.EINVAL, "flags"))
    refused = OSError(errno.EACCES, os.strerror(errno.EACCES), "perf_event_open")
    assert perf.refusal(refused, kernel=True).why == "kernel.perf_event_paranoid is 2"
    assert perf.refusal(refused).why.endswith("by what is not known")


def test_a_call_that_a_signal_interrupts_is_made_again(monkeypatch: Any) -> None:
    answers = [(-1, errno.EINTR), (-1, errno.EINTR), (5, 0), (-1, errno.ESRCH)]
    monkeypatch.setattr(perf.libc, "syscall", lambda *arguments: answers[0][0])
    monkeypatch.setattr(perf, "_oserror", lambda call: OSError(answers.pop(0)[1], call))
    [event] = Settings().attributes(MINOR, lost=True)
    assert perf.perf_event_open(event, 1, 0) == 5
    answers.pop(0)
    with pytest.raises(ProcessLookupError):
        perf.perf_event_open(event, 1, 0)


def test_this_kernel_answers_itself() -> None:
    assert perf.filtered() is None


# -- samples -----------------------------------------------------------------------------------------------------------


def test_rows_become_columns() -> None:
    minor, major = RingSamples(major=False), RingSamples(major=True)
    take(minor, sample(10, va=1 << 63, pid=2**32 - 1, tid=3), sample(30, misc=1))
    take(major, sample(20, va=5, pc=(1 << 64) - 1))
    columns = merge([minor, major], 99)
    expected = {
        "time_ns": [10, 20, 30],
        "pid": [2**32 - 1, 7, 7],
        "tid": [3, 8, 8],
        "pc": [0x400, (1 << 64) - 1, 0x400],
        "va": [1 << 63, 5, 0x7000],
        "flags": [0, 1, 2],
    }
    assert {name: columns[name].tolist() for name in expected} == expected
    types = {column.name: DTYPES[column.type] for column in PAGE_FAULT.columns}
    assert {name: column.dtype.str for name, column in columns.items()} == {name: types[name] for name in columns}


def test_nothing_gives_nothing() -> None:
    samples = RingSamples(major=False)
    take(samples)
    assert all(len(column) == 0 for column in merge([samples], 9).values())


def test_loss_is_counted_and_taken_out() -> None:
    samples = RingSamples(major=False)
    take(samples, sample(10), lost(5, 20), sample(30), lost(7, 40))
    assert (samples.lost, samples.give(99)[:, 3].tolist()) == (12, [10, 30])
    take(samples, struct.pack("<IHHQQQQ", 77, 0, 40, 1, 2, 3, 4), sample(50), b"torn")
    assert (samples.malformed, len(samples.give(99))) == (2, 1)


def test_longer_rows_are_those_of_ours_with_more_behind() -> None:
    """Another tracer's call chains make our rows longer; what is behind them is old bytes, old headers among them."""
    samples = RingSamples(major=False)

    def more(time_ns: int, junk: bytes) -> bytes:
        row = sample(time_ns, va=time_ns * 4096)
        return row[:6] + struct.pack("<H", 40 + len(junk)) + row[8:] + junk

    longer = more(20, b"\xff" * 24), more(30, sample(1) + sample(2)), more(50, sample(3)[:16])
    take(samples, sample(10), longer[0], longer[1], lost(5, 35), sample(40, misc=1), longer[2], sample(60))
    columns = merge([samples], 99)
    assert columns["time_ns"].tolist() == [10, 20, 30, 40, 50, 60]
    assert columns["va"].tolist() == [0x7000, 20 * 4096, 30 * 4096, 0x7000, 50 * 4096, 0x7000]
    assert columns["flags"].tolist() == [0, 0, 0, 2, 0, 0]
    assert (samples.lost, samples.malformed) == (5, 0)


JUNK = st.lists(st.sampled_from([sample(7), sample(8)[:8], b"\0" * 8, b"\xff" * 8]), max_size=4).map(b"".join)
RECORD = st.tuples(st.sampled_from([1, 2, 4, 9, 10]), st.sampled_from([1, 2]), st.integers(0, 2**32 - 1), JUNK)


@given(st.lists(RECORD, max_size=30), st.binary(max_size=50))
def test_records_are_split_as_a_walk_over_their_sizes_does(parts: list[Any], torn: bytes) -> None:
    ring, walked = b"", []
    for kind, misc, word, junk in parts:
        walked.append(len(ring) // 8)
        ring += struct.pack("<IHHQ", kind, misc, 16 + len(junk), word) + junk
    begins, end = records.starts(np.frombuffer(ring, "<u8"))
    assert (begins.tolist(), end) == (walked, len(ring) // 8)
    table, rest = records.rows(np.frombuffer(ring + torn, np.uint8))  # whatever comes: no error, no endless loop
    assert len(table) >= len(walked)
    assert rest <= len(torn)


def test_foreign_times_are_counted_and_taken_out() -> None:
    samples = RingSamples(major=False)
    take(
        samples,
        sample(99),
        sample(100),
        sample(1_700_000_000_000_000_000),
        sample(200),
        sample(201),
        armed=100,
        now=200,
    )
    assert (samples.foreign, samples.give(10**18)[:, 3].tolist()) == (3, [100, 200])


def test_doubles_are_kept_once_over_drains_too() -> None:
    samples = RingSamples(major=False)
    take(samples, sample(10), sample(10), sample(10), sample(10, va=0x8000), sample(11), doubled=True)
    take(samples, sample(11), sample(12), sample(12), doubled=True)
    assert (samples.duplicates, samples.give(99)[:, 3].tolist()) == (4, [10, 10, 11, 12])
    take(samples, sample(13), sample(13))
    assert len(samples.give(99)) == 2  # nobody was armed twice: the same fault may come again


@given(
    st.lists(st.lists(st.integers(0, 200), max_size=30).map(sorted), min_size=1, max_size=6),
    st.lists(st.integers(0, 200), max_size=5).map(sorted),
)
def test_merging_up_to_watermarks_keeps_all_in_order(rings: list[list[int]], marks: list[int]) -> None:
    all_samples = [RingSamples(major=bool(i % 2)) for i in range(len(rings))]
    for number, (samples, times) in enumerate(zip(all_samples, rings, strict=True)):
        take(samples, *(sample(t, tid=number, va=i) for i, t in enumerate(times)))
    got: list[tuple[int, ...]] = []
    for mark in [*marks, 1 << 63]:
        columns = merge(all_samples, mark)
        assert all(t <= mark for t in columns["time_ns"].tolist())
        got += zip(*(columns[name].tolist() for name in ("time_ns", "tid", "va", "flags")), strict=True)
    every = [(t, n, i, n % 2) for n, times in enumerate(rings) for i, t in enumerate(times)]
    assert [row[0] for row in got] == sorted(row[0] for row in every)
    assert sorted(got) == sorted(every)
    assert sum(samples.recorded for samples in all_samples) == len(every)


# -- side band ---------------------------------------------------------------------------------------------------------


def record(kind: int, misc: int, body: bytes, time_ns: int, pid: int = 7) -> bytes:
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<IHH", kind, misc, 24 + len(body)) + body + struct.pack("<IIQ", pid, pid, time_ns)


def comm(name: bytes, time_ns: int, *, pid: int = 7, tid: int | None = None, executed: bool = False) -> bytes:
    return record(3, executed << 13, struct.pack("<II", pid, pid if tid is None else tid) + name + b"\0", time_ns)


def task(kind: int, time_ns: int, pid: int, tid: int, ppid: int) -> bytes:
    return record(kind, 0, struct.pack("<IIIIQ", pid, ppid, tid, ppid, time_ns), time_ns)


def mmap2(start: int, size: int, name: bytes, time_ns: int, *, pid: int = 7, prot: int = 3, flags: int = 2) -> bytes:
    body = struct.pack("<II QQQ II QQ II", pid, pid, start, size, 0x2000, 8, 1, 42, 0, prot, flags) + name + b"\0"
    return record(10, 0, body, time_ns)


def band(*raw: bytes, watermark: int = 10**9, children: bool = True, **tracepoints: Any) -> tuple[Any, ...]:
    strings = Dictionary()
    side = SideBand(strings, children=children, exit_code={7: 3}.get, **tracepoints)
    for ring in raw:
        side.take(ring)
    rows: dict[str, list[tuple[Any, ...]]] = {"process": [], "address_space": []}
    for batch in side.give(watermark, "test"):
        columns = [batch[c.name].tolist() for c in batch.schema.columns]
        rows[batch.schema.name] += zip(*columns, strict=True)
    return side, strings, rows["process"], rows["address_space"]


def test_life_of_a_process() -> None:
    side, strings, processes, _ = band(
        comm(b"sh", 10, executed=True) + task(7, 20, 7, 9, 7) + comm(b"worker", 30, tid=9) + task(7, 40, 11, 11, 7)
        + task(4, 50, 7, 7, 1) + task(4, 60, 7, 9, 1) + task(4, 70, 11, 11, 7)
    )  # fmt: skip
    sh, worker = strings.code("sh"), strings.code("worker")
    assert processes == [  # time, pid, ppid, tid, event, name, code: the process ends with its last thread
        (10, 7, 0, 7, 3, sh, -1),
        (20, 7, 0, 9, 2, sh, -1),
        (30, 7, 0, 9, 5, worker, -1),
        (40, 11, 7, 11, 2, sh, -1),
        (60, 7, 0, 9, 4, sh, -1),
        (60, 7, 0, 7, 4, sh, 3),
        (70, 11, 7, 11, 4, sh, -1),
    ]
    assert side.live == {}


def test_cpus_are_put_in_order_before_they_are_understood() -> None:
    """A thread may be born on one CPU and end on another, whose ring is read first."""
    side, _, processes, _ = band(task(4, 50, 7, 9, 1), comm(b"a", 10) + task(7, 20, 7, 9, 7))
    assert [row[0] for row in processes] == [10, 20, 50]
    assert side.live[7].threads == {7}


def test_held_until_the_watermark() -> None:
    side, _, processes, spaces = band(comm(b"a", 10) + mmap2(0x1000, 0x1000, b"/x", 20) + comm(b"b", 30), watermark=20)
    assert (len(processes), len(spaces), side.holds) == (1, 1, True)
    assert [len(batch) for batch in side.give(30, "test")] == [1]
    assert not side.holds


def test_children_left_out() -> None:
    _, _, processes, _ = band(comm(b"a", 10) + task(7, 20, 11, 11, 7) + task(7, 30, 7, 8, 7), children=False)
    assert [(row[1], row[3]) for row in processes] == [(7, 7), (7, 8)]


def test_mappings_and_their_kinds() -> None:
    _, strings, _, spaces = band(
        comm(b"prog", 1, executed=True) + mmap2(0x400000, 0x1000, b"/bin/prog", 2, prot=5)
        + mmap2(0x401000, 0x1000, b"//anon", 3)  # .bss
        + mmap2(0x900000, 0x1000, b"//anon", 4)  # brk() tells of its first growth before it is the heap
        + mmap2(0x7F0000000000, 0x1000, b"//anon", 5) + mmap2(0x7F0000001000, 0x1000, b"[heap]", 6)
        + mmap2(0x7F0000002000, 0x1000, b"/memfd:\xff\x1b[31m (deleted)", 7, flags=1)
        + mmap2(0x7F0000003000, 0x1000, b"//toolong", 8) + mmap2(0x7F0000004000, 0x1000, b"[vdso]", 9)
    )  # fmt: skip
    told = [(hex(start), hex(end), offset, strings[file], dev, ino, KINDS[flags >> 8], flags & 15)
            for _, _, event, start, end, offset, file, dev, ino, flags in spaces]  # fmt: skip
    assert told == [
        ("0x400000", "0x401000", 0x2000, "/bin/prog", 0x801, 42, "file", 5),
        ("0x401000", "0x402000", 0, "[anon]", 0x801, 42, "anon", 3),
        ("0x900000", "0x901000", 0, "[heap]", 0x801, 42, "heap", 3),
        ("0x7f0000000000", "0x7f0000001000", 0, "[anon]", 0x801, 42, "anon", 3),
        ("0x7f0000001000", "0x7f0000002000", 0, "[heap]", 0x801, 42, "heap", 3),
        ("0x7f0000002000", "0x7f0000003000", 0x2000, "/memfd:\udcff\x1b[31m", 0x801, 42, "shared memory", 11),
        ("0x7f0000003000", "0x7f0000004000", 0, "", 0x801, 42, "other", 3),
        ("0x7f0000004000", "0x7f0000005000", 0, "[vdso]", 0x801, 42, "vdso", 3),
    ]


def test_loss_makes_live_processes_unknown() -> None:
    raw = comm(b"a", 10, executed=True) + record(2, 0, struct.pack("<QQ", 5, 123), 99) + comm(b"b", 100, pid=7)
    side, _, _, spaces = band(raw)
    assert (side.lost, side.stale) == (123, True)
    assert spaces == [(11, 7, 2, 0, (1 << 64) - 1, 0, 0, 0, 0, 0)]  # from the record before on


@given(st.binary(max_size=300), st.integers(0, 300))
def test_torn_and_hostile_records(noise: bytes, cut: int) -> None:
    good = comm(b"a", 10) + mmap2(0x1000, 0x1000, b"/x", 20) + task(7, 30, 9, 9, 7)
    band(good[:cut] + noise)
    band(noise, remaps=Remaps((1, 2, 3, 4), 0), shared=SharedSpaces(5))


def test_a_double_record_is_taken_once() -> None:
    _, _, processes, _ = band(comm(b"a", 10) * 2 + comm(b"a", 11))
    assert len(processes) == 2


# -- munmap and mremap -------------------------------------------------------------------------------------------------


def syscall(number: int, time_ns: int, *arguments: int, tid: int = 7) -> bytes:
    raw = struct.pack("<HBBiii", number, 0, 0, tid, 25, 0) + struct.pack(f"<{len(arguments)}Q", *arguments)
    raw += b"\0" * (-(len(raw) + 4) % 8)
    body = struct.pack("<IIQI", 7, tid, time_ns, len(raw)) + raw
    return struct.pack("<IHH", 9, 2, 8 + len(body)) + body


MUNMAP, UNMAPPED, MREMAP, RETURN = 705, 704, 707, 706
EINVAL = (1 << 64) - 22


def moves(*records: bytes) -> list[tuple[Any, ...]]:
    strings = Dictionary()
    anon = strings.code("[anon]")
    start = comm(b"a", 1, executed=True) + mmap2(0x10000, 0x4000, b"/data", 2, flags=1)
    _, _, _, spaces = band(start, *records, remaps=Remaps((MUNMAP, UNMAPPED, MREMAP, RETURN), anon))
    return [(time_ns, event, hex(begin), hex(end), offset, ino) for time_ns, _, event, begin, end, offset, _, _, ino, _
            in spaces[1:]]  # fmt: skip


def test_a_munmap_that_failed_is_not_believed() -> None:
    call = syscall(MUNMAP, 10, 0x10001, 0x1000)
    assert moves(call) == moves(call, syscall(UNMAPPED, 20, EINVAL)) == []
    # the return of another call, or of another thread, is not its own
    assert moves(call, syscall(RETURN, 20, 0)) == moves(call, syscall(UNMAPPED, 20, 0, tid=9)) == []
    assert moves(call, syscall(MREMAP, 12, 0x10000, 1, 1, 0, 0), syscall(UNMAPPED, 20, 0)) == []


def test_what_another_thread_maps_before_the_call_returns_stays() -> None:
    """munmap() and mremap() free their place before they return: it counts as free from their entry on."""
    again = mmap2(0x10000, 0x1000, b"/new", 15)
    assert moves(syscall(MUNMAP, 10, 0x10000, 1), again, syscall(UNMAPPED, 20, 0)) == [
        (10, 2, "0x10000", "0x11000", 0, 0),
        (15, 1, "0x10000", "0x11000", 0x2000, 42),
    ]
    moved = moves(syscall(MREMAP, 10, 0x10000, 0x1000, 0x1000, 1, 0), again, syscall(RETURN, 20, 0x90000))
    assert [row[:3] for row in moved] == [(10, 2, "0x10000"), (15, 1, "0x10000"), (20, 1, "0x90000")]


def test_grown_and_shrunk_in_its_place() -> None:
    """Nothing of what stays is unknown meanwhile."""
    grown = moves(syscall(MREMAP, 10, 0x10000, 0x4000, 0x8000, 0, 0), syscall(RETURN, 20, 0x10000))
    assert grown == [(20, 1, "0x10000", "0x18000", 0x2000, 42)]
    shrunk = moves(syscall(MREMAP, 10, 0x10000, 0x4000, 0x1000, 0, 0), syscall(RETURN, 20, 0x10000))
    assert shrunk == [(10, 2, "0x11000", "0x14000", 0, 0), (20, 1, "0x10000", "0x11000", 0x2000, 42)]


def test_unmapped_and_moved() -> None:
    assert moves(syscall(MUNMAP, 10, 0x10000, 1), syscall(UNMAPPED, 20, 0)) == [(10, 2, "0x10000", "0x11000", 0, 0)]
    call = syscall(MREMAP, 10, 0x11000, 0x1000, 0x3000, 1, 0)
    assert moves(call) == []
    assert moves(call, syscall(RETURN, 20, (1 << 64) - 12)) == []
    # what is moved keeps its file, from its own offset on; entry and return may be in different rings
    assert moves(syscall(RETURN, 20, 0x90000), call) == [
        (10, 2, "0x11000", "0x12000", 0, 0),
        (20, 1, "0x90000", "0x93000", 0x3000, 42),
    ]
    kept = syscall(MREMAP, 10, 0x11000, 0x1000, 0x1000, 1 | 4, 0)  # MREMAP_DONTUNMAP
    assert moves(kept, syscall(RETURN, 20, 0x90000)) == [(20, 1, "0x90000", "0x91000", 0x3000, 42)]
    unknown = syscall(MREMAP, 10, 0x777000, 0x1000, 0x2000, 1, 0)
    assert moves(unknown, syscall(RETURN, 20, 0x90000))[1] == (20, 1, "0x90000", "0x92000", 0, 0)


# -- shared address spaces ---------------------------------------------------------------------------------------------

NEW_TASK, CLONE_VM, CLONE_VFORK, CLONE_THREAD = 205, 0x100, 0x4000, 0x10000


def new_task(time_ns: int, flags: int, *, tid: int = 7, pid: int = 7) -> bytes:
    raw = struct.pack("<HBBii16s4xQh6x", NEW_TASK, 0, 0, tid, 11, b"child", flags, 0)
    raw += b"\0" * (-(len(raw) + 4) % 8)
    body = struct.pack("<IIQI", pid, tid, time_ns, len(raw)) + raw
    return struct.pack("<IHH", 9, 2, 8 + len(body)) + body


def mapped_by(*records: bytes) -> list[tuple[int, int]]:
    """(time, pid) of the rows of the address spaces."""
    _, _, _, spaces = band(comm(b"a", 1, executed=True), *records, shared=SharedSpaces(NEW_TASK))
    return [row[:2] for row in spaces]


def test_processes_that_share_memory_have_each_others_mappings() -> None:
    born = task(7, 10, 11, 11, 7)
    both = [mmap2(0x1000, 0x1000, b"/a", 20, pid=7), mmap2(0x2000, 0x1000, b"/b", 30, pid=11)]
    sharing = [(20, 7), (20, 11), (30, 7), (30, 11)]
    assert sorted(mapped_by(born, new_task(11, CLONE_VM), *both)) == sharing
    assert mapped_by(born, new_task(11, 0), *both) == [(20, 7), (30, 11)]
    # a thread is no process; the tracepoint is that of the thread that called
    assert mapped_by(born, new_task(11, CLONE_VM | CLONE_THREAD), *both) == [(20, 7), (30, 11)]
    assert mapped_by(born, new_task(11, CLONE_VM, tid=9), *both) == [(20, 7), (30, 11)]
    # until one of them executes a program, or ends
    vfork = born, new_task(11, CLONE_VM | CLONE_VFORK)
    executed = comm(b"b", 25, pid=11, executed=True)
    assert sorted(mapped_by(*vfork, both[0], executed, both[1])) == [*sharing[:2], (30, 11)]
    assert sorted(mapped_by(*vfork, task(4, 15, 11, 11, 7), *both)) == [(20, 7), (30, 11)]


def test_a_birth_belongs_to_the_process_that_was_told_of_just_before_it() -> None:
    """Those of all processes are seen, and those with memory of their own are not."""
    born = task(7, 10, 11, 11, 7)
    both = [mmap2(0x1000, 0x1000, b"/a", 20, pid=7), mmap2(0x2000, 0x1000, b"/b", 30, pid=11)]
    # an untraced process got the id that the traced thread had
    assert mapped_by(born, new_task(11, CLONE_VM, pid=99), *both) == [(20, 7), (30, 11)]
    # the process that shares memory is another one, whose own record was lost
    spaces = mapped_by(born + lost(1, 0) + new_task(13, CLONE_VM), *both)
    assert [row for row in spaces if row[0] >= 20] == [(20, 7), (30, 11)]


# -- privilege gained by exec ------------------------------------------------------------------------------------------


def test_a_program_that_gains_privilege_goes_on_untraced() -> None:
    """The kernel ends its trace right after it tells of the exec: that is no end of the process."""
    end = task(4, 12, 7, 7, 1)
    side, _, processes, _ = band(comm(b"su", 10, executed=True) + end)
    assert [row[4] for row in processes] == [PROCESS_EXEC]
    assert (side.privileged_programs, side.privileged_now(), side.privileged_now()) == (1, [7], [])
    assert 7 in side.live
    # what has mapped its image, or started a thread, has run
    for ran in (mmap2(0x1000, 0x1000, b"/x", 11), task(7, 11, 7, 8, 7), comm(b"new name", 11)):
        side, _, processes, _ = band(comm(b"a", 10, executed=True) + ran + end)
        assert side.privileged_programs == 0
