"""A CPython that a program starts when it has long been running: its stacks come late, and cost no record."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kit.fork_storm import ORPHANS, PAGES, fork_storm, touched
from kit.pythons import installed

from wstrace.schema import PROCESS_EXEC, STACK_HOW
from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import Interpreters

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


@pytest.mark.parametrize("library", [False, True])
def test_a_file_that_was_reported_of_is_known_in_every_process_that_executes_it(trace, tmp_path, library, monkeypatch):
    """No process needs to be looked at: it is known from its first fault on, or from its first in the library."""
    finder = Interpreters()
    where = [(one.program, finder.of_command(one.program, {})) for one in OURS]
    of_program = {name: Path(name).stat().st_size for name, _ in where}
    python = next((name for name, found in where if found and (found.file[0] != of_program[name]) == library), None)
    if python is None:
        pytest.skip(f"needs a CPython that is {'' if library else 'not '}in a library")
    monkeypatch.setattr(PythonStacks, "look", lambda self, pid, executed=0: None)
    again = f"import os; left = int(os.environ['LEFT']); os.environ['LEFT'] = str(left - 1); x = b'x' * (left << 20); \
left and os.waitpid(os.posix_spawn({python!r}, [{python!r}, '-S', '-c', os.environ['AGAIN']], os.environ), 0)"
    (tmp_path / "start").write_text(f"#!{python} -S\nimport os; os.environ |= dict(AGAIN={again!r}, LEFT='5'); {again}")
    (tmp_path / "start").chmod(0o755)
    traced = trace([tmp_path / "start"])
    hows = Counter(STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist())
    assert len(set(traced.column("page_fault", "pid").tolist())) == 6
    known = {"exact", "no Python frame", "frames not readable"}
    assert hows.keys() <= known, hows
    assert hows["exact"] > 1000
    # what was before the first frame and could not be read yet is proven only where it is read together with the rest
    assert hows["no Python frame"] + hows["frames not readable"] > 6 * 20
