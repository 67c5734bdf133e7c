"""The daemon's life: it begins a session, holds it within its limits, and ends it.

Python gives little memory back. Therefore the process executes itself anew for each further session: it keeps its pid,
what it has used of its CPU time, the socket of its health endpoint and what is in `Kept`, and nothing else. What the
node faults without a session is counted. A source or an output that fails ends the daemon: its supervisor starts it
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pickle
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.errors import OutputError, TargetExited, WstraceError, quietly
from wstrace.interfaces import Context, Exporter, Group, Source
from wstrace.options import Config
from wstrace.plugins import default_plugins
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.text import printable, size
from wstrace_plugins.daemon import BETWEEN
from wstrace_plugins.daemon.limits import Limits
from wstrace_plugins.daemon.linux.health import State, listening, serve
from wstrace_plugins.daemon.settings import Settings
from wstrace_plugins.os.linux import procfs

#: Seconds between two readings of what was used, and past this part of `max_memory`: between readings half a second
#: apart a storm went from 135 to 169 MiB.
_READ_SECONDS, _NEAR, _NEAR_SECONDS = 0.25, 0.75, 0.1
#: For which the process stands still at a time, while its CPU account is overdrawn, and answers between.
_STILL_SECONDS, _ANSWER_SECONDS = 0.5, 0.005
#: Seconds without a session at least; for which one may take to end past its memory, of which it may have so much.
_WITHOUT_SECONDS, _END_SECONDS, _END_MEMORY = 5.0, 15.0, 1.15
#: Paths of cgroups in the state: a machine may have very many.
_MOST_NAMES = 1000
#: the stages at which a record is lost because those behind it are late
_LATE = ("lost_kernel", "dropped_bus", "dropped_exporter")
#: the descriptor of what is kept, for the process that goes on
_KEPT = "_WSTRACE_DAEMON"
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Paced:
    """A source that records one out of as many faults as `every` says."""

    def __init__(self, source: Source) -> None:
        self._source, self.every = source, 1
        self.set_to = 0  # so that the first rate is set, too: each row says what it stands for

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def drain(self, timeout: float) -> Iterable[Batch]:
        """What the source gives, at the rate that is wanted now."""
        if self.every != self.set_to and self._source.record_one_in(self.every):
            self.set_to = self.every
        return self._source.drain(timeout)


class Seen(Exporter):
    """Notes which cgroups have faulted and, in the trace's description, for how many faults a row stands on average."""

    name = "seen"
    streams = frozenset({"page_fault"})

    def start(self, context: Context) -> None:
        """Begins with nothing."""
        self._context, self._rows, self._in_all = context, 0, 0
        self.cgroups = frozenset[int]()

    def export(self, batch: Batch) -> None:
        """Counts a batch."""
        self._rows += len(batch)
        self._in_all += int(batch["sampled"].sum()) if "sampled" in batch else len(batch)
        if self._in_all > self._rows:
            self._context.info.sampled = max(2, round(self._in_all / self._rows))
        if "cgroup" in batch:
            self.cgroups = self.cgroups.union(distinct(batch["cgroup"]).tolist()) - {0}  # read by another thread


@dataclass
class Kept:
    """What the process that executes itself anew goes on with.

    Attributes:
        counts: what earlier sessions have recorded, and lost by stage. faults: of the node at the end of the last one.
        socket: the descriptor of the health endpoint, -1 = it has none.
        after: the time before which no session begins.
    """

    config: Config
    limits: Limits
    socket: int
    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    faults: int | None = None
    sessions: int = 0
    after: float = 0.0


def resident() -> int:
    """The bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def used() -> float:
    """The CPU seconds of this process, and of those that it has started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class NodeDaemon:
    """Runs the sessions that a file describes.

    Args:
        path: the file of settings; None = the defaults.
        say: writes a line for the administrator.

    Attributes:
        goes_on: whether earlier sessions of this process have ended.

    Raises:
        WstraceError: the settings are wrong, or the address of the health endpoint is taken.
    """

    def __init__(self, path: str | None, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        descriptor = os.environ.pop(_KEPT, "")
        if not _is_kept(descriptor):
            descriptor = ""
        self.goes_on = bool(descriptor)
        if descriptor:
            with os.fdopen(int(descriptor), "rb") as file:
                self._kept: Kept = pickle.load(file)  # noqa: S301  which this process has written
        config = self._kept.config if descriptor else Config.load(path, project=False)
        self._settings = Settings(config, default_plugins())
        if not descriptor:
            own = self._settings.own
            at = listening(own.health).detach() if own.health is not None else -1
            self._kept = Kept(config, Limits(own.max_cpu, own.max_memory), at)
        self._session: Session | None = None  # while it traces
        self._seen = Seen()
        self._paced: list[Paced] = []

    def run(self, ready: Callable[[str], None]) -> None:
        """Runs until a signal ends it. `ready` is called with what it does when the first session traces.

        Raises:
            WstraceError: a session could not start or failed, or the last one did not end whole.
        """
        asyncio.run(self._run(ready))

    async def _run(self, ready: Callable[[str], None]) -> None:
        kept, ended = self._kept, asyncio.Event()
        for number in _ENDING:
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        address = ""
        if kept.socket >= 0:
            listener = socket.socket(fileno=kept.socket)
            host, port = listener.getsockname()[:2]
            address = f"; its state: {f'[{host}]' if ':' in host else host}:{port}"
            self._serving = asyncio.ensure_future(serve(listener, self.state))
        while kept.sessions and not ended.is_set() and not self._may_begin():
            await _wait(ended, _READ_SECONDS)
        if ended.is_set():
            return
        session = self._new_session()
        await asyncio.to_thread(session.start)
        self._session = session
        if kept.faults is not None:
            session.ledger.add(BETWEEN, self._between())
        kept.sessions += 1
        if kept.sessions == 1:
            what = "the cgroups of its settings" if self._settings.own.cgroups else "every process of this machine"
            ready(f"tracing {what}{address}")
        try:
            reason = await self._follow(session, ended)
        except BaseException:
            with contextlib.suppress(WstraceError):  # the first error is the one that is said
                session.stop()
            raise
        if not reason:
            await asyncio.to_thread(session.stop)
            _check(session, at_end=True)
            return
        self._say(f"the session is let go at {size(resident())}: {reason}; faults are counted until the next one")
        await self._let_go(session, ended)

    # -- a session ---------------------------------------------------------------------------------------------------

    def _new_session(self) -> Session:
        """A session with the settings in force. Raises TargetExited: no cgroup of the settings is there."""
        settings, plugins = self._settings, default_plugins()
        sources, exporters = settings.make()
        groups, absent = list[Group](), list[TargetExited]()
        for path in settings.own.cgroups:
            try:
                groups.append(plugins.platform.group("cgroup", path))
            except TargetExited as gone:
                absent.append(gone)
        if absent and not groups:
            raise TargetExited("; ".join(error.why for error in absent), absent[-1].remedy)
        for error in absent:
            self._say(str(error))
        if not any(source.needs_target for source in sources):
            groups = []
        elif not groups:
            groups = [plugins.platform.group("all")]
        self._paced = [Paced(source) for source in sources if PAGE_FAULT in source.streams]
        return Session(
            groups=groups,
            sources=[*cast(list[Source], self._paced), *(one for one in sources if PAGE_FAULT not in one.streams)],
            exporters=[*exporters, self._seen],
            require="full",
            record=False,
            plugins=plugins,
            config=self._kept.config,
            queue_bytes=settings.queue_bytes,
        )

    async def _follow(self, session: Session, ended: asyncio.Event) -> str:
        """Holds the session within its limits. Returns why it is to end, "" = the daemon is.

        Raises:
            OutputError: it has failed.
        """
        kept, limits = self._kept, self._kept.limits
        limits.begin(time.monotonic())
        while not ended.is_set():
            now = time.monotonic()
            if limits.rests(now, used()):
                _stand_still(_STILL_SECONDS)
            limits.adapt(now, used(), sum(map(session.ledger.get, _LATE)))
            for source in self._paced:
                source.every = limits.every
            kept.faults = procfs.node_faults().faults
            _check(session)
            taken = resident()
            if reason := limits.let_go(now, taken):
                return reason
            if not limits.overdrawn:
                await _wait(ended, _READ_SECONDS if taken < _NEAR * limits.max_memory else _NEAR_SECONDS)
            else:  # what waits at the health endpoint is answered
                await asyncio.sleep(_ANSWER_SECONDS)
        return ""

    async def _let_go(self, session: Session, ended: asyncio.Event) -> None:
        """Ends the session as far as time, memory and CPU time allow; executes this process anew if no signal came."""
        kept = self._kept
        most_bytes, most_cpu = _END_MEMORY * kept.limits.max_memory, used() + kept.limits.for_the_end
        self._session = None
        kept.after = time.monotonic() + _WITHOUT_SECONDS
        ending, until = asyncio.ensure_future(asyncio.to_thread(session.stop)), time.monotonic() + _END_SECONDS
        while not ending.done() and time.monotonic() < until and resident() <= most_bytes:
            if used() > most_cpu and not ended.is_set():
                break
            await asyncio.wait([ending], timeout=0.02)
        if not ending.done():
            self._say("the session could not end within its limits: what it held back is counted as not recorded")
        elif failed := ending.exception():
            self._say(str(failed))
        else:  # else what it held back is counted as not recorded
            kept.faults = procfs.node_faults().faults
        kept.counts.update(_counts(session))
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # a later one waits for the process that goes on
        await asyncio.sleep(0.01)  # one that came just before is seen by the loop
        if ended.is_set():
            if not ending.done():  # its thread would be waited for
                os._exit(OutputError.exit_code)
            return
        descriptor = os.memfd_create("wstrace", 0)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            pickle.dump(kept, file)
        os.lseek(descriptor, 0, os.SEEK_SET)
        if kept.socket >= 0:
            os.set_inheritable(kept.socket, True)
        os.environ[_KEPT] = str(descriptor)
        os.execv(sys.executable, sys.orig_argv)

    def _may_begin(self) -> bool:
        """Whether a further session may begin: the last one is some seconds ago, and enough CPU time is saved."""
        now, limits = time.monotonic(), self._kept.limits
        limits.rests(now, used())
        return limits.may_begin and now >= self._kept.after

    def _between(self) -> int:
        """The faults of the node since the last session."""
        return max(0, (procfs.node_faults().faults or 0) - (self._kept.faults or 0))

    # -- health ------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The state now, for the health endpoint."""
        kept, limits, session = self._kept, self._kept.limits, self._session
        counted, more, word = Counter(kept.counts), dict[str, Any](), "counting" if kept.sessions else "not tracing"
        if session is None:
            counted[BETWEEN] += self._between() if kept.faults is not None else 0
        else:
            counted.update(_counts(session))
            codes = sorted(self._seen.cgroups)
            exporters = [queue.exporter for queue in session.exporter_queues if queue.exporter is not self._seen]
            stalled = {one.name: quietly(partial(getattr, one, "stalled"), "") for one in exporters}
            more["exporters"] = {name: printable(text, 300) for name, text in stalled.items()}
            more["cgroups"] = len(codes)
            more["cgroup_paths"] = [printable(session.name(code), 300) for code in codes[:_MOST_NAMES]]
            word = "sampling" if limits.every > 1 else "tracing"
            if limits.overdrawn:
                word = "standing still"
            if any(more["exporters"].values()):
                word = "an output is stalled"
        return State(word in ("tracing", "sampling", "standing still"), {
            "state": word,
            "seconds": round(time.monotonic() - kept.began, 1),
            "config": self._path or "",
            "sessions": kept.sessions,
            "recorded": counted.pop("recorded", 0),
            "lost": {stage: n for stage, n in sorted(counted.items()) if n},
            "cpu": {"share": round(limits.share, 4), "max": limits.max_cpu, "seconds": round(limits.used, 2)},
            "memory": {"resident": resident(), "max": limits.max_memory},
            "sampled": limits.every,
            **more,
        })  # fmt: skip


def _stand_still(seconds: float) -> None:
    """Keeps all threads of this process from running Python for so long: this one holds the GIL while it sleeps.

    A source that has begun to read full buffers would go on for seconds of CPU time.
    """
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def _is_kept(descriptor: str) -> bool:
    """Whether a descriptor is what _let_go() has written, and not what somebody put into the environment."""
    try:
        return (
            descriptor.isdecimal() and str(Path(f"/proc/self/fd/{descriptor}").readlink()) == "/memfd:wstrace (deleted)"
        )
    except OSError:
        return False


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    """Waits so long, or until the end."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)


def _check(session: Session, *, at_end: bool = False) -> None:
    """Raises OutputError where an output has failed, or nothing more comes."""
    for queue in session.exporter_queues:
        if queue.detached or (queue.error and at_end):
            raise OutputError(f"exporter {queue.name} failed: {queue.detached or queue.error}")
    if session.finished and not at_end:
        raise OutputError("the sources ended")


def _counts(session: Session) -> dict[str, int]:
    """What a session has recorded, and lost by stage."""
    lost = {f"{stage}:{who}" if who else stage: n for stage, who, n in session.ledger.losses()}
    return {"recorded": session.ledger.get("recorded"), **lost}
