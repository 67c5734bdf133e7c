"""QueryWorkingSet, QueryWorkingSetEx and EmptyWorkingSet: decoded words, and a stand-in that keeps their contract."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.fake_windows import FakeAllocation, FakeWindows

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import (
    PAGE_COPY_ON_WRITE,
    PAGE_EXCLUSIVE,
    PAGE_EXECUTE,
    PAGE_FILE,
    PAGE_GUARD,
    PAGE_HUGE,
    PAGE_LOCKED,
    PAGE_READ,
    PAGE_SHARED,
    PAGE_WRITE,
)
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.process import listed
from wstrace_plugins.working_set.sections import sectioned
from wstrace_plugins.working_set.windows import blocks as windows_blocks
from wstrace_plugins.working_set.windows.backend import REASONS, Space
from wstrace_plugins.working_set.windows.backend import listed as of_ps
from wstrace_plugins.working_set.working_set import read

PAGE, LARGE_PAGE = 4096, 2 << 20
EXE, HEAP, BIG = 0x400000, 0x500000, 0x10000000


def machine():
    windows = FakeWindows()
    process = windows.process(7)
    process.allocations += [
        FakeAllocation(EXE, 0x100000, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY,
                       "\\Device\\HarddiskVolume3\\app.exe"),
        FakeAllocation(HEAP, 0x100000),
        FakeAllocation(BIG, 4 * LARGE_PAGE),
    ]  # fmt: skip
    # unsorted, as Windows gives them: the article's pages, two adjacent ones, and a page of the kernel's
    process.working_set = {0x00500000: 4, 0x00480000: 0x101, 0x00400000: 0x103, 0x00402000: 0x103, 0x00401000: 0x103}
    return windows


def test_runs_with_their_owners():
    windows = machine()
    strings = Dictionary()
    with Space(7, windows) as space:
        mappings = space.mappings(strings)
        assert "shares" not in space.runs(mappings)
        runs = space.runs(mappings, shares=True)
        assert int(runs["pages"].sum()) * PAGE == 5 * PAGE
    names = [strings[int(mappings["file"][row])] for row in runs["row"]]
    assert list(zip(runs["start"].tolist(), runs["pages"].tolist(), names, strict=True)) == [
        (0x400000, 3, "C:\\app.exe"), (0x480000, 1, "C:\\app.exe"), (0x500000, 1, "[anon]"),
    ]  # fmt: skip
    assert runs["flags"].tolist() == [
        PAGE_READ | PAGE_EXECUTE | PAGE_SHARED | PAGE_FILE, PAGE_READ | PAGE_SHARED | PAGE_FILE,
        PAGE_READ | PAGE_WRITE | PAGE_EXCLUSIVE,
    ]  # fmt: skip
    assert {name: str(c.dtype) for name, c in runs.items()} == {
        "start": "uint64", "pages": "uint32", "flags": "uint16", "shares": "uint8", "row": "uint32"
    }  # fmt: skip
    assert not windows.handles


@pytest.mark.parametrize("code", [winapi.ERROR_BAD_LENGTH, winapi.ERROR_NOACCESS])
def test_a_working_set_that_grows_while_it_is_read(code):
    """A buffer that is too small may be reported in two ways."""
    windows = machine()
    windows.small_code = code
    windows.GetProcessMemoryInfo = lambda *_: 0  # so that the first buffer is too small

    class Growing(FakeWindows):
        def QueryWorkingSet(self, handle, buffer, size):
            done = FakeWindows.QueryWorkingSet(self, handle, buffer, size)
            if not done:
                have = len(self.processes[7].working_set)
                self.processes[7].working_set |= {BIG + n * PAGE: 4 for n in range(have, have + 300)}
            return done

    windows.__class__ = Growing
    windows.processes[7].working_set |= {BIG + n * PAGE: 4 for n in range(20_000)}
    with Space(7, windows) as space:
        assert len(space.query()) == len(windows.processes[7].working_set)


def test_pages_of_the_kernel_and_of_freed_memory_have_a_row():
    windows = machine()
    windows.processes[7].working_set |= {KERNEL + 0x1000: 4, KERNEL + 0x500000: 4, KERNEL + 0x501000: 4, 0x30000000: 4}
    strings = Dictionary()
    with Space(7, windows) as space:
        mappings = space.mappings(strings)
        runs = space.runs(mappings)
        assert space.uncounted()[0] == 3 * PAGE
    owners = {int(s): strings[int(mappings["file"][row])] for s, row in zip(runs["start"], runs["row"], strict=True)}
    assert owners[KERNEL + 0x500000] == owners[KERNEL + 0x1000] == "[kernel]"
    assert owners[0x30000000] == ""
    assert int(runs["pages"].sum()) == 9
    assert all(mappings["start"][1:] >= mappings["end"][:-1])


def test_emptying_tells_what_stayed_and_why():
    windows = machine()
    process = windows.processes[7]
    process.stubborn = frozenset({0x401000, 0x500000})
    process.attributes = {0x401000: 1 | 1 << 22, 0x500000: 1 << 22}  # of an invalid page that bit means nothing
    with Space(7, windows) as space:
        mappings = space.mappings(Dictionary())
        space.empty(mappings, space.runs(mappings))
        mappings = space.mappings(Dictionary())
        still = space.runs(mappings)
        codes, reasons = space.why_stayed(mappings, still)
    assert still["start"].tolist() == [0x401000, 0x500000]
    assert [reasons[c] for c in codes] == [REASONS[1], REASONS[0]]
    assert not windows.handles


def test_emptying_needs_the_right():
    windows = machine()
    with Space(7, windows) as space:
        windows.processes[7].denied = True
        mappings = space.mappings(Dictionary())
        with pytest.raises(Unavailable, match=r"ERROR_ACCESS_DENIED.*--debug-privilege"):
            space.empty(mappings, space.runs(mappings))
    with pytest.raises(Unavailable, match=r"OpenProcess of pid 7 .*--debug-privilege"):
        Space(7, windows)


def test_a_right_that_is_taken_from_the_handle_is_no_missing_elevation():
    windows = machine()
    with Space(7, windows) as space:
        windows.handles = dict.fromkeys(windows.handles, (7, winapi.SYNCHRONIZE))
        with pytest.raises(Unavailable, match="QueryWorkingSet of pid 7 failed with 5 ") as refused:
            space.mappings(Dictionary())
    assert refused.value.remedy == winapi.STRIPPED


def test_a_process_that_ends_meanwhile():
    windows = machine()
    with Space(7, windows) as space:
        windows.processes[7].exited = True
        windows.QueryWorkingSet = lambda *_: windows._fail(winapi.ERROR_PARTIAL_COPY)
        with pytest.raises(TargetExited, match="ended while it was read"):
            space.mappings(Dictionary())
    with pytest.raises(TargetExited):
        Space(8, windows)
    assert not windows.handles


NODE = 1 << 9
KERNEL = 0xFFFF_F680_0000_0000


def taken_of(windows, **options):
    with Space(7, windows) as space:
        return read(space, Dictionary(), **options)


@pytest.mark.parametrize("node", [1, 7])
def test_the_bits_of_the_numa_node_say_nothing_of_locked_or_large(node):
    windows = machine()
    process = windows.processes[7]
    process.working_set = {address: bits | node * NODE for address, bits in process.working_set.items()}
    process.working_set[0x402000] |= 7 * NODE  # a page of another node does not tear a run
    taken = taken_of(windows)
    assert taken.runs["start"].tolist() == [0x400000, 0x480000, 0x500000]
    assert not (taken.runs["flags"] & (PAGE_LOCKED | PAGE_HUGE)).any()


def test_runs_are_joined_whatever_their_share_counts_unless_these_are_requested():
    windows = machine()
    process = windows.processes[7]
    process.working_set = {EXE + n * PAGE: 0x103 | (n % 7 + 1) << 5 for n in range(9)}
    assert taken_of(windows).runs["pages"].tolist() == [9]
    shared = taken_of(windows, shares=True).runs
    assert shared["pages"].tolist() == [1] * 9
    assert shared["shares"].tolist() == [1, 2, 3, 4, 5, 6, 7, 1, 2]


def test_private_and_shared_and_page_tables_are_the_total():
    windows = machine()
    tables = [KERNEL, KERNEL + 0x100000]
    windows.processes[7].working_set |= dict.fromkeys(tables, 4)
    taken = taken_of(windows)
    assert taken.page_table_bytes == 2 * PAGE
    assert taken.private_bytes == PAGE
    assert taken.shared_bytes == 4 * PAGE
    assert taken.private_bytes + taken.shared_bytes + taken.page_table_bytes == taken.total_bytes
    for owners in (taken.by("module"), taken.by("kind"), taken.by("mapping"), sectioned(taken).by("module")):
        assert sum(owner.private for owner in owners) == taken.private_bytes
        assert sum(owner.shared for owner in owners) == taken.shared_bytes
        assert sum(owner.tables for owner in owners) == taken.page_table_bytes


def test_pages_of_the_kernel_are_not_put_to_the_extended_query():
    windows = machine()
    windows.processes[7].working_set |= {KERNEL: 4}
    windows.processes[7].attributes = {0x401000: 1 | 1 << 22}
    original = FakeWindows.QueryWorkingSetEx

    def strict(handle, buffer, size):
        rows = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint64 * (size // 8)).from_address(buffer))[::2]
        return windows._fail(winapi.ERROR_INVALID_PARAMETER) if (rows >> 63).any() else original(
            windows, handle, buffer, size)  # fmt: skip

    windows.QueryWorkingSetEx = strict
    taken = taken_of(windows)
    assert (taken.runs["flags"] & PAGE_LOCKED != 0).sum() == 1


def test_a_token_that_is_refused_is_someone_elses():
    windows = machine()
    windows.process(1)
    with Space(7, windows) as space:
        assert space.owned()
        windows.processes[7].token_denied = True
        assert not space.owned()
        windows.processes[7].token_denied = False
        windows.processes[7].user = "SYSTEM"
        assert not space.owned()
    assert not windows.handles


def test_the_listing_has_processes_that_nobody_may_open():
    windows = machine()
    windows.process(4, name="", parent=7, denied=True).working_set = {0x1000: 4}
    windows.process(8, name="svchost.exe", denied=True).working_set = {0x1000: 4, 0x2000: 4}
    assert listed(windows) == [
        (7, 0, "app.exe", 5 * PAGE, 100), (4, 7, "pid 4", PAGE, 100), (8, 0, "svchost.exe", 2 * PAGE, 100)
    ]  # fmt: skip
    assert [row[0] for row in of_ps(windows)] == [7, 4, 8]
    windows.no_listing = True
    with pytest.raises(Unavailable, match="NtQuerySystemInformation failed with 317"):
        listed(windows)
    assert not windows.handles


@pytest.mark.parametrize(("protection", "flags"), [
    (0, 0), (1, PAGE_READ), (2, PAGE_EXECUTE), (3, PAGE_READ | PAGE_EXECUTE), (4, PAGE_READ | PAGE_WRITE),
    (5, PAGE_READ | PAGE_WRITE | PAGE_COPY_ON_WRITE), (6, PAGE_READ | PAGE_WRITE | PAGE_EXECUTE),
    (7, PAGE_READ | PAGE_WRITE | PAGE_EXECUTE | PAGE_COPY_ON_WRITE),
])  # fmt: skip
def test_every_protection(protection, flags):
    words = np.array([protection, protection + 8, protection + 16, protection + 24], "<u8")
    assert windows_blocks.flags(words).tolist() == [  # + 8 no-cache, + 16 guard, + 24 write-combined
        flags | PAGE_EXCLUSIVE, flags | PAGE_EXCLUSIVE, flags | PAGE_GUARD | PAGE_EXCLUSIVE, flags | PAGE_EXCLUSIVE,
    ]  # fmt: skip


def brute_runs(blocks, borders):
    rows = []
    for word in blocks:
        last = rows[-1] if rows else None
        if last and word == last[0] + last[1] * PAGE and word // PAGE * PAGE not in borders:
            last[1] += 1
        else:
            rows.append([word, 1])
    return [tuple(row) for row in rows]


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 4, 0x103])), unique_by=lambda p: p[0], min_size=1),
       st.sets(st.integers(0, 60)))  # fmt: skip
@settings(max_examples=100)
def test_runs_are_those_of_a_plain_loop(pages, borders):
    blocks = np.sort(np.array([n * PAGE | bits for n, bits in pages], "<u8"))
    starts = np.array(sorted(b * PAGE for b in borders), "<u8")
    index, counts = windows_blocks.runs(blocks, starts)
    assert list(zip(blocks[index].tolist(), counts.tolist(), strict=True)) == brute_runs(
        blocks.tolist(), set(starts.tolist())
    )
