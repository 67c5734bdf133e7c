"""The daemon's life: it begins sessions, holds them within its limits, and ends them; it records nothing itself.

A session is a child process, so its memory goes with it, and it can be made to stand still as a whole. What the node
faults without a session is counted. A source or an output that fails ends the daemon: its supervisor starts it again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

from wstrace.errors import OutputError, WstraceError
from wstrace.options import Config
from wstrace.text import size
from wstrace_plugins.daemon import BETWEEN
from wstrace_plugins.daemon.limits import Limits
from wstrace_plugins.daemon.linux.health import Health, State
from wstrace_plugins.daemon.settings import Daemon
from wstrace_plugins.os.linux import vmstat

_LOOK_SECONDS = 0.5
#: Past this part of `max_memory` it looks so often: between looks half a second apart a storm went from 135 to 169 MiB.
_NEAR, _NEAR_SECONDS = 0.75, 0.1
#: Seconds without a session at least, and for which one that is let go, or one that is asked to end, may take.
_WITHOUT_SECONDS, _LET_GO_SECONDS, _END_SECONDS = 5.0, 15.0, 60.0
_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Child:
    """A session's process.

    Args:
        config: the settings, which it checks.

    Attributes:
        own: its table `[daemon]`, once it has checked them. ready: whether it traces.
        facts: what it said of itself last.
    """

    def __init__(self, config: Config) -> None:
        self.link, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wstrace_plugins.daemon.linux.session", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"},
            )
        self.own: Daemon | None = None
        self.ready = self._still = False
        self.absent: list[str] = []
        self.facts: dict[str, Any] = {}
        self.link.send(config)

    def take(self) -> None:
        """Takes what it says.

        Raises:
            WstraceError: it has failed.
            EOFError: it has ended without a word of why.
        """
        try:
            said = self.link.recv()
        except ConnectionResetError:
            raise EOFError from None
        if isinstance(said, WstraceError):
            raise said
        if isinstance(said, Daemon):
            self.own = said
        else:
            self.absent = said.pop("absent", self.absent)
            self.facts, self.ready = self.facts | said, True

    def counts(self) -> dict[str, int]:
        """What it has recorded, and lost by stage."""
        return {"recorded": self.facts.get("recorded", 0), **self.facts.get("lost", {})}

    def tell(self, word: object) -> None:
        """Says something to it: of how many faults one is to be recorded."""
        with contextlib.suppress(OSError):  # that it has ended is found when it is read from
            self.link.send(word)

    def stand_still(self, still: bool) -> None:
        """Stops it, or lets it go on."""
        if still != self._still:
            self._still = still
            self._process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)

    def used(self) -> tuple[float, int]:
        """(CPU seconds of it and of what it has started, resident bytes); (0, 0) = it has ended."""
        try:
            words = Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b") ")[2].split()
        except OSError:
            return 0.0, 0
        return sum(map(int, words[11:15])) / _TICK, int(words[21]) * _PAGE  # proc_pid_stat(5): utime to cstime, rss

    def end(self, seconds: float, most: float = float("inf"), cpu: float = float("inf")) -> str:
        """Ends it; past so many seconds, resident bytes or CPU seconds it is killed. Returns how, "" = whole."""
        self.stand_still(False)
        self.tell(None)
        until, failed, cpu = time.monotonic() + seconds, "", cpu + self.used()[0]

        def may() -> bool:
            used, resident = self.used()
            return time.monotonic() < until and resident <= most and used <= cpu

        try:
            while may():
                if self.link.poll(0.02):
                    self.take()
        except EOFError:
            until = time.monotonic() + 1.0
        except WstraceError as error:
            failed, until = str(error), time.monotonic() + 1.0
        self.link.close()
        while self._process.poll() is None and may():
            time.sleep(0.02)
        code = self._process.poll()
        if code is None:
            self._process.kill()
            code = self._process.wait()
        return failed or (f"the session ended by signal {-code}" if code < 0 else "")


class NodeDaemon:
    """Runs the sessions that a file describes.

    Args:
        path: the file of settings; None = the defaults.
        say: writes a line for the administrator.
    """

    def __init__(self, path: str | None, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._ending = False
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # as a handler may take no lock
        self._child: Child | None = None
        self._health: Health | None = None
        self._began = time.monotonic()
        self._before: Counter[str] = Counter()  # what earlier sessions have recorded and lost, added up
        self._resident = self._sessions = 0
        self._facts: dict[str, Any] = {"exporters": {}}
        self._ended_at: int | None = None  # the node's faults when the last session ended
        self._idle_until = 0.0

    def end(self) -> None:
        """Asks for the end; may be called by a signal handler."""
        self._ending = True
        os.write(self._wake, b".")

    @property
    def address(self) -> str:
        """Where the health endpoint answers, "" = nowhere."""
        return self._health.address if self._health is not None else ""

    @property
    def cgroups(self) -> list[str]:
        """The cgroups that are traced, [] = every process."""
        return self._own.cgroups

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Runs until end(). `ready` is called when the first session traces.

        Raises:
            WstraceError: a session could not start or failed, or the last one did not end whole.
        """
        self._config = Config.load(self._path, project=False)
        try:
            self._own = own = self._load(child := Child(self._config))
            self._limits = Limits(own.max_cpu, own.max_memory)
            self._health = Health(own.health, self._state) if own.health is not None else None
            self._go(child)
            ready()
            while not self._ending:
                self._turn()
            if failed := self._stop(_END_SECONDS):
                raise OutputError(failed)
        finally:
            if self._child is not None:  # another error ends it
                self._stop(_LET_GO_SECONDS)
            if self._health is not None:
                self._health.close()
            os.close(self._woken)
            os.close(self._wake)

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _load(self, child: Child) -> Daemon:
        """Waits until a child has checked its settings. Raises WstraceError: they are refused."""
        try:
            while child.own is None:
                child.take()
        except BaseException as error:
            child.end(0.0)
            if isinstance(error, EOFError):
                raise OutputError("a session could not begin") from None
            raise
        return child.own

    def _go(self, child: Child) -> None:
        """Lets a child begin, and waits until it traces. Raises WstraceError."""
        self._child = child
        child.tell(self._ended_at)
        while not child.ready and not self._ending:
            self._turn()
            if self._child is not child:
                return
        self._sessions += 1
        for line in child.absent:
            self._say(line)
        self._limits.begin(time.monotonic())
        child.tell(self._limits.every)

    def _stop(self, seconds: float, most: float = float("inf"), cpu: float = float("inf")) -> str:
        """Ends the session, if there is one, and adds its counts to those before. Returns why it is not whole."""
        child = self._child
        if child is None:
            return ""
        failed = child.end(seconds, most, cpu)
        if not failed:  # what one that was killed had not reported is counted as not recorded
            self._ended_at = vmstat.node_faults().faults
        self._before.update(child.counts())
        self._child = None
        return failed

    def _begin(self) -> None:
        """Begins a session with the settings in force. Raises WstraceError."""
        child = Child(self._config)
        self._load(child)
        self._go(child)

    # -- limits -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Waits for a signal or a report, and follows CPU and memory. Raises WstraceError: the session has failed."""
        child = self._child
        seconds = _LOOK_SECONDS if self._resident < _NEAR * self._limits.max_memory else _NEAR_SECONDS
        found = wait([self._woken, *([child.link] if child is not None else ())], seconds)
        if self._woken in found:
            os.read(self._woken, 64)
        if child is not None and child.link in found:
            try:
                child.take()
            except EOFError:
                if not child.ready:
                    raise OutputError("a session could not begin") from None
                self._let_go("it has ended by itself")
                return
            self._facts = child.facts
            if child.ready:
                self._ended_at = vmstat.node_faults().faults
        self._look(time.monotonic())

    def _look(self, now: float) -> None:
        limits, child = self._limits, self._child
        seconds, resident = child.used() if child is not None else (0.0, 0)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = time.process_time() + ended.ru_utime + ended.ru_stime + seconds
        self._resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE + resident
        rests = limits.rests(now, used)
        if child is None:
            if limits.may_begin and now >= self._idle_until:
                self._begin()
            return
        if not child.ready and not self._sessions:
            limits.open(now, used)  # what the first start uses is not taken from what it may use from then on
            return
        child.stand_still(rests)
        before = limits.every
        limits.look(now, used, child.facts.get("late", 0))
        if limits.every != before and child.ready:
            child.tell(limits.every)
        if reason := limits.let_go(now, self._resident):
            self._let_go(reason)

    def _let_go(self, reason: str) -> None:
        self._say(f"the session is let go at {size(self._resident)}: {reason}; faults are counted until the next one")
        own = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
        failed = self._stop(_LET_GO_SECONDS, 1.15 * self._limits.max_memory - own, self._limits.for_the_end)
        if failed:
            self._say(failed)
        self._idle_until = time.monotonic() + _WITHOUT_SECONDS

    # -- health -----------------------------------------------------------------------------------------------------

    def _state(self) -> State:
        """The state now; called on the endpoint's threads."""
        child, limits, facts = self._child, self._limits, self._facts
        counted = Counter(self._before)
        if child is not None:
            counted.update(child.counts())
        if (child is None or not child.ready) and self._ended_at is not None:
            counted[BETWEEN] += max(0, (vmstat.node_faults().faults or 0) - self._ended_at)
        stalled = any(facts["exporters"].values()) if "exporters" in facts else False
        word = "an output is stalled" if stalled else "tracing"
        if child is None or not child.ready:
            word = "counting" if self._sessions else "not tracing"
        elif not stalled and limits.every > 1:
            word = "sampling"
        return State(not stalled and word != "not tracing", word, {
            "state": word,
            "seconds": round(time.monotonic() - self._began, 1),
            "config": self._path or "",
            "sessions": self._sessions,
            "recorded": counted.pop("recorded", 0),
            "lost": {stage: n for stage, n in sorted(counted.items()) if n},
            "cpu": {"share": round(limits.share, 4), "max": limits.max_cpu, "seconds": round(limits.used, 2)},
            "memory": {"resident": self._resident, "max": limits.max_memory},
            "sampled": limits.every,
            **{key: value for key, value in facts.items() if key in ("exporters", "cgroups", "cgroup_paths")},
        })  # fmt: skip
