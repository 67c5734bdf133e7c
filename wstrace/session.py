"""Session: arms the sources, lets the target run, drains the sources, and stops everything in order."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from wstrace import bus
from wstrace.batch import Batch, Dictionary, checked
from wstrace.bus import Bus, ExporterQueue, Limit, WorkThread
from wstrace.clock import now_ns
from wstrace.errors import PluginError, Unavailable, UsageError, WstraceError, log, named, quietly, why
from wstrace.interfaces import Context, Enricher, Exporter, Group, Source, Target
from wstrace.ledger import Ledger
from wstrace.options import Config, Spec, build, parse_spec
from wstrace.plugins import Plugins, default_plugins
from wstrace.schema import DTYPES, MARK
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.session_trace import Recorder
    from wstrace.trace import Trace

_live: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """A trace, from start() to stop(). It is also a context manager; start and stop are idempotent and thread-safe.

    Args:
        pid: the process to trace; None = the calling one, unless `targets` or `sources` is given.
        targets: what a platform returned for processes, instead of a pid.
        groups: what a platform returned for groups of processes.
        sources: specs ("NAME:opt=val") or Source objects, or a single one; None = the default sources.
        exporters: specs ("msgpack:path=x.wst") or Exporter objects, or a single one.
        enrichers: Enricher objects; None = one of each class that the plugins offer.
        command: the command line that `targets` was launched with; () = the name of the first target.
        children: whether processes that the target starts are traced too.
        wait_children: whether wait() returns when no traced process is left, instead of when the targets have ended.
        require: "full" = raise Unavailable rather than trace at a lesser level.
        patience: seconds for which an exporter without progress may delay stop().
        queue_bytes: what the queue of the bus and of each exporter may hold; more is dropped and counted.
        record: whether to keep the faults and a summary in memory, for `faults`, `trace` and `summary()`.
        plugins: where names come from; None = what is installed.
        config: default options; None = those of the environment.

    Raises:
        UsageError: a name or option is unknown, or a source needs a target and none was given.
        Unavailable: from start(): the system refuses what was requested; the error says what lifts it.
        OutputError: from start(): an exporter cannot open its output.
    """

    def __init__(
        self,
        pid: int | None = None,
        *,
        targets: Sequence[Target] = (),
        groups: Sequence[Group] = (),
        sources: Sequence[str | Spec | Source] | str | Spec | Source | None = None,
        exporters: Sequence[str | Spec | Exporter] | str | Spec | Exporter = (),
        enrichers: Sequence[Enricher] | None = None,
        command: Sequence[str] = (),
        children: bool = True,
        wait_children: bool = False,
        require: str = "",
        patience: float | None = None,
        queue_bytes: int = bus.QUEUE_BYTES,
        record: bool = True,
        plugins: Plugins | None = None,
        config: Config | None = None,
    ) -> None:
        if not all(hasattr(one, "pid") for one in targets):
            raise UsageError("targets are what a platform returned for processes", "a pid: Session(PID)")
        self._patience = bus.STOP_SECONDS if patience is None else patience
        self._plugins = plugins or default_plugins()
        self._config = config or Config.load(project=False)
        own = not targets and not groups and (pid or sources is None)
        self._attach = [os.getpid() if pid is None else pid] if own else []
        given = self._plugins.defaults("source") if sources is None else sources
        self._sources: list[Source] = [self._build("source", item) for item in _each(given)]
        self._exporters: list[Exporter] = [self._build("exporter", item) for item in _each(exporters)]
        for source in self._sources:
            if source.needs_target and not targets and not groups and not self._attach:
                raise UsageError(f"{source.name} has no process to trace", "give one: Session(os.getpid(), ...)")
        self._recorder: Recorder | None = None
        if record:
            from wstrace.session_trace import Recorder

            self._recorder = Recorder()
            self._exporters.append(self._recorder)
        if enrichers is None:
            enrichers = [self._build("enricher", Spec(name)) for name in self._plugins.enrichers]
        wanted = [exporter.streams for exporter in self._exporters]
        live = not any(source.patient for source in self._sources)
        self.context = Context(
            strings=Dictionary(Dictionary.LIVE_BYTES if live else Dictionary.MOST_BYTES),
            targets=tuple(targets),
            groups=tuple(groups),
            ledger=Ledger(self._plugins.stages),
            info=TraceInfo(list(command), tuple(target.pid for target in targets) or tuple(self._attach)),
            resolvers=self._plugins.make_resolvers(),
            children=children,
            require=require,
            wait_children=wait_children,
            streams=None if None in wanted else frozenset().union(*filter(None, wanted)),
        )
        for failure in self._plugins.failures():
            self.info.note(failure)
            log().warning("%s", failure)
        queues = [ExporterQueue(exporter, self.ledger, queue_bytes, live=live) for exporter in self._exporters]
        self._bus = Bus(enrichers, queues, self.ledger, queue_bytes, self._patience)
        self._state, self._lock = "new", threading.RLock()
        self._armed, self._stopping = threading.Event(), threading.Event()
        self._drains = [
            WorkThread(target=self._drain, args=(source,), name=f"wstrace-{source.name}", daemon=True)
            for source in self._sources
        ]
        self._errors, self._failed = list[BaseException](), set[Source]()
        self._opened, self._open_sources, self._started = list[Exporter](), list[Source](), list[Source]()

    def _build(self, role: str, item: Any) -> Any:
        if isinstance(item, str):
            item = parse_spec(item)
        if not isinstance(item, Spec):
            return item
        cls = self._plugins.class_of(role, item.name)
        with named(f"{role} {item.name}"):
            return build(cls, self._config.options(cls, item), item.name)

    @property
    def ledger(self) -> Ledger:
        """The loss ledger."""
        return self.context.ledger

    @property
    def info(self) -> TraceInfo:
        """The description of the trace: command, targets, levels, times and resource usage."""
        return self.context.info

    @property
    def exporter_queues(self) -> Sequence[ExporterQueue]:
        """One queue per exporter, with the exporter's state and error."""
        return self._bus.exporter_queues

    @property
    def faults(self) -> NDArray[Any]:
        """The page faults recorded so far: a structured array, shape (n,), with the fields of schema.PAGE_FAULT."""
        return self.trace.batches().to_numpy()

    @property
    def trace(self) -> Trace:
        """The records kept in memory, as batches, tables and files of any format; available after stop() too."""
        from wstrace.session_trace import SessionTrace

        return SessionTrace(self.context, self._memory(), lambda: self._state)

    def __repr__(self) -> str:
        rows = ", ".join(f"{n:,} {stream} recorded" for stage, stream, n in self.ledger.rows() if stage == "recorded")
        lost = sum(n for _, _, n in self.ledger.losses())
        return f"<{type(self).__name__} of {self.info.name}: {self._state}; {rows or 'no record'}; {lost:,} lost>"

    def name(self, code: int) -> str:
        """The name behind a `file` or `pc_file` code."""
        return self.context.strings[int(code)]

    def _memory(self) -> Recorder:
        if self._recorder is None:
            raise WstraceError("this session keeps nothing in memory", "make it with record=True")
        return self._recorder

    def start(self, ready: Callable[[], None] = lambda: None) -> Self:
        """Opens sources, then outputs; starts threads; arms sources; calls `ready` (may raise); lets targets run."""
        with self._lock:
            if self._state != "new":
                return self
            try:
                self._start(ready)
            except BaseException:
                self._state = "failed"
                self._cancel()
                raise
            self._state = "running"
            _live.add(self)
        return self

    def _start(self, ready: Callable[[], None]) -> None:
        if self._attach:
            self.context = replace(self.context, targets=tuple(map(self._plugins.platform.attach, self._attach)))
        context = self.context
        self._describe(context)
        for source in self._sources:
            with named(f"source {source.name}"):
                source.open(context)
            self._open_sources.append(source)
        for exporter in self._exporters:
            with named(f"exporter {exporter.name}"):
                exporter.start(context)
            self._opened.append(exporter)
        self._bus.start(context)
        for thread in self._drains:
            bus.start_thread(thread)
        for thread in (*self._drains, self._bus.thread, *(queue.thread for queue in self._bus.exporter_queues)):
            context.register_own_thread(thread.native_id)
        for source in self._sources:
            with named(f"source {source.name}"):
                source.start(context)
            self._started.append(source)
        ready()
        for target in context.targets:
            if target.launched:
                target.resume()
        self._armed.set()

    def _describe(self, context: Context) -> None:
        """Describes a live trace before it begins; a source that replays a recorded trace replaces the description."""
        info = context.info
        info.started_ns = now_ns()
        if context.live:
            info.command = info.command or [one.name for one in context.groups or context.traced[:1]]
            with contextlib.suppress(Unavailable):  # targets of another package, on a system without a platform
                info.page_size = self._plugins.platform.page_size

    def _drain(self, source: Source) -> None:
        """Runs on the source's own thread, the only one that calls the source after its start()."""
        self._armed.wait()
        if self._state == "failed":
            return
        try:
            with named(f"source {source.name}"):
                while not self._stopping.is_set() and not source.finished:
                    for batch in source.drain(source.drain_seconds):
                        if source.patient:
                            self._bus.wait_for_room(self._stopping)
                        self._bus.publish(checked(batch))
        except BaseException as error:
            self._fail(source, error)
            # The source stays armed until the end, so that records which nobody takes are counted as lost.
            self._stopping.wait()
        try:
            with named(f"source {source.name}"):
                for batch in source.stop():
                    self._bus.publish(checked(batch))
        except BaseException as error:
            self._fail(source, error)

    def _fail(self, source: Source, error: BaseException) -> None:
        """Records that a source gives nothing more: the trace's description says so, and stop() raises the error."""
        self._errors.append(error)
        self._failed.add(source)
        reason = error.why if isinstance(error, WstraceError) else why(error)
        self.info.note(f"{reason}: nothing more was recorded by it")

    @property
    def finished(self) -> bool:
        """Whether every source has delivered all of its records, or has failed; those that follow may go on."""
        pairs = zip(self._sources, self._drains, strict=True)
        left = [source for source, thread in pairs if source not in self._failed and thread.is_alive()]
        alone = self._failed or all(source.follows for source in self._sources)
        return not left or (not alone and all(source.follows for source in left))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every target has ended (with wait_children: until no traced process is left).

        While the session runs, the wait also ends when every source has finished.

        Returns:
            False when `timeout` seconds passed first.
        """
        until = float("inf") if timeout is None else time.monotonic() + timeout
        children = self.context.wait_children and self._state == "running"
        while not self.finished and (children or not self.context.targets):
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        for target in self.context.targets:
            while (code := target.wait(min(0.5, max(0.0, until - time.monotonic())))) is None:
                # Wait for a launched target even when every source has failed: its exit code is still needed.
                if self.finished and self._state == "running" and not (self._failed and target.launched):
                    return True
                if time.monotonic() >= until:
                    return False
            self.info.exit_code, self.info.exit_signal = code, target.exit_signal
        return True

    def stop(self, seconds: float | None = None) -> None:
        """Drains what is left, closes the exporters, and raises the first error of a source. Idempotent.

        Args:
            seconds: the time limit for the exporters; None = the session's `patience`.
        """
        with self._lock:
            if self._state != "running":
                return
            self._state = "stopping"
            _live.discard(self)
            self._shut(self._patience if seconds is None else seconds)
            self._state = "stopped"
        if self._errors:
            raise self._errors[0]

    def _shut(self, seconds: float) -> None:
        self._stopping.set()
        for source in self._sources:
            quietly(source.wake, None)
        for source, thread in zip(self._sources, self._drains, strict=True):
            if not Limit(2 * seconds, thread).join():
                self._fail(source, PluginError(f"source {source.name} did not finish in {2 * seconds:g} s"))
        context = self.context
        context.info.usage += context.usage()
        if not context.info.recorded:
            context.info.ended_ns = now_ns()
        if context.strings.overflowed:
            self.ledger.set("names_overflowed", context.strings.overflowed)
        self._bus.finish(seconds)
        if self._bus.hanging:
            self._errors.append(PluginError(self._bus.hanging))
        for one in context.traced:
            one.close()

    def _cancel(self) -> None:
        """Undoes what _start() did before it failed, so that nothing is printed and no file is left."""
        self._armed.set()  # The drain threads see the state "failed" and end.
        for source in self._open_sources:
            if source not in self._started:
                quietly(source.cancel, None)
        for source in self._started:
            quietly(lambda source=source: list(source.stop()), [])  # type: ignore[misc]
        self._bus.cancel(self._opened)
        for one in self.context.traced:
            one.close()

    def mark(self, text: str) -> None:
        """Adds a user mark with this text, at the current time and thread; sources of snapshots take one for it."""
        import numpy as np

        strings, time_ns = self.context.strings, now_ns()
        values = {"time_ns": time_ns, "pid": os.getpid(), "tid": threading.get_native_id(), "text": strings.code(text)}
        columns = {column.name: np.array([values[column.name]], DTYPES[column.type]) for column in MARK.columns}
        self._bus.publish(Batch(MARK, columns, strings=strings, source="user"))
        self.context.last_mark[:] = [time_ns]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop(None if exc[0] is None else min(self._patience, bus.STOP_SECONDS))

    def _abandon(self) -> None:
        """Closes the inherited handles in a forked child; the parent's session records the child's faults."""
        self._state = "abandoned"
        for source in self._sources:
            source.after_fork_in_child()
        for exporter in self._exporters:
            exporter.after_fork_in_child()


def _each(given: Any) -> Iterable[Any]:
    """The items given, where a single item need not stand in a list."""
    return given if isinstance(given, Iterable) and not isinstance(given, str | Spec) else [given]


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
