"""Session: arms the sources, lets the target run, drains, and stops everything in order."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from wstrace.batch import Batch
from wstrace.bus import STOP_SECONDS, Bus, Lane
from wstrace.config import Config
from wstrace.errors import WstraceError
from wstrace.interfaces import Context, Enricher, Exporter, Source, Target
from wstrace.ledger import Ledger
from wstrace.options import Spec, build, parse_spec
from wstrace.plugins import Plugins, default_plugins
from wstrace.schema import DTYPES, MARK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.summary import Summary
    from wstrace.recorder import Recorder

#: seconds that one drain may wait for records
DRAIN_SECONDS = 0.1
_live: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """A trace, from start() to stop(). Also a context manager; start and stop are idempotent and thread-safe.

    Args:
        pid: the process to trace; None = the calling one, unless `targets` or a source that needs none is given.
        targets: handles from a platform, instead of a pid.
        sources: specs ("NAME:opt=val") or objects; None = those that are part of every session.
        exporters: specs ("msgpack:path=x.wst") or objects.
        enrichers: objects; None = all that the plugins have.
        children: whether processes that the target starts are traced too.
        require: "full" = raise Unavailable rather than trace at a lesser level.
        record: keep the faults and a summary in memory, for `faults` and `summary()`.
        plugins, config: where names and options come from; None = the environment's.

    Raises (start):
        Unavailable: the system refuses what was asked; says what lifts it.
        UsageError: an unknown name or option.
        OutputError: an exporter cannot open its output.
    """

    def __init__(
        self,
        pid: int | None = None,
        *,
        targets: Sequence[Target] = (),
        sources: Sequence[str | Spec | Source] | None = None,
        exporters: Sequence[str | Spec | Exporter] = (),
        enrichers: Sequence[Enricher] | None = None,
        children: bool = True,
        require: str = "",
        record: bool = True,
        plugins: Plugins | None = None,
        config: Config | None = None,
    ) -> None:
        self._plugins = plugins or default_plugins()
        self._config = config or Config.load(project=False)
        self._attach = [os.getpid() if pid is None else pid] if not targets and (pid or sources is None) else []
        self._sources: list[Source] = [
            self._build("source", item) for item in (self._plugins.defaults("source") if sources is None else sources)
        ]
        self._exporters: list[Exporter] = [self._build("exporter", item) for item in exporters]
        self._recorder: Recorder | None = None
        if record:
            from wstrace.recorder import Recorder

            self._recorder = Recorder()
            self._exporters.append(self._recorder)
        if enrichers is None:
            enrichers = [
                build(cls, self._config.options(cls, Spec(name)), name) for name, cls in self._plugins.enrichers.items()
            ]
        self.context = Context(targets=tuple(targets), children=children, require=require)
        self.context.ledger = Ledger(self._plugins.stages)
        self.context.own_threads = self.own_threads
        self.context.resolvers = {name: cls() for name, cls in self._plugins.resolvers.items()}
        self._bus = Bus(enrichers, [Lane(exporter, self.ledger) for exporter in self._exporters], self.ledger)
        self._state = "new"
        self._lock = threading.RLock()
        self._armed, self._stopping = threading.Event(), threading.Event()
        self._drains = [
            threading.Thread(target=self._drain, args=(source,), name=f"wstrace-{source.name}", daemon=True)
            for source in self._sources
        ]
        self._errors: list[BaseException] = []
        self._opened: list[Exporter] = []  # before the bus runs
        self._started: list[Source] = []

    def _build(self, role: str, item: Any) -> Any:
        if isinstance(item, str):
            item = parse_spec(item)
        if not isinstance(item, Spec):
            return item
        cls = self._plugins.class_of(role, item.name)
        return build(cls, self._config.options(cls, item), item.name)

    # -- what is known of it -----------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """The loss ledger."""
        return self.context.ledger

    @property
    def facts(self) -> dict[str, Any]:
        """What the headline needs beside counts: see Context."""
        return self.context.facts

    @property
    def lanes(self) -> Sequence[Lane]:
        """One an exporter, with its state and error."""
        return self._bus.lanes

    @property
    def faults(self) -> NDArray[Any]:
        """The page faults recorded so far, a structured array under the schema's names; outlives the session."""
        return self._memory().faults()

    def name(self, code: int) -> str:
        """The name behind a `file` or `pc_file` code."""
        return self.context.strings[int(code)]

    def summary(self) -> Summary:
        """The counts so far by file, module, thread and process; outlives the session."""
        return self._memory().summary

    def _memory(self) -> Recorder:
        if self._recorder is None:
            raise WstraceError("this session keeps nothing in memory", "make it with record=True")
        return self._recorder

    def own_threads(self) -> frozenset[int]:
        """The system's ids of wstrace's own threads: they are not armed."""
        threads = [*self._drains, self._bus.thread, *(lane.thread for lane in self._bus.lanes)]
        return frozenset(t.native_id for t in threads if t.native_id is not None)

    def statistics(self) -> dict[str, object]:
        """The counts of everything alive: state, sources, bus with enrichers and lanes, names, ledger."""
        return {
            "state": self._state,
            "sources": {source.name: dict(source.statistics()) for source in self._sources},
            "bus": self._bus.statistics(),
            "strings": self.context.strings.statistics(),
            "resolvers": {name: dict(r.statistics()) for name, r in self.context.resolvers.items()},
            "ledger": self.ledger.as_dict(),
        }

    # -- its life ----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Opens the outputs, starts own threads, arms the sources, lets a launched target run; in that order."""
        with self._lock:
            if self._state != "new":
                return self
            try:
                self._start()
            except BaseException:
                self._state = "failed"
                self._cancel()
                raise
            self._state = "running"
            _live.add(self)
        return self

    def _start(self) -> None:
        context = self.context
        if self._attach:
            platform = self._plugins.platform
            context.targets = tuple(platform.attach(pid) for pid in self._attach)
        context.facts.setdefault("started_ns", time.perf_counter_ns())
        if context.targets:
            context.facts.setdefault("pid", context.targets[0].pid)
            context.facts.setdefault("command", [context.targets[0].name])
        for exporter in self._exporters:
            exporter.start(context)
            self._opened.append(exporter)
        self._bus.start(context)
        for thread in self._drains:
            thread.start()
        for source in self._sources:
            source.start(context)
            self._started.append(source)
        for target in context.targets:
            if target.launched:
                target.resume()
        self._armed.set()

    def _drain(self, source: Source) -> None:
        """The one thread that calls a source after its start()."""
        self._armed.wait()
        if self._state == "failed":
            return
        try:
            while not self._stopping.is_set() and not source.finished:
                for batch in source.drain(DRAIN_SECONDS):
                    if source.patient:
                        self._bus.wait_for_room(self._stopping)
                    self._bus.publish(batch)
        except BaseException as error:
            self._errors.append(error)
        try:
            for batch in source.stop():
                self._bus.publish(batch)
        except BaseException as error:
            self._errors.append(error)

    @property
    def finished(self) -> bool:
        """True when every source has given all that it will give."""
        return not any(thread.is_alive() for thread in self._drains)

    def wait(self, timeout: float | None = None, *, children: bool = False) -> bool:
        """Until every target has ended (with children: until no traced process is left), or its sources have.

        After stop(): until every target has ended.

        Returns:
            False when timeout seconds have passed before.
        """
        until = float("inf") if timeout is None else time.monotonic() + timeout
        for target in self.context.targets if not children else ():
            while (code := target.wait(min(0.5, max(0.0, until - time.monotonic())))) is None:
                if self.finished and self._state == "running":
                    return True
                if time.monotonic() >= until:
                    return False
            self.facts["exit_code"] = code
        while not self.finished and (children or not self.context.targets):
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Drains what is left, ends the exporters in at most so many seconds, states what was lost. Idempotent."""
        with self._lock:
            if self._state != "running":
                return
            self._state = "stopping"
            _live.discard(self)
            self._shut(seconds)
            self._state = "stopped"
        if self._errors:
            raise self._errors[0]

    def _shut(self, seconds: float) -> None:
        self._stopping.set()
        for thread in self._drains:
            thread.join(2 * seconds)
        context = self.context
        for target in context.targets:
            self._account(target)
        context.facts.setdefault("ended_ns", time.perf_counter_ns())  # a replay keeps the recorded one
        if context.strings.overflowed:
            self.ledger.set("names_overflowed", context.strings.overflowed)
        self._bus.finish(seconds)
        for target in context.targets:
            target.close()

    def _cancel(self) -> None:
        """Undoes what _start() did before it failed: nothing is printed and no file is left."""
        self._armed.set()  # the drain threads see the failed state and end
        for source in self._started:
            for _ in source.stop():
                pass
        if self._bus.thread.ident is not None:
            for lane in self._bus.lanes:
                lane.cancelled = True
            self._bus.finish(1.0)
        else:
            for exporter in self._opened:
                exporter.cancel()
        for target in self.context.targets:
            target.close()

    def _account(self, target: Target) -> None:
        """What the system itself says of the target, into the facts; targets add up, the peak is the largest."""
        usage, facts = target.usage(), self.facts
        for key, value in (("usage_minor", usage.minor), ("usage_major", usage.major)):
            if value is not None:
                facts[key] = facts.get(key, 0) + value
        if usage.peak_resident_bytes is not None:
            facts["peak_resident_bytes"] = max(facts.get("peak_resident_bytes", 0), usage.peak_resident_bytes)
            if usage.peak_sampled:
                facts["peak_sampled"] = True

    def mark(self, text: str) -> None:
        """Puts a mark of the user's into the trace, at this time and thread."""
        import numpy as np

        values = {
            "time_ns": time.perf_counter_ns(),
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "text": self.context.strings.code(text),
        }
        columns = {c.name: np.array([values[c.name]], DTYPES[c.type]) for c in MARK.columns}
        self._bus.publish(Batch(MARK, columns, strings=self.context.strings, source="user"))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _abandon(self) -> None:
        """In a forked child: the copied handles are closed; the child's faults stay in the parent's trace."""
        self._state = "abandoned"
        for source in self._sources:
            source.abandon()
        for exporter in self._exporters:
            exporter.abandon()


@atexit.register
def _stop_all() -> None:
    for session in list(_live):
        session.stop()


def _abandon_all() -> None:
    for session in list(_live):
        session._abandon()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
