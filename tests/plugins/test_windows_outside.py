"""What is resident and in no working set: large pages and AWE's, and what is said where they are not known."""

import pytest
from fake_windows import FakeAllocation, FakeWindows

from wstrace.batch import Dictionary
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.working_set.backend import Totals
from wstrace_plugins.working_set.commands.snapshot import _totals
from wstrace_plugins.working_set.windows import outside
from wstrace_plugins.working_set.windows.backend import Space
from wstrace_plugins.working_set.working_set import read

PAGE, LARGE = 4096, outside.LARGE_PAGE
HEAP, AWE, BIG = 0x500000, 0x800000, 0x1000_0000
VALID, IS_LARGE = 1, 1 | 1 << 22 | 1 << 23


def machine():
    windows = FakeWindows()
    process = windows.process(7)
    process.allocations += [FakeAllocation(HEAP, 16 * PAGE), FakeAllocation(AWE, 16 * PAGE), FakeAllocation(BIG, LARGE)]
    process.working_set = {HEAP: 4, HEAP + 3 * PAGE: 4}
    process.attributes = {HEAP: VALID, HEAP + 3 * PAGE: VALID}
    return windows


def totals(windows):
    with Space(7, windows) as space:
        return read(space, Dictionary()).totals


def test_pages_that_are_valid_and_in_no_working_set_are_told():
    windows = machine()
    windows.processes[7].attributes |= {AWE + n * PAGE: VALID for n in range(5)}
    assert totals(windows) == Totals(2 * PAGE, None, 0, 5 * PAGE)
    with Space(7, windows) as space:
        assert "Resident in no working set (AWE?) 20.0 KiB" in _totals(read(space, Dictionary()))


def test_without_any_nothing_is_said_of_them():
    windows = machine()
    assert totals(windows) == Totals(2 * PAGE, None, 0, 0)
    with Space(7, windows) as space:
        told = _totals(read(space, Dictionary()))
    assert "AWE" not in told
    assert "not known" not in told


@pytest.mark.parametrize("leaves", [False, True])
def test_a_page_that_comes_while_it_is_asked_is_not_taken_for_one(leaves):
    """It was not listed, and is valid: the list that follows has it, or it has gone by then."""
    windows, place = machine(), HEAP + 7 * PAGE
    process, ask, asked = windows.processes[7], windows.QueryWorkingSetEx, []

    def faulting(*arguments):
        process.attributes[place] = 0 if asked and leaves else VALID
        asked.append(arguments)
        done = ask(*arguments)
        if not leaves:
            process.working_set[place] = 4
        return done

    windows.QueryWorkingSetEx = faulting
    process.allocations = process.allocations[:1]
    assert totals(windows).unlisted == 0
    assert asked


def test_what_is_mapped_shared_or_an_image_is_not_taken_for_awe():
    windows = machine()
    process = windows.processes[7]
    for n, kind in enumerate((winapi.MEM_IMAGE, winapi.MEM_MAPPED)):
        place = AWE + (n + 1) * LARGE
        process.allocations.append(FakeAllocation(place, PAGE, kind))
        process.attributes[place] = VALID
    assert totals(windows).unlisted == 0


def test_reserved_addresses_cost_nothing_of_what_may_be_asked():
    """A compiler's heap reserves terabytes: large pages are still known."""
    windows = machine()
    windows.processes[7].allocations.append(FakeAllocation(1 << 41, 60 << 40, state=winapi.MEM_RESERVE))
    windows.processes[7].attributes[BIG] = IS_LARGE
    assert totals(windows) == Totals(2 * PAGE, None, LARGE, 0)


def test_a_large_page_of_a_section_is_told():
    windows = machine()
    windows.processes[7].allocations.append(FakeAllocation(1 << 40, LARGE, winapi.MEM_MAPPED))
    windows.processes[7].attributes[1 << 40] = IS_LARGE
    assert totals(windows).large == LARGE


def test_a_large_page_is_asked_about_once():
    windows, asked = machine(), []
    windows.processes[7].attributes[BIG] = IS_LARGE
    ask = windows.QueryWorkingSetEx
    windows.QueryWorkingSetEx = lambda handle, buffer, size: asked.append(size // 16) or ask(handle, buffer, size)
    assert totals(windows).large == LARGE
    assert sum(asked) == 1 + 14 + 16 + 2  # the place for it, the pages that are not listed, those that are


@pytest.mark.parametrize(("bound", "value", "unknown"), [
    ("MOST_LARGE_PLACES", 0, ("Large pages", "Resident in no working set")),
    ("MOST_REGIONS", 2, ("Large pages", "Resident in no working set")),
    ("MOST_PAGES", 10, ("Resident in no working set",)),
])  # fmt: skip
def test_past_its_bounds_it_is_not_known(monkeypatch, bound, value, unknown):
    monkeypatch.setattr(outside, bound, value)
    assert totals(machine()).unknown == unknown


def test_where_the_extended_query_refuses_it_is_not_known():
    windows = machine()
    windows.QueryWorkingSetEx = lambda *_: windows._fail(winapi.ERROR_INVALID_PARAMETER)
    assert totals(windows) == Totals(2 * PAGE, None, None, None, ("Large pages", "Resident in no working set"))
