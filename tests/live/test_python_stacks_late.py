"""A CPython that a program starts when it has long been running: its stacks come late, and cost no record."""

import numpy as np
import pytest
from kit.fork_storm import ORPHANS, PAGES, fork_storm, touched
from kit.pythons import installed

from wstrace.schema import PROCESS_EXEC, STACK_HOW

OURS = [python for python in installed() if not python.root]
pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")


@pytest.mark.parametrize("unseen", [False, True])
def test_no_orphan_loses_its_events_when_stacks_are_opened(trace, tmp_path, unseen):
    """Its parent has ended when another process is met, and it is not known yet that it was born."""
    program = (
        "import mmap, time\nfor i in range(8): time.sleep(0.3); x = mmap.mmap(-1, 1 << 22); x.write(bytes(1 << 22))"
    )
    traced = trace([fork_storm(tmp_path, unseen=unseen), OURS[0].program, "-S", "-c", program])
    assert touched(traced.faults()) == (ORPHANS * PAGES, ORPHANS * PAGES)
    assert "exact" in {STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist()}
    traced.assert_balanced()


def test_what_a_short_process_ran_is_known_from_its_mappings(trace):
    """It has ended before anybody could look at it."""
    python = OURS[0].program
    traced = trace(["sh", "-c", f"for i in 1 2 3 4 5 6; do {python} -S -c pass; /bin/true; done"])
    names = {code: traced.context.strings[code] for code in set(traced.column("process", "name").tolist())}
    executed = traced.processes(PROCESS_EXEC)
    pythons = {int(row.pid) for row in executed if names[int(row.name)].startswith("python")}
    others = {int(row.pid) for row in executed} - pythons
    assert (len(pythons), len(others)) == (6, 7)
    pids, hows = traced.column("page_fault", "pid"), traced.column("page_fault", "stack_how")
    of_others = np.isin(pids, list(others))
    assert {STACK_HOW[how] for how in hows[of_others].tolist()} == {"no Python frame"}
