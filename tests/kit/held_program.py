"""wstrace that makes a file when it holds the memory of a program: `python held_program.py FILE PROGRAM WORDS...`

A program that waits for that file ends neither before it is held nor later than it must.
"""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from wstrace.errors import TargetExited
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.working_set.peak import FinalSnapshotSource


def telling(file: str, program: str) -> Callable[[FinalSnapshotSource], None]:
    """FinalSnapshotSource._hold() that makes the file when it holds a target that has executed the program before.

    While execve() goes on, the process has the program's memory and still the name of the one before: what is held
    then is known by a name that is not its own, until it is looked at again.
    """
    hold = FinalSnapshotSource._hold

    def held(self):
        before, target, executed = self._space, self._target, False
        if target is None:
            return
        with contextlib.suppress(OSError, TargetExited):
            executed = str(Path(f"/proc/{target.pid}/exe").readlink()) == program and all(procfs.stat(target.pid).image)
        hold(self)
        if executed and before is not None and self._space is before:
            Path(file).touch()

    return held


if __name__ == "__main__":
    from wstrace.cli import main

    FinalSnapshotSource._hold = telling(*sys.argv[1:3])
    sys.exit(main(sys.argv[3:]))
