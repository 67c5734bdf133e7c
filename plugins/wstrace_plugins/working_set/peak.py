"""The sources `peak_snapshot` and `final_snapshot`: the pages at the most that was in memory, and at the exit."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace.batch import Batch
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.interfaces import Context, Level, Target
from wstrace_plugins.working_set.backend import KeeperFailed, backend
from wstrace_plugins.working_set.process_tree import SnapshotSource, traced

if TYPE_CHECKING:
    from wstrace_plugins.working_set.working_set import WorkingSet


#: A snapshot is taken when there may be more than in the largest one by this factor: the one that is kept lacks at most
#: 2 % of a peak that lasts until the next snapshot.
_GROWN = 1.02
#: The same while it grows by more than that from one reading to the next: the snapshot that counts is that of the peak,
#: and no other one is to stand in its way.
_GROWING = 1.5
#: The share of a CPU that snapshots take at most: they are 20 times their own duration apart, as each holds the lock of
#: the target's mappings meanwhile. It is counted in CPU time: on a busy machine a snapshot waits for a CPU before it
#: begins, and would push the next one away.
_MOST = 0.05
#: CPU time that snapshots have besides, whenever there may be more by that factor: those of a share alone are too far
#: apart to see the peak of a program that ends after 0.3 s.
_FREE_SECONDS, _GROWN_MUCH = 0.03, 1.25
#: Processes that have not grown for so many seconds have settled. Then a snapshot is taken of a little more, too: a
#: peak that lasts is whole.
_SETTLED, _LITTLE = 0.1, 1.002


class _Sizes(NamedTuple):
    """The sizes of processes at a reading, in bytes.

    faults: of each so far. resident: their sum, where a page counts for each that has it. least, most: between these is
    what there is when each page counts once.
    """

    faults: dict[int, int]
    resident: int
    least: int
    most: int


class PeakSnapshotSource(SnapshotSource):
    """Runs of resident pages of the largest snapshot, emitted at the end; of an attached process also at the start.

    The largest one has the most pages, each counted once: what several processes share counts as much as it is in the
    one that shares most. Resident sizes and faults are read every `interval`. When there may be 2 % more (while it
    grows fast: by half), a snapshot is taken, at most as many as take `max_cpu` (about 10 ms of CPU time per GiB each),
    and 30 ms besides. A copy of what is shared since a fork changes no resident size, but takes a fault. A peak that is
    over before is not seen whole: compare the `bytes` of the snapshot with `largest`, and with the peak of one process
    that the system counts (`peak_resident_bytes`).

    Args:
        interval: seconds between two readings of the resident sizes.
        max_cpu: the largest share of a CPU that snapshots take, and readings, up to 0.05.
    """

    name = "peak_snapshot"
    follows = True

    def __init__(self, *, interval: float = 0.01, max_cpu: float = _MOST) -> None:
        if interval <= 0:
            raise UsageError(f"peak_snapshot: interval is {interval}", "give seconds above 0")
        if not 0 < max_cpu <= _MOST:
            raise UsageError(f"peak_snapshot: max_cpu is {max_cpu}", f"give a part of one CPU, above 0, up to {_MOST}")
        super().__init__()
        self._interval, self._apart = interval, 1 / max_cpu
        self._due = self._next = self._grew = 0.0
        self._free = _FREE_SECONDS
        self._before = self._last = _Sizes({}, 0, 0, 0)  # at the last reading, and at the last snapshot
        self._seen = 0  # the largest size that was read
        self._fullest = self._before  # the reading with the most bytes
        self._largest: list[WorkingSet] = []
        self._bytes = 0  # in it, each page once
        self._emitted = False

    def start(self, context: Context) -> None:
        """Checks that attached targets can be read; of what a launched one starts, what can be read is enough."""
        self._context, self._backend = context, backend()
        self._launched = [target for target in context.targets if target.launched]
        for target in context.targets:
            if not target.launched:
                with self._backend.Space(target.pid):
                    pass

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The snapshot at the start of an attached process; otherwise nothing before the end."""
        first = not self._number
        self._read()
        if first and not self._launched:
            yield from self._batches()
        running = next((one for one in self._launched if one.wait(0) is None), None)
        if running is None:
            time.sleep(min(timeout, self._interval))
        else:  # the trace may end with it
            running.wait(min(timeout, self._interval))

    def stop(self) -> Iterable[Batch]:
        """The largest snapshot."""
        self._read()
        if self._largest:
            resident = sum(one.total_bytes for one in self._largest)
            self._context.info.extra["peak_snapshot"] = {
                "time_ns": self._largest[0].time_ns,
                "bytes": resident,
                "largest": resident + max(self._seen - self._bytes, 0),
                "processes": len(self._fullest.faults),
            }
            if not self._emitted:
                yield from self._batches()

    def _read(self) -> None:
        """Reads the sizes, and takes a snapshot where there may be more than in the largest one."""
        now = time.monotonic()
        if now < self._next:
            return
        spent = time.thread_time()
        before, sizes = self._before, self._sizes(traced(self._context, self._backend))
        self._before, self._seen = sizes, max(self._seen, sizes.least)
        self._fullest = max(self._fullest, sizes, key=lambda one: one.most)
        self._next = time.monotonic() + self._apart * (time.thread_time() - spent)
        if sizes.most > before.most:
            self._grew = now
        grown = _GROWING if sizes.resident > before.resident * _GROWN and before.resident else _GROWN
        if now - self._grew > _SETTLED:
            grown = _LITTLE
        free = self._free > 0 and sizes.most > self._bytes * _GROWN_MUCH
        if not free and (now < self._due or sizes.most <= self._bytes * grown):
            return
        taken = list(self._snapshots(sizes.faults))
        cost = sum(one.cost_seconds for one in taken)
        if free:
            self._free -= cost
        else:
            self._due = time.monotonic() + self._apart * cost
        shared = [one.shared_bytes for one in taken]
        total = sum(one.total_bytes for one in taken)
        once = total - sum(shared) + max(shared, default=0)
        self._last = _Sizes({one.pid: sizes.faults[one.pid] for one in taken}, total, once, once)
        if once > self._bytes:
            self._bytes, self._largest, self._emitted = once, taken, False

    def _sizes(self, pids: list[int]) -> _Sizes:
        """The sizes of these processes now, compared with the last snapshot."""
        each = {pid: self._backend.size(pid) for pid in pids if pid not in self._refused}
        faults, resident = {pid: one[1] for pid, one in each.items()}, sum(one[0] for one in each.values())
        last = self._last
        if faults.keys() != last.faults.keys():
            return _Sizes(faults, resident, resident if len(pids) == 1 else 0, resident)
        least = last.least + max(resident - last.resident, 0)
        most = least + sum(n - last.faults[pid] for pid, n in faults.items()) * mmap.PAGESIZE
        return _Sizes(faults, resident, min(least, resident), min(most, resident))

    def _batches(self) -> Iterator[Batch]:
        """The batches of the largest snapshot."""
        self._emitted = True
        for taken in self._largest:
            yield from taken.batches(self._number, self.name)


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

    name = "final_snapshot"
    default = True
    needs_target = True

    def __init__(self, *, longest: float = 600.0) -> None:
        super().__init__()
        self._longest = longest
        self._target: Target | None = None  # the launched one while it is held
        self._keeper: Any = None
        self._space: Any = None  # its held address space
        self._pause, self._next, self._until = _FIRST_SECONDS, 0.0, 0.0

    @classmethod
    def probe(cls) -> Level:
        """full, tried on the calling process. Raises Unavailable."""
        with contextlib.closing(backend().make_keeper()) as keeper:
            keeper.hold(os.getpid()).close()
        return Level("full")

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
            self._give_up(f"the command ran longer than {self._longest:g} s (-s final_snapshot:longest=SECONDS)")
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
