"""The source `final_snapshot`: the pages of a launched target as they were at its exit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from wstrace.batch import Batch
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level, Source, Target
from wstrace.schema import ADDRESS_SPACE, RESIDENT_PAGES, Schema
from wstrace_plugins.working_set.backend import KeeperFailed, backend

if TYPE_CHECKING:
    from wstrace_plugins.working_set.backend import HeldSpace, Keeper

# between two checks whether the target executes another program; doubled each time
_FIRST_SECONDS, _MOST_SECONDS = 0.005, 0.5


class FinalSnapshotSource(Source):
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
    streams: ClassVar[tuple[Schema, ...]] = (RESIDENT_PAGES, ADDRESS_SPACE)
    default: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True

    def __init__(self, *, longest: float = 600.0) -> None:
        self._longest = longest
        self._keepers: dict[Target, Keeper] = {}
        self._spaces: dict[Target, HeldSpace] = {}  # the held address space of each target
        self._pause, self._next, self._until = _FIRST_SECONDS, 0.0, 0.0
        self._counts: dict[str, int | float] = {"snapshots": 0, "missed": 0, "pages": 0, "cpu_seconds": 0.0}

    @classmethod
    def probe(cls) -> Level:
        """full, or none with what would lift it; tried on the calling process."""
        return backend().probe_keeper()

    def start(self, context: Context) -> None:
        """Starts a keeper for each launched target; they have executed their command when drain() is called."""
        self._context = context
        try:
            for target in context.targets:
                if target.launched:
                    self._keepers[target] = backend().make_keeper()
                    target.on_start = partial(self._hold, target)
        except KeeperFailed as failed:
            self._missed(failed.why)
        except Unavailable:  # this system has none, as `doctor` says
            pass
        self._until = time.monotonic() + self._longest

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The snapshot of a target that has ended; waits at most timeout seconds for that."""
        now = time.monotonic()
        if now > self._until:
            for target in list(self._keepers):
                self._give_up(target, f"the command ran longer than {self._longest:g} s (option longest)")
        if now >= self._next:
            for target in list(self._keepers):
                self._hold(target)
            self._next = now + self._pause
            self._pause = min(self._pause * 2, _MOST_SECONDS)
        until = min(now + timeout, self._next)
        for target in list(self._keepers):
            if target.wait(max(until - time.monotonic(), 0)) is not None:
                yield from self._taken(target)

    def stop(self) -> Iterable[Batch]:
        """The snapshots of the targets that still run."""
        for target in list(self._keepers):
            self._hold(target)
            yield from self._taken(target)

    @property
    def finished(self) -> bool:
        """True when no launched target is left."""
        return not self._keepers

    def statistics(self) -> Mapping[str, int | float]:
        """snapshots, missed (the last program was not held at its end), pages, CPU seconds."""
        return dict(self._counts)

    def after_fork_in_child(self) -> None:
        """In a forked child: drops the keeper, which belongs to the parent."""
        self._keepers.clear()

    def _hold(self, target: Target) -> None:
        """Holds the program that the target executes now. If it cannot be held, gives up the target's keeper."""
        space = self._spaces.get(target)
        try:
            if space is not None and space.look():
                return
            self._spaces[target] = self._keepers[target].hold(target.pid)
            self._pause = _FIRST_SECONDS  # a shell or `env` executes the next program soon
        except TargetExited:  # ended, or calling execve() right now: the next check shows which
            self._spaces.pop(target, None)
            self._pause = _FIRST_SECONDS
        except Unavailable as error:
            self._give_up(target, error.why)
        if space is not None:
            space.close()

    def _give_up(self, target: Target, why: str) -> None:
        self._missed(why)
        self._let_go(target)

    def _missed(self, why: str) -> None:
        self._counts["missed"] += 1
        self._context.info.lack(f"the resident pages at the exit: {why}")

    def _let_go(self, target: Target) -> None:
        if space := self._spaces.pop(target, None):
            space.close()
        self._keepers.pop(target).close()

    def _taken(self, target: Target) -> Iterator[Batch]:
        if target not in self._keepers:
            return
        space, taken = self._spaces.get(target), None
        with contextlib.suppress(Unavailable):
            if space is not None and space.look():
                from wstrace_plugins.working_set.working_set import read  # not loaded for a command that ends at once

                taken = read(space, self._context.strings)
        if taken is None:
            killed = self._keepers[target].ended
            late = "the last program ended before its memory could be kept"
            self._give_up(target, "the process that kept its memory was killed" if killed else late)
            return
        self._let_go(target)
        self._counts["snapshots"] += 1
        self._counts["pages"] += taken.total_bytes // taken.page_size
        self._counts["cpu_seconds"] += taken.cost_seconds
        self._context.info.final_snapshot = target.pid
        yield from taken.batches(0, self.name)
