"""The timeline of a composition: its figures are those of the rows, cut by the time of the arrival."""

import numpy as np
import pytest
from kit.blame_scripted import ANON, APP, FILE, IMPORT, PAGE, SAVE, Script

from wstrace.analysis.timeline import Timeline
from wstrace.schema import FAULT_MAJOR, LOSS_UNMAPPED, PAGE_EXCLUSIVE, PAGE_FILE, PAGE_SHARED

VIEWS = ("line", "function", "file", "package", "kind", "process", "cgroup", "thread")
SECOND = 1_000_000_000


def traced(begin: int = 0) -> Script:
    """4 pages at 1 s, of which one is gone at the end; 2 at 2 s; one from disk at 3 s with 3 around it, 1 by nobody."""
    script = Script()
    for page in range(4):
        script.fault(begin + SECOND + page, ANON + page * PAGE, APP)
    for page in range(8, 10):
        script.fault(begin + 2 * SECOND + page, ANON + page * PAGE, IMPORT)
    script.fault(begin + 3 * SECOND, FILE + 5 * PAGE, SAVE, flags=FAULT_MAJOR)
    script.lose(begin + 4 * SECOND, LOSS_UNMAPPED, start=ANON + 3 * PAGE, end=ANON + 4 * PAGE)
    script.snapshot(begin + 5 * SECOND, (ANON, 3, PAGE_EXCLUSIVE), (ANON + 8 * PAGE, 3, PAGE_EXCLUSIVE),
                    (FILE + 4 * PAGE, 4, PAGE_FILE | PAGE_SHARED))  # fmt: skip
    return script


@pytest.mark.parametrize("view", VIEWS)
def test_all_times_together_are_the_rows(view):
    shown = traced().blame()
    over = Timeline(shown, np.arange(0, 7, dtype=np.uint64) * np.uint64(SECOND)).by(view)
    rows = {row.whole: row for row in shown.rows(view)}
    for at, row in enumerate(over.rows):
        whole = rows.pop(row.whole, None)
        figures = [over.faults[at].sum(), over.from_disk[at].sum(), over.brought[at].sum() + over.untimed[at],
                   over.resident[at].sum() + over.untimed[at]]  # fmt: skip
        expected = [whole[name] for name in ("faults", "from_disk", "brought", "resident")] if whole else [0, 0, 0, 0]
        assert figures == expected
    assert not rows


def test_what_came_at_none_of_the_times_is_distinguished():
    over = Timeline(traced().blame(), np.arange(3, dtype=np.uint64)).by("kind")
    assert (over.faults.sum(), over.untimed.sum()) == (0, 10 * PAGE)
