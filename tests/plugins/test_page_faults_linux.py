"""The Linux half without a kernel: golden records, merging, loss."""

import errno
import os
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.side_band_records import lost

from wstrace.errors import Unavailable, UsageError
from wstrace_plugins.page_faults import Stacks, parse_stacks
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux import samples as records
from wstrace_plugins.page_faults.linux.events import Settings
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, SIDE
from wstrace_plugins.page_faults.linux.samples import RingSamples, merge

[PAGE_SIZE] = [field for field in perf.SAMPLE_FIELDS if field.column == "page_size"]


def sample(time_ns: int, *, va: int = 0x7000, pid: int = 7, tid: int = 8, pc: int = 0x400, misc: int = 2) -> bytes:
    return struct.pack("<IHHQIIQQ", 9, misc, 40, pc, pid, tid, time_ns, va)


def take(samples: RingSamples, *rows: bytes, armed: int = 0, now: int = 10**9, doubled: bool = False) -> None:
    samples.take(np.frombuffer(b"".join(rows), np.uint8), armed, now, doubled=doubled)


def times(samples: RingSamples) -> list[int]:
    return [time_ns for rows in samples.released(1 << 63) for time_ns in rows[:, 3].tolist()]


def test_attributes_are_those_of_the_header():
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
    [sized] = Settings(fields=(perf.CGROUP, PAGE_SIZE)).attributes(MAJOR, lost=False)
    assert sized["sample_type"] == 1 | 2 | 4 | 8 | 1 << 21 | 1 << 22


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
        (errno.EMFILE, errno.EINVAL, 1, "0", "Too many open files; allow more open files: ulimit -n"),
    ],
)
def test_what_a_refusal_means(monkeypatch, number, answer, paranoid, capabilities, why):
    """answer: what the system says to flags that no kernel knows; EINVAL is the kernel's own."""
    monkeypatch.setattr(perf.procfs, "setting", lambda path: paranoid)
    monkeypatch.setattr(perf.procfs, "status", lambda pid: {"CapEff": capabilities, "Seccomp": "2"})
    monkeypatch.setattr(perf.libc, "syscall", lambda *arguments: -1)
    monkeypatch.setattr(perf.libc, "last_error", lambda: OSError(answer, os.strerror(answer)))
    refused = perf.refusal(OSError(number, os.strerror(number), "perf_event_open"))
    assert isinstance(refused, Unavailable)
    assert why in str(refused)
    assert "\n" not in str(refused)


def test_loss_is_counted_and_taken_out():
    samples = RingSamples(major=False)
    take(samples, sample(10), lost(5, 20), sample(30), lost(7, 40))
    assert (samples.lost, times(samples)) == (12, [10, 30])
    take(samples, struct.pack("<IHHQQQQ", 77, 0, 40, 1, 2, 3, 4), sample(50), b"torn")
    assert times(samples) == [50]


def test_samples_with_more_behind_them_are_read_at_once_and_beside_a_loss():
    def sized(time_ns: int, size: int) -> bytes:
        return sample(time_ns).replace(struct.pack("<H", 40), struct.pack("<H", 48), 1) + struct.pack("<Q", size)

    for between in ((), (lost(5, 20),)):
        samples = RingSamples(major=False, fields=(PAGE_SIZE,))
        take(samples, sized(10, 4096), *between, sized(30, 2 << 20))
        columns = merge([samples], 1 << 63)
        assert (columns["time_ns"].tolist(), columns["page_size"].tolist()) == ([10, 30], [4096, 2 << 20])
        assert columns["page_size"].dtype == "<u4"


JUNK = st.lists(st.sampled_from([sample(7), sample(8)[:8], b"\0" * 8, b"\xff" * 8]), max_size=4).map(b"".join)
RECORD = st.tuples(st.sampled_from([1, 2, 4, 9, 10]), st.sampled_from([1, 2]), st.integers(0, 2**32 - 1), JUNK)


@given(st.lists(RECORD, max_size=30), st.binary(max_size=50))
def test_records_are_split_as_a_walk_over_their_sizes_does(parts, torn):
    ring, walked = b"", []
    for kind, misc, word, junk in parts:
        walked.append(len(ring) // 8)
        ring += struct.pack("<IHHQ", kind, misc, 16 + len(junk), word) + junk
    begins, end = records.starts(np.frombuffer(ring, "<u8"))
    assert (begins.tolist(), end) == (walked, len(ring) // 8)
    table = records.record_rows(np.frombuffer(ring + torn, np.uint8))  # whatever comes: no error, no endless loop
    assert len(table) >= len(walked)


def test_foreign_times_are_counted_and_taken_out():
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
    assert (samples.foreign, times(samples)) == (3, [100, 200])


def test_doubles_are_kept_once_over_drains_too():
    samples = RingSamples(major=False)
    take(samples, sample(10), sample(10), sample(10), sample(10, va=0x8000), sample(11), doubled=True)
    take(samples, sample(11), sample(12), sample(12), doubled=True)
    assert (samples.duplicates, times(samples)) == (4, [10, 10, 11, 12])
    take(samples, sample(13), sample(13))
    assert len(times(samples)) == 2  # nobody was armed twice: the same fault may come again


@given(
    st.lists(st.lists(st.integers(0, 200), max_size=30).map(sorted), min_size=1, max_size=6),
    st.lists(st.integers(0, 200), max_size=5).map(sorted),
)
def test_merging_up_to_watermarks_keeps_all_in_order(rings, marks):
    all_samples = [RingSamples(major=bool(i % 2)) for i in range(len(rings))]
    for number, (samples, times) in enumerate(zip(all_samples, rings, strict=True)):
        take(samples, *(sample(t, tid=number, va=i) for i, t in enumerate(times)))
    got = []
    for mark in [*marks, 1 << 63]:
        columns = merge(all_samples, mark)
        assert all(t <= mark for t in columns["time_ns"].tolist())
        got += zip(*(columns[name].tolist() for name in ("time_ns", "tid", "va", "flags")), strict=True)
    every = [(t, n, i, n % 2) for n, times in enumerate(rings) for i, t in enumerate(times)]
    assert [row[0] for row in got] == sorted(row[0] for row in every)
    assert sorted(got) == sorted(every)
    assert sum(samples.recorded for samples in all_samples) == len(every)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Stacks(python=True, native=True, required=False)),
        ("none", Stacks()),
        ("python", Stacks(python=True)),
        ("native", Stacks(native=True)),
        ("Python+native", Stacks(python=True, native=True)),
        ("native+python", Stacks(python=True, native=True)),
    ],
)
def test_the_words(text, expected):
    assert parse_stacks(text) == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("pyton", "page_faults: stacks=pyton: 'pyton' is none", "did you mean 'python'?"),
        ("", "page_faults: stacks=: '' is none", "known: auto, native, none, python"),
        ("python+auto", "page_faults: stacks=python+auto: 'auto' stands alone", "write stacks=auto"),
        ("none+native", "page_faults: stacks=none+native: 'none' stands alone", "write stacks=none"),
    ],
)
def test_what_is_no_word_is_refused(text, message, hint):
    with pytest.raises(UsageError) as refused:
        parse_stacks(text)
    assert (refused.value.why, refused.value.remedy) == (message, hint)


@pytest.mark.skipif(sys.platform != "linux", reason="the event is Linux's")
def test_native_stacks_are_refused_on_another_machine_with_its_name(monkeypatch):
    from wstrace_plugins.page_faults.linux.events import StackRate, stack_attributes

    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(Unavailable, match="on x86_64 only, this machine is aarch64"):
        stack_attributes(StackRate(2000), (), {})
