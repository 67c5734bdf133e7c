"""The source `final_snapshot`: the pages of a launched target as they were at its exit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from wstrace.batch import Batch
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level, Target
from wstrace_plugins.working_set.backend import KeeperFailed, backend
from wstrace_plugins.working_set.snapshot_source import SnapshotSource

# between two checks whether the target executes another program; doubled each time
_FIRST_SECONDS, _MOST_SECONDS = 0.005, 0.5


class FinalSnapshotSource(SnapshotSource):
    """Runs of resident pages of the launched target at its exit, or at the end of the trace if it still runs.

    Part of every trace of a launched command where the system lets its memory outlive it (Linux: root, or
    vm.unprivileged_userfaultfd = 1, or access to /dev/userfaultfd). Elsewhere, and for an attached process, it emits
    nothing. It costs one snapshot, 10 ms per GiB in memory, and a process that waits. Children are not held;
    `working_set` sees them.

    Args:
        longest: seconds for which a target is held at most; after that it has no snapshot. Meanwhile the process that
            keeps its memory cannot be frozen: a machine does not suspend, a container does not pause.
    """

    name: ClassVar[str] = "final_snapshot"
    default: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True

    def __init__(self, *, longest: float = 600.0) -> None:
        super().__init__()
        self._longest = longest
        self._target: Target | None = None  # the launched one while it is held
        self._keeper: Any = None
        self._space: Any = None  # its held address space
        self._pause, self._next, self._until = _FIRST_SECONDS, 0.0, 0.0

    @classmethod
    def probe(cls) -> Level:
        """full, or none with what would lift it; tried on the calling process."""
        level: Level = backend().probe_keeper()
        return level

    def start(self, context: Context) -> None:
        """Starts a keeper for the launched target, which has executed its command when drain() is called."""
        self._context = context
        self._until = time.monotonic() + self._longest
        for target in context.targets:
            if target.launched:
                with contextlib.suppress(Unavailable):  # this system has none, as `doctor` says
                    try:
                        self._keeper, self._target = backend().make_keeper(), target
                        target.on_start = self._hold
                    except KeeperFailed as failed:
                        self._give_up(failed.why)
                break

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The snapshot of a target that has ended; waits at most timeout seconds for that."""
        now = time.monotonic()
        if self._target is None:
            return
        if now > self._until:
            self._give_up(f"the command ran longer than {self._longest:g} s (option longest)")
        elif now >= self._next:
            self._hold()
            self._next = now + self._pause
            self._pause = min(self._pause * 2, _MOST_SECONDS)
        until = min(now + timeout, self._next)
        if self._target is not None and self._target.wait(max(until - time.monotonic(), 0)) is not None:
            yield from self._taken(self._target)

    def stop(self) -> Iterable[Batch]:
        """The snapshot of a target that still runs."""
        self._hold()
        if self._target is not None:
            yield from self._taken(self._target)

    @property
    def finished(self) -> bool:
        """True when no launched target is left."""
        return self._target is None

    def after_fork_in_child(self) -> None:
        """In a forked child: drops the keeper, which belongs to the parent."""
        self._target = self._keeper = None

    def _hold(self) -> None:
        """Holds the program that the target executes now. If it cannot be held, gives up."""
        if self._target is None:
            return
        before = self._space
        try:
            if before is not None and before.is_same():
                return
            self._space = self._keeper.hold(self._target.pid)
            self._pause = _FIRST_SECONDS  # a shell or `env` executes the next program soon
        except TargetExited:  # ended, or calling execve() right now: the next check shows which
            self._space, self._pause = None, _FIRST_SECONDS
        except Unavailable as error:
            self._give_up(error.why)
        if before is not None:
            before.close()

    def _give_up(self, why: str) -> None:
        """Notes why the target has no snapshot, and lets it go."""
        self._context.info.lack(f"the resident pages at the exit: {why}")
        self._let_go()

    def _let_go(self) -> None:
        """Closes the address space and its keeper."""
        for one in (self._space, self._keeper):
            if one is not None:
                one.close()
        self._target = self._space = self._keeper = None

    def _taken(self, target: Target) -> Iterator[Batch]:
        """The batches of the snapshot; without one it is noted why."""
        taken = None
        with contextlib.suppress(Unavailable):
            if self._space is not None and self._space.is_same():
                from wstrace_plugins.working_set.working_set import read  # not loaded for a command that ends at once

                taken = read(self._space, self._context.strings)
        if taken is None:
            late = "the last program ended before its memory could be kept"
            self._give_up("the process that kept its memory was killed" if self._keeper.ended else late)
            return
        self._let_go()
        self._context.info.final_snapshot = target.pid
        yield from taken.batches(0, self.name)
