"""One session of the daemon, in a process of its own: its memory goes with it, and it can be stopped as a whole.

Over the link it gets the settings, the word to begin and, later, of how many faults one is to be recorded; it answers
with the table `[daemon]`, and with what it knows of itself about once a second. It ends when the link does.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, ClassVar, cast

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.errors import OutputError, TargetExited, WstraceError, quietly, why
from wstrace.interfaces import Context, Exporter, Group, Source
from wstrace.options import Config
from wstrace.plugins import Plugins, default_plugins
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.text import printable
from wstrace_plugins.daemon import BETWEEN
from wstrace_plugins.daemon.settings import checked
from wstrace_plugins.os import backend

#: Seconds between two reports; the kernel's buffers are read so often, as a read costs as much as dozens of faults.
_REPORT_SECONDS, _PACE_SECONDS = 1.0, 2.0
#: Paths of cgroups in a report: a machine may have very many.
_MOST_NAMES = 1000
#: the stages at which a record is lost because those behind it are late
_LATE = ("lost_kernel", "dropped_bus", "dropped_lane")
_PR_SET_PDEATHSIG = 1  # Source: include/uapi/linux/prctl.h


class Paced:
    """A source that is read every two seconds, and records one out of as many faults as `every` says."""

    drain_seconds = _PACE_SECONDS

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
    """Which cgroups have faulted; the trace's description learns for how many faults a row stands on average."""

    name: ClassVar[str] = "seen"
    streams: ClassVar[frozenset[str] | None] = frozenset({"page_fault"})

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


def node_faults() -> int:
    """The page faults of all processes since boot; 0 = this system does not say."""
    return int(backend("wstrace_plugins.os").node_faults().faults or 0)


def _groups(paths: list[str], plugins: Plugins) -> tuple[list[Group], list[str]]:
    """(what is traced: the cgroups that there are of these, or every process; a line for each that there is not).

    Raises:
        TargetExited: there is none.
    """
    found, absent = list[Group](), list[TargetExited]()
    for path in paths:
        try:
            found.append(plugins.platform.group("cgroup", path))
        except TargetExited as error:
            absent.append(error)
    if absent and not found:
        raise TargetExited("; ".join(error.why for error in absent), absent[-1].remedy)
    return found or [plugins.platform.group("all")], [str(one) for one in absent]


def run(link: Connection) -> None:
    """Traces until the link ends, and reports over it.

    Raises:
        WstraceError: the settings are wrong, or the session could not start, failed, or did not end whole.
    """
    plugins, config = default_plugins(), cast(Config, link.recv())
    settings = checked(config, plugins)
    link.send(settings.own)
    ended_at: int | None = link.recv()
    sources, exporters = settings.make()
    paced = [Paced(source) for source in sources if PAGE_FAULT in source.streams]
    others = [source for source in sources if PAGE_FAULT not in source.streams]
    groups, absent = _groups(settings.own.cgroups, plugins) if any(one.needs_target for one in sources) else ([], [])
    seen = Seen()
    session = Session(
        groups=groups,
        sources=[*cast(list[Source], paced), *others],
        exporters=[*exporters, seen],
        require="full",
        record=False,
        plugins=plugins,
        config=config,
        queue_bytes=settings.queue_bytes,
    )
    session.start()
    if ended_at is not None:
        session.ledger.add(BETWEEN, max(0, node_faults() - ended_at))
    link.send({"absent": absent, **_report(session, seen)})
    try:
        _follow(session, seen, paced, link)
    finally:
        try:
            session.stop()
        finally:
            link.send(_report(session, seen))
    _check(session)


def _follow(session: Session, seen: Seen, paced: list[Paced], link: Connection) -> None:
    """Reports, and sets the wanted rate, until the link says None. Raises OutputError: it has failed."""
    known = 0
    while True:
        report = _report(session, seen)
        if len(codes := seen.cgroups) != known:
            known = len(codes)
            names = [printable(session.name(code), 300) for code in sorted(codes)[:_MOST_NAMES]]
            report |= {"cgroups": known, "cgroup_paths": names}
        link.send(report)
        _check(session, going=True)
        if link.poll(_REPORT_SECONDS):
            every = link.recv()
            if every is None:
                return
            for source in paced:
                source.every = every


def _check(session: Session, *, going: bool = False) -> None:
    for queue in session.exporter_queues:
        if queue.detached or (queue.error and not going):
            raise OutputError(f"exporter {queue.name} failed: {queue.detached or queue.error}")
    if going and session.finished:
        raise OutputError("the sources ended")


def _report(session: Session, seen: Seen) -> dict[str, Any]:
    ledger = session.ledger
    lost = {f"{stage}:{who}" if who else stage: n for stage, who, n in ledger.losses()}
    queues = [queue for queue in session.exporter_queues if queue.exporter is not seen]
    stalled = {queue.name: printable(_stalled(queue.exporter), 300) for queue in queues}
    late = sum(map(ledger.get, _LATE))
    return {"recorded": ledger.get("recorded"), "lost": lost, "late": late, "exporters": stalled}


def _stalled(exporter: Exporter) -> str:
    return quietly(lambda: exporter.stalled, "")


def main(descriptor: int) -> None:
    """Runs a session over an inherited descriptor; an error goes to the other end as an exception."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the daemon, which ends the link
    # A daemon that is killed leaves no session behind that stands still: it goes on, and finds the end of the link.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    with Connection(descriptor) as link:
        try:
            run(link)
        except (EOFError, BrokenPipeError):
            return
        except BaseException as error:
            link.send(error if isinstance(error, WstraceError) else WstraceError(why(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
