"""pagemap entries to runs: against a page-by-page decoding in plain Python, on any system."""

import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace import schema
from wstrace.interfaces import Context
from wstrace.testing import SourceContract
from wstrace_plugins.os.intervals import cut, overlap, without
from wstrace_plugins.os.linux.pagemap import IS_HUGE, IS_PFNZERO, PAGE, REGION
from wstrace_plugins.working_set.linux import pagemap_runs, pageout, smaps
from wstrace_plugins.working_set.source import WorkingSetSource
from wstrace_plugins.write_watch.source import WriteWatchSource

PRESENT, SWAPPED, FILE, EXCLUSIVE = 1 << 63, 1 << 62, 1 << 61, 1 << 56
NOISE = 1 << 55 | 1 << 57 | 0x1234  # soft-dirty, uffd-wp, a frame number: no business of a run
STATES = (0, PRESENT | EXCLUSIVE, PRESENT | FILE, PRESENT | FILE | EXCLUSIVE, PRESENT, SWAPPED, NOISE,
          PRESENT | EXCLUSIVE | NOISE)  # fmt: skip
BASE = 0x7000_0000_0000

layouts = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from((1, 3, 5, 7, 9, 11)), st.lists(st.sampled_from(STATES), min_size=1)),
    min_size=1,
    max_size=6,
)


class Memory:
    """Mappings (gap before it, flags, entries of its pages) laid out from BASE, read as Pagemap.entries does."""

    def __init__(self, layout) -> None:
        at, start, end, self.entries = BASE, [], [], {}
        for gap, _, states in layout:
            at += gap * PAGE
            start.append(at)
            for state in states:
                self.entries[at] = state
                at += PAGE
            end.append(at)
        self.mappings = {"start": np.array(start, "<u8"), "end": np.array(end, "<u8"),
                         "flags": np.array([flags for _, flags, _ in layout], "<u2")}  # fmt: skip

    def read(self, start: np.ndarray, pages: np.ndarray) -> np.ndarray:
        spans = zip(start.tolist(), pages.tolist(), strict=True)
        return np.array([self.entries.get(at + i * PAGE, 0) for at, n in spans for i in range(n)], "<u8")

    def regions(self, zero: set[int]):
        held = [a for a, e in self.entries.items() if e & (PRESENT | SWAPPED)]
        return np.array([(a, a + PAGE, IS_PFNZERO * (a in zero)) for a in held], REGION)


def expected(memory: Memory, zero: set[int]) -> dict[int, int]:
    """address -> flags, a page at a time."""
    found = {}
    rows = zip(*(memory.mappings[n].tolist() for n in ("start", "end", "flags")), strict=True)
    for start, end, mapping in rows:
        for at in range(start, end, PAGE):
            e = memory.entries[at]
            if not e & (PRESENT | SWAPPED):
                continue
            shared = bool(mapping & schema.MAP_SHARED)
            present, file, exclusive = bool(e & PRESENT), bool(e & FILE), bool(e & EXCLUSIVE)
            if present and shared and not file and not exclusive:
                continue
            flags = mapping & 7
            flags |= schema.PAGE_FILE * file | schema.PAGE_EXCLUSIVE * exclusive
            flags |= schema.PAGE_SWAPPED * bool(e & SWAPPED) | schema.PAGE_ZERO * (present and at in zero)
            flags |= schema.PAGE_SHARED * (present and not exclusive and at not in zero)
            writable = bool(mapping & schema.MAP_WRITE) and not shared
            flags |= schema.PAGE_COPY_ON_WRITE * (present and writable and (file or not exclusive or at in zero))
            found[at] = flags
    return found


@given(layouts, st.integers(1, 7), st.randoms())
@settings(max_examples=200)
def test_runs_say_what_each_page_says(layout, chunk, random):
    memory = Memory(layout)
    plain = [a for a, e in memory.entries.items() if e & PRESENT and not e & (FILE | EXCLUSIVE)]
    zero = {a for a in plain if random.random() < 0.5}
    was = pagemap_runs.CHUNK
    pagemap_runs.CHUNK = chunk  # runs must not depend on how it is read
    try:
        found = pagemap_runs.read(memory.read, memory.mappings, memory.regions(zero))
    finally:
        pagemap_runs.CHUNK = was
    runs = pagemap_runs.attributes(found, memory.mappings, memory.regions(zero), *np.zeros((2, len(layout)), bool))
    pages = {}
    for start, n, flags, row in zip(*(runs[c].tolist() for c in ("start", "pages", "flags", "row")), strict=True):
        assert memory.mappings["start"][row] <= start
        assert start + n * PAGE <= memory.mappings["end"][row]
        for i in range(n):
            pages[start + i * PAGE] = flags
    assert pages == expected(memory, zero)
    assert list(pages) == sorted(pages)
    borders = zip(runs["start"][1:].tolist(), (runs["start"] + runs["pages"] * np.uint64(PAGE)).tolist(), strict=False)
    same = (runs["flags"][1:] == runs["flags"][:-1]) & (runs["row"][1:] == runs["row"][:-1])
    assert not any(alike and start == end for alike, (start, end) in zip(same, borders, strict=False)), "not joined"


def test_huge_pages_and_locked_mappings_have_their_flags():
    memory = Memory([(0, 3, [PRESENT | EXCLUSIVE] * 6)])
    regions = np.array([(BASE + at * PAGE, BASE + (at + 2) * PAGE, IS_HUGE * (at == 2)) for at in (0, 2, 4)], REGION)
    found = pagemap_runs.read(memory.read, memory.mappings, regions)
    runs = pagemap_runs.attributes(found, memory.mappings, regions, np.array([True]), np.array([False]))
    assert runs["pages"].tolist() == [2, 2, 2]
    assert ((runs["flags"] & schema.PAGE_HUGE) != 0).tolist() == [False, True, False]
    assert (runs["flags"] & schema.PAGE_LOCKED).all()


MARKER = SWAPPED | 31  # a swap entry of the last type; behind it which marker: Linux include/linux/swapops.h
HIDDEN = 1 << 57  # uffd-wp: what an unprivileged reader sees of a marker of write protection, and of a page behind one


@pytest.mark.parametrize(
    ("entry", "flags"),
    [
        (SWAPPED | 1 << 58, schema.PAGE_GUARD),  # MADV_GUARD_INSTALL, Linux 6.15 and later
        (MARKER | 4 << 5, schema.PAGE_GUARD),  # the same where the kernel has no bit for it, read by root
        (MARKER | 4 << 5 | 1 << 58, schema.PAGE_GUARD),
        (MARKER | 1 << 5 | HIDDEN, None),  # write-protected by a userfaultfd, and nothing there
        (MARKER | 2 << 5, None),  # poisoned
        (SWAPPED | 17 << 5 | 3, schema.PAGE_SWAPPED),  # swap space 3, page 17
        (SWAPPED | 17 << 5 | 3 | HIDDEN, schema.PAGE_SWAPPED),
        (SWAPPED, schema.PAGE_SWAPPED),  # read without privilege
        (SWAPPED | HIDDEN, None),
    ],
)
def test_what_seems_swapped_and_is_not(entry, flags):
    memory = Memory([(0, 1, [PRESENT | EXCLUSIVE, entry, entry, PRESENT | EXCLUSIVE])])
    found = pagemap_runs.read(memory.read, memory.mappings, None)
    runs = pagemap_runs.attributes(found, memory.mappings, None, np.array([False]), np.array([False]))
    assert runs["pages"].tolist() == ([1, 2, 1] if flags else [1, 1])
    kinds = runs["flags"] & (schema.PAGE_GUARD | schema.PAGE_SWAPPED)
    assert kinds.tolist() == ([0, flags, 0] if flags else [0, 0])


def test_pagemap_that_ends_early_is_said():
    memory = Memory([(0, 1, [PRESENT] * 4)])
    with pytest.raises(EOFError):
        pagemap_runs.read(lambda start, pages: np.zeros(1, "<u8"), memory.mappings, None)


ranges = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=8)


def laid(steps) -> tuple[np.ndarray, np.ndarray]:
    start, end, at = [], [], 10
    for gap, length in steps:
        start.append(at + gap)
        at += gap + length
        end.append(at)
    return np.array(start, "<u8"), np.array(end, "<u8")


@given(ranges, ranges)
def test_intervals_against_sets(ours, others):
    ours, others = laid(ours), laid(others)
    covered = {x for a, b in zip(*others, strict=True) for x in range(int(a), int(b))}
    sets = [set(range(int(a), int(b))) for a, b in zip(*ours, strict=True)]
    assert overlap(*ours, *others).tolist() == [len(s & covered) for s in sets]
    low, high, each = without(*ours, *others)
    for i, s in enumerate(sets):
        got = [set(range(int(a), int(b))) for a, b, e in zip(low, high, each, strict=True) if e == i]
        assert sum(map(len, got)) == len(s - covered)
        assert set().union(*got) == s - covered
    borders = np.union1d(*others).astype("<u8")
    low, high, each = cut(*ours, borders)
    assert int((high - low).sum()) == sum(map(len, sets))
    assert not any(((borders > a) & (borders < b)).any() for a, b in zip(low, high, strict=True))


def test_why_a_page_stayed():
    kinds = np.array([schema.KIND_FILE, schema.KIND_ANON, schema.KIND_VDSO], "<u2") << schema.KIND_SHIFT
    flags = [schema.PAGE_FILE | schema.PAGE_EXCLUSIVE, schema.PAGE_FILE | schema.PAGE_SHARED,
             schema.PAGE_EXCLUSIVE, schema.PAGE_EXCLUSIVE | schema.PAGE_LOCKED, schema.PAGE_FILE]  # fmt: skip
    runs = {"flags": np.array(flags, "<u2"), "row": np.array([0, 0, 1, 1, 2], "<u4")}
    codes, reasons = pageout.why_stayed({"flags": kinds}, runs)
    said = [reasons[code] for code in codes.tolist()]
    expected = ("kept by the kernel", "other processes", "no swap space", "mlock", "own page")
    assert all(words in reason for words, reason in zip(expected, said, strict=True))


def test_smaps_is_split_where_the_kernel_splits_it(tmp_path):
    """A file's name may hold any character but a newline: a page feed is none."""
    text = ("00400000-00401000 r-xp 00000000 08:01 1 /q\fzz-1 rw\x1cVmFlags: lo\u2028VmFlags: ht\rSwap: 4 kB\n"
            "Rss: 4 kB\nSwap:                8 kB\nVmFlags: rd\n").encode()  # fmt: skip
    for content, fields in ((text, {0x400000: {b"Rss": [b"4", b"kB"], b"VmFlags": [b"rd"]}}),
                            (b"VmFlags: rd\n\xff\xfe-\n", {})):  # fmt: skip
        (tmp_path / "smaps").write_bytes(content)
        with (tmp_path / "smaps").open("rb") as file:
            assert smaps.parse(file.fileno()) == fields


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux here: the Windows suite has its own")


@LINUX
class TestWorkingSet(SourceContract):
    def make(self) -> WorkingSetSource:
        return WorkingSetSource(interval=0)

    def context(self) -> Context:
        from wstrace_plugins.os.linux.backend import LinuxPlatform

        return Context(targets=(LinuxPlatform().attach(os.getpid()),), children=False)


@LINUX
class TestWorkingSetKeptToTheEnd(TestWorkingSet):
    def make(self) -> WorkingSetSource:
        return WorkingSetSource(interval=0.01)


@LINUX
class TestWriteWatch(SourceContract):
    def make(self) -> WriteWatchSource:
        return WriteWatchSource(interval=0.01)
