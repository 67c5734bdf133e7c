"""The daemon's life: it traces until a signal or an error ends it; after an error its supervisor starts it again.

Only a reload of the settings replaces the session. What the node faults meanwhile is counted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from wstrace.errors import OutputError, TargetExited, WstraceError
from wstrace.interfaces import Group
from wstrace.plugins import Plugins
from wstrace.session import Session
from wstrace.text import size
from wstrace_plugins.daemon import BETWEEN
from wstrace_plugins.daemon.health import Health
from wstrace_plugins.daemon.limits import Governed, Limits
from wstrace_plugins.daemon.settings import Settings, load
from wstrace_plugins.daemon.state import State
from wstrace_plugins.os import backend

_LOOK_SECONDS = 1.0
#: Seconds for which memory may stay over the limit, while records are dropped, until the daemon ends.
_OVER_SECONDS = 60.0


class NodeDaemon:
    """Runs the sessions that a file describes.

    Args:
        path: the file of settings; None = the defaults.
        plugins: where sources and exporters come from.
        say: writes a line for the administrator.
    """

    def __init__(self, path: str | None, plugins: Plugins, say: Callable[[str], None]) -> None:
        self._path, self._plugins, self._say = path, plugins, say
        # No Event: its lock may be held where a signal arrives, and the handler would wait for it for ever.
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._ending = self._reloading = False
        self.state = State(path or "")
        self._limits: Limits | None = None
        self._health: Health | None = None
        self._where: str | tuple[str, int] | None = None
        self._over_since = 0.0
        self._node_faults = 0

    def end(self) -> None:
        """Asks for the end; may be called by a signal handler."""
        self._ending = True
        self._wake()

    def reload(self) -> None:
        """Asks to read the settings again; may be called by a signal handler."""
        self._reloading = True
        self._wake()

    def _wake(self) -> None:
        if self._woken.empty():
            self._woken.put(None)

    @property
    def address(self) -> str:
        """Where the health endpoint answers, "" = nowhere."""
        return self._health.address if self._health is not None else ""

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Runs until end(). `ready` is called when the first session traces.

        Raises:
            WstraceError: a session could not start or failed, or the last one did not end whole.
        """
        self._settings = load(self._path, self._plugins)
        try:
            self._serve(self._settings)
            self._start(self._settings)
            ready()
            while not self._ending:
                with contextlib.suppress(Empty):
                    self._woken.get(timeout=_LOOK_SECONDS)
                if self._reloading:
                    self._reloading = False
                    self._reload()
                if not self._ending:
                    self._look(time.monotonic())
            self._stop()
        finally:
            if self.state.session is not None:  # another error ends it
                with contextlib.suppress(WstraceError):
                    self._stop()
            if self._health is not None:
                self._health.close()

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _start(self, settings: Settings) -> None:
        """Begins a session. Raises WstraceError."""
        own, used = settings.own, time.process_time()
        limits = Limits(own.max_cpu, own.max_memory, time.monotonic(), used)
        if self._limits is not None:
            limits.every = self._limits.every
        sources, exporters = settings.make()
        governed = [Governed(source, limits) for source in sources]
        session = Session(
            groups=self._groups(own.cgroups) if any(source.needs_target for source in sources) else (),
            sources=governed,
            exporters=exporters,
            require="full",
            record=False,
            plugins=self._plugins,
            config=settings.config,
            queue_bytes=settings.queue_bytes,
        )
        session.start()
        limits.open(time.monotonic(), time.process_time())
        self._limits = self.state.limits = limits
        self.state.session, self.state.governed = session, governed
        self.state.sessions += 1
        if self.state.sessions > 1:
            session.ledger.add(BETWEEN, max(0, _node_faults() - self._node_faults))

    def _groups(self, paths: list[str]) -> list[Group]:
        """What is traced: the cgroups that there are of these, or every process. Raises TargetExited: there is none."""
        platform, found = self._plugins.platform, list[Group]()
        absent: list[TargetExited] = []
        for path in paths:
            try:
                found.append(platform.group("cgroup", path))
            except TargetExited as error:
                absent.append(error)
        for one in absent if found else absent[:-1]:
            self._say(str(one))
        if absent and not found:
            raise absent[-1]
        return found or [platform.group("all")]

    def _stop(self) -> None:
        """Ends the session, if there is one. Raises WstraceError: a source failed, or an output is not whole."""
        session = self.state.session
        if session is None:
            return
        try:
            session.stop()
        finally:
            self._node_faults = _node_faults()
            self.state.ended(session)
        for queue in session.exporter_queues:
            if queue.error or queue.detached:
                raise OutputError(f"exporter {queue.name}: {queue.error or queue.detached}")

    def _reload(self) -> None:
        """Takes the settings of the file; where these are refused, those in force go on.

        Raises:
            WstraceError: neither can be traced with.
        """
        try:
            settings = load(self._path, self._plugins)
            self._serve(settings)
        except WstraceError as error:
            self._refuse(error)
            return
        try:
            self._stop()
        except WstraceError as error:
            self._say(str(error))
        try:
            self._start(settings)
        except WstraceError as error:
            self._refuse(error)
            self._serve(self._settings)
            self._start(self._settings)
            return
        self._settings, self.state.refused = settings, ""
        self._say(f"{self._path or 'defaults'}: reloaded")

    def _refuse(self, error: WstraceError) -> None:
        self.state.refused = str(error)
        self._say(f"reload refused, the old settings go on: {error}")

    def _look(self, now: float) -> None:
        """Follows CPU and memory, about once a second. Raises OutputError: the session goes no further."""
        session, limits = self.state.session, self._limits
        assert session is not None
        assert limits is not None
        this = self._plugins.platform.process(os.getpid())
        self.state.resident = this.resident if this is not None else 0
        limits.look(now, time.process_time(), self.state.resident, self.state.lost())
        self._over_since = (self._over_since or now) if limits.over else 0.0
        for queue in session.exporter_queues:
            if queue.detached:
                raise OutputError(f"exporter {queue.name} failed: {queue.detached}")
        if session.finished:
            raise OutputError("the sources ended")
        if self._over_since and now - self._over_since >= _OVER_SECONDS:
            raise OutputError(
                f"{size(self.state.resident)} are over max_memory",
                "give more, or trace fewer cgroups or without stacks",
            )

    def _serve(self, settings: Settings) -> None:
        """Opens the health endpoint of these settings, unless it is open already. Raises OutputError."""
        if self._health is not None and self._where == settings.own.health:
            return
        new = Health(settings.own.health, self.state.tell) if settings.own.health is not None else None
        if self._health is not None:
            self._health.close()
        self._health, self._where = new, settings.own.health


def _node_faults() -> int:
    """The page faults of all processes since boot; 0 = this system does not tell them."""
    return int(backend("wstrace_plugins.os").node_faults().faults or 0)
