"""The source `page_faults` on Linux: every fault of the traced threads, by perf_event_open."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace import schema
from wstrace.batch import Batch, Columns
from wstrace.clock import now_ns
from wstrace.errors import UsageError
from wstrace.interfaces import Context, Level, Source
from wstrace_plugins.page_faults import parse_stacks
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.account import Account
from wstrace_plugins.page_faults.linux.arming import Arming
from wstrace_plugins.page_faults.linux.calls import EVERYWHERE, SYSCALLS, Calls, RareCalls, numbers, permitted
from wstrace_plugins.page_faults.linux.events import (
    Descriptors,
    FaultCounters,
    PerfEvents,
    Settings,
    StackRate,
    known_fields,
    native_level,
    own_level,
    settled_level,
    stack_levels,
)
from wstrace_plugins.page_faults.linux.polling import CatchUp, Peaks, Titles
from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, SIDE, STACKS, Pace, Rings
from wstrace_plugins.page_faults.linux.samples import RingSamples, StackDumps, merge, settled
from wstrace_plugins.page_faults.linux.side_band import SideBand, ended

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LATEST_NS = 100_000_000  # a row is in its ring at most this long after its time; 6 to 8 ms were observed
_FOREVER = (1 << 64) - 1
_BATCH_ROWS, _PRUNE_SECONDS = 1 << 17, 1.0
#: While so many bytes of mappings and processes wait for the enrichers, what the side band has is left out: whoever
#: maps, forks or executes faster than is kept up with would fill the memory. These are 14,000 rows, half a second.
_MOST_BEHIND = 1 << 20


class PageFaults(Source):
    """Page faults with time, address, instruction and thread, minor or major, of all threads and children.

    Args:
        ring_bytes: the kernel's buffer for minor faults, per CPU; 0 = 16 MiB, less where there are many CPUs.
        poll_ms: the most ms between two reads; up to 400 while nothing comes; a quarter-full buffer is read now.
        kernel: also record faults that kernel code takes on the target's memory (read() into a new buffer).
        children: follow the processes that the target starts.
        period: record one fault out of this many; all are counted.
        stacks: the frames that a fault carries: python, native, or python+native; auto = python where the kernel
            permits it, and native of processes that are no CPython; none.
        stack_rate: for native: faults a second, of each thread and CPU, that are sampled with their stack.
        stack_period: instead of stack_rate: sample one fault out of this many.
    """

    name = "page_faults"
    streams = (
        schema.PAGE_FAULT, schema.PROCESS, schema.ADDRESS_SPACE,
        schema.CONTENT_LOSS, schema.STACK_DUMP, schema.CALL_SITE,
    )  # fmt: skip
    default = True
    needs_target = True
    drain_seconds = 1.0

    def __init__(
        self,
        *,
        ring_bytes: int = 0,
        poll_ms: int = 100,
        kernel: bool = True,
        children: bool = True,
        period: int = 1,
        stacks: str = "auto",
        stack_rate: int = 2000,
        stack_period: int = 0,
    ) -> None:
        least_of = {"ring_bytes": 0, "poll_ms": 1, "period": 1, "stack_rate": 1, "stack_period": 0}
        for (option, least), value in zip(
            least_of.items(), (ring_bytes, poll_ms, period, stack_rate, stack_period), strict=True
        ):
            if value < least:
                raise UsageError(f"page_faults: {option} is {value}", f"give at least {least}")
        self._ring_bytes, self._pace = ring_bytes, Pace(poll_ms / 1000)
        self._wanted = Settings(kernel, children, period)
        self._stacks = parse_stacks(stacks)
        self._stack_rate, self._dumps = StackRate(stack_rate, stack_period), StackDumps()
        self._counters: FaultCounters | None = None
        self._rings: Rings | None = None
        self._python: PythonStacks
        self._events: PerfEvents
        self._rare: RareCalls
        self._side: SideBand
        self._peaks: Peaks
        self._titles: Titles
        self._arming: Arming
        self._samples: list[RingSamples] = []
        self._since = self._watermark = self._late = self._lost_reported = self._given = 0
        self._started, self._grown, self._prune_due = False, True, 0.0

    @classmethod
    def probe(cls) -> Level:
        """The level that perf_event_open permits for the calling process: `full`, `user` or `counters`."""
        return own_level()

    abilities = staticmethod(stack_levels)

    def start(self, context: Context) -> None:
        """Opens events on every thread of the targets, or on groups; a launched target counts from its execve() on.

        Raises Unavailable, TargetExited: from settled_level().
        """
        self._context = context
        level = settled_level(context, self._wanted.kernel)
        self._settings = self._wanted._replace(
            kernel=self._wanted.kernel and level.name == "full", children=self._wanted.children and context.children
        )  # fmt: skip
        if self._wanted.period > 1:
            context.info.sampled = self._wanted.period
            context.ledger.set("sampled", self._wanted.period)
        if level.name == "counters":
            self._counters = FaultCounters(context)
            return
        try:
            with permitted() as attributes:
                self._arm(context, attributes)
        except BaseException:
            self._close()
            raise
        self._started = True

    def _arm(self, context: Context, attributes: Sequence[NDArray[Any]]) -> None:
        cpus = perf.online_cpus()
        calls, births = attributes[: len(SYSCALLS)], attributes[len(SYSCALLS) :]
        self._python = PythonStacks(self._stacks, context, self.name, cpus)
        native = self._stacks.native and (
            self._stacks.required
            or (self._python.gate is not None and not context.groups and native_level().name == "sampled")
        )
        stacks = self._stack_rate if native else None
        self._settings = self._settings._replace(tracepoints=tuple(calls), fields=known_fields(context), stacks=stacks)
        self._peaks = Peaks(context, children=self._settings.children and not context.groups)
        descriptors = Descriptors()
        arming: type[Arming] = Arming
        if context.groups:
            from wstrace_plugins.page_faults.linux.group_arming import GroupArming  # with all that reads cgroups

            arming, self._settings = GroupArming, self._settings._replace(everywhere=True)
        descriptors.room((5 + 17 * len(births)) * len(cpus))
        try:
            self._rings = Rings(cpus, self._ring_bytes, stacks=native)
        except OSError as error:
            raise perf.refusal(error) from None
        self._samples = [
            RingSamples(ring.kind == MAJOR, self._python.join(ring), self._settings.fields)
            for ring in self._rings
            if ring.kind in (MINOR, MAJOR)
        ]
        self._pace.watch((*(ring.fd for ring in self._rings), *self._python.fds))
        self._events = PerfEvents(self._rings, cpus, descriptors, self._python.attach)
        self._events.watch_births(births)
        self._rare = rare = RareCalls(cpus, wanted=bool(births) and context.wants(schema.CONTENT_LOSS))
        self._side = SideBand(
            context.strings,
            children=self._settings.children,
            exit_code=lambda pid: next((target.exit_code for target in context.targets if target.pid == pid), None),
            calls=Calls(numbers(calls) | rare.numbers) if calls else None,
            new_task=int(births[0]["config"][0]) if births else None,
            parents=context.progress.parents,
        )
        self._catch_up, self._titles = CatchUp(self._side, self._python.look), Titles(self._side)
        self._arming = arming(context, self._settings, self._events, self._side, self._python)
        given = (self._samples, self._events, self._side, self._python)
        self._account = Account(context, self.name, self._settings, *given)
        self._since = self._watermark = now_ns()
        self._arming.arm(self._since)
        self._account.begin()

    def drain(self, timeout: float) -> Iterable[Batch]:
        """Emits what is older than every ring's last row, or older than 100 ms."""
        if self._counters is not None:
            self._counters.drain(timeout)
            return
        rest = self._pace.rest
        filled = self._pace.wait(min(timeout, rest, self._peaks.seconds if self._grown else rest)) or self._rare.filled
        self._python.look_at_processes()
        self._titles.read_if_due()
        self._arming.look()
        if filled or not timeout or not self._pace.rest:
            news = not self._quiet()
            for batch in self._collect(final=False) if news else ():  # what others do gives no batch
                self._grown = True
                yield batch
            self._pace.has_read(news=news)
        self._grown &= not (self._grown and self._peaks.read_if_due(self._side.live))

    def wake(self) -> None:
        """Ends the wait of drain()."""
        self._pace.wake()

    def _quiet(self) -> bool:
        """True when no ring has data and nothing is held: this check is what an idle trace costs."""
        assert self._rings is not None
        held = self._side.holds or self._dumps.holds or any(samples.holds for samples in self._samples)
        return not held and not any(one.filled for one in (self._rare, *self._rings))

    def _collect(self, *, final: bool) -> Iterator[Batch]:
        """Reads all rings, and emits what none of them can come before any more; `final`: all that is there."""
        assert self._rings is not None
        samples = iter(self._samples)
        for ring in self._rings:
            if ring.kind == STACKS:
                self._dumps.take(ring.read(), self._since, now_ns())
            elif ring.kind != SIDE:
                next(samples).take(ring.view(), self._since, now_ns(), doubled=self._arming.doubled)
                ring.free()
        now = now_ns()
        yield from self._python.new_sites()  # after the samples: the stacks that these name have come
        for ring in self._rings:  # after the samples, so that the mappings that these need have been read
            if ring.kind == SIDE and len(raw := ring.read()):
                self._side.skip(raw, now) if self._behind else self._side.take(raw.tobytes())
        for records, full_ns in self._rare.read():
            self._side.take(records, rare=True, full_ns=full_ns)
        if self._rare.too_many(self._side.others):
            self._side.rare_calls_end(EVERYWHERE)
        if self._side.stale and not self._behind:
            self._catch_up.read_maps_again(self._arming.families())
        watermark = _FOREVER if final else settled(self._samples, now - _LATEST_NS)
        for batch in self._side.give(watermark, self.name):
            self._python.saw(batch)
            yield batch
        for dumps in self._dumps.give(watermark):
            yield Batch(schema.STACK_DUMP, dumps, source=self.name, strings=self._context.strings)
        yield from self._faults(watermark, now if final else watermark)
        self._account.so_far(self._late)

    def _faults(self, until: int, watermark: int) -> Iterator[Batch]:
        columns = merge(self._samples, until)
        columns = self._arming.rate.with_rates(self._arming.with_groups(columns))
        times = columns["time_ns"]
        if len(times) and not self._behind and self._catch_up.meet(columns):
            yield from self._side.give(until, self.name)
        window, self._watermark = (self._watermark, max(watermark, self._watermark)), max(watermark, self._watermark)
        if not len(times):
            return
        columns = self._python.with_stacks(columns)
        self._late += int(np.searchsorted(times, np.uint64(window[0])))
        observers = self._arming.observers(columns)
        if observers is not None and observers.any():
            columns["flags"] = columns["flags"] | observers.view(np.uint8) * np.uint8(schema.FAULT_OBSERVER)
        lost = max(sum(map(self._account.reported_lost, (MINOR, MAJOR))), self._lost_reported)
        for start in range(0, len(times), _BATCH_ROWS):
            part: Columns = {name: c[start : start + _BATCH_ROWS] for name, c in columns.items()}
            self._given += len(part["time_ns"])
            yield Batch(schema.PAGE_FAULT, part, window=window, lost=lost - self._lost_reported, source=self.name,
                        strings=self._context.strings)  # fmt: skip
            self._lost_reported = lost

    @property
    def _behind(self) -> bool:
        return self._context.progress.essential_bytes > _MOST_BEHIND

    def record_one_in(self, every: int) -> bool:
        """Records one out of so many faults from now on, where groups are traced. Called between start() and stop()."""
        return self._started and self._arming.record_one_in(every)

    def stop(self) -> Iterable[Batch]:
        """Stops the events, emits the rest, and sets the ledger to the kernel's own counts."""
        if self._counters is not None:
            self._counters.stop()
        if not self._started:
            return
        self._started = False
        try:
            self._account.end()
            self._events.disarm()
            self._rare.disarm()
            failed = True
            try:
                self._titles.read(self._side.live)
                yield from self._collect(final=True)
                while self._events.went_on():
                    yield from self._collect(final=True)
                self._peaks.read(self._side.live, final=True)
                self._context.info.usage += self._peaks.usage(self._side.ended, orphaned=self._side.orphaned)
                failed = False
            finally:
                self._account.close(self._given, failed=failed)
                if self._settings.stacks is not None:
                    self._dumps.account(self._context.ledger, self._events.counts(STACKS)[1])
        finally:
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._python.close()
        if self._rings is not None:
            with contextlib.suppress(AttributeError):
                self._events.close()
                self._rare.close()
            self._rings.close()
            self._rings = None
        self._pace.close()

    @property
    def finished(self) -> bool:
        """Whether no traced process is left, if the trace waits for all; else False."""
        if self._counters is not None:
            return self._counters.finished
        if not self._started or not self._context.wait_children:
            return self._started and self._arming.gone
        if time.monotonic() >= self._prune_due:
            self._prune_due = time.monotonic() + _PRUNE_SECONDS
            gone = ended(self._side.live)
            if self._quiet():  # checked after the drain: the dead process's last records (forks) must be read first
                for pid in gone:
                    self._side.live.gone(pid)
        return not self._side.live

    def after_fork_in_child(self) -> None:
        """Closes the inherited descriptors in a forked child, whose faults stay in the parent's trace."""
        self._pace.forked()
        self._close()
