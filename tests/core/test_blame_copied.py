"""What a row of blame says of the part of it that its faults copied."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, PAGE, SAVE, Script

from wstrace.schema import LOSS_FORKED, PAGE_EXCLUSIVE
from wstrace_exporters.console.blame_tables import table


@pytest.mark.parametrize(("others", "name"), [(0, "save app.py:40 (copied: loaded by load_frame app.py:31)"),
                                              (1, "save app.py:40 (50% copied: loaded by load_frame app.py:31)"),
                                              (11, "save app.py:40")])  # fmt: skip
def test_who_loaded_what_a_row_copied_is_told_with_its_share(others, name):
    script = Script()
    script.fault(10, ANON, APP)
    script.lose(30, LOSS_FORKED, pid=8, other=7)
    script.fault(40, ANON, SAVE, pid=8)
    for page in range(others):
        script.fault(50 + page, ANON + (page + 600) * PAGE, SAVE, pid=8)
    script.snapshot(90, (ANON, 1, PAGE_EXCLUSIVE), (ANON + 600 * PAGE, max(others, 1), PAGE_EXCLUSIVE), pid=8, number=8)
    script.snapshot(90, (ANON, 1, PAGE_EXCLUSIVE))
    told = script.blame()
    assert name in [row[-1] for row in table(told, "own line", told.rows("line"), 9).rows]
