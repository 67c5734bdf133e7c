"""What perf_event_open permits: all faults, faults of user code, or nothing; and which stacks. Tried, not guessed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.events import Settings, StackRate
from wstrace_plugins.page_faults.linux.rings import MINOR, STACKS

_WITHOUT_KERNEL = Level("user", "kernel=no was given")


def allowed(pid: int, kernel: bool) -> Level:
    """The level `full` or `user`, by opening an event on a process (0 = ourselves). Raises OSError if both fail."""
    why = _WITHOUT_KERNEL
    if kernel:
        try:
            _try(Settings(), pid)
            return Level("full")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            refused = perf.refusal(error, kernel=True)
            why = Level("user", f"{refused.why}: faults taken by kernel code are not shown", refused.remedy)
    _try(Settings(kernel=False), pid)
    return why


def _try(settings: Settings, pid: int, cpu: int = -1, kind: str = MINOR) -> None:
    """Opens an event of that kind and closes it. Raises OSError, Unavailable."""
    os.close(perf.perf_event_open(settings.attributes(kind, lost=False)[0], pid, cpu))


def own_level() -> Level:
    """full, user or counters: what perf_event_open permits for the calling process; none where it is not known."""
    try:
        return allowed(0, kernel=True)
    except OSError as error:
        refused = perf.refusal(error)
        return Level("counters", refused.why, refused.remedy)
    except Unavailable as absent:
        return Level("none", absent.why, absent.remedy)


def settled_level(context: Context, kernel: bool) -> Level:
    """The lowest level on all that is traced, tried on each itself; it is noted in the trace's description.

    Raises:
        Unavailable: a target belongs to another user; `require` is "full" and the kernel permits less; or groups, for
            which there are no lesser levels, may not be traced.
        TargetExited: a target ended meanwhile.
    """
    level = Level("full") if kernel else _WITHOUT_KERNEL
    if context.groups:
        try:
            _try(Settings(everywhere=True, cgroups=True), -1, perf.online_cpus()[0])
        except OSError as error:
            raise no_groups(error) from None
    for target in context.targets:
        try:
            found = allowed(target.pid, kernel)
        except ProcessLookupError:
            raise TargetExited(f"there is no process {target.pid}") from None
        except OSError as error:
            found = own_level()
            if found.name != "counters":
                raise refused(target.pid, error) from None
        if found.name != "full":
            level = found
        if found.name == "counters":
            break
    context.info.level = level
    if level.name != "full" and context.require == "full":
        raise Unavailable(f"page faults: only level {level.name} works here: {level.why}", level.remedy)
    return level


def no_groups(error: OSError) -> Unavailable:
    """What a refusal of events of cgroups, or of all processes, means."""
    if error.errno == errno.EINVAL:
        return Unavailable("to tell the cgroups of faults needs Linux 5.7 with CONFIG_CGROUP_PERF", "attach by PID")
    return perf.refusal(error, everywhere=True)


def refused(pid: int, error: OSError, *, children: bool = True) -> Unavailable:
    """What a refusal of an event on that process means, although tracing is permitted on our own.

    children: those that it starts were to be traced, too.
    """
    if error.errno == errno.EINVAL and not children:
        return Unavailable("to leave children out needs Linux 5.13 (inherit_thread)", "leave out children=no")
    if error.errno not in (errno.EACCES, errno.EPERM):
        return perf.refusal(error)
    owner = procfs.status(pid).get("Uid", "?").split()[0]
    return Unavailable(
        f"process {pid} of uid {owner} may not be traced by uid {os.geteuid()}",
        "run wstrace as that user or as root",
    )


def stack_levels() -> Mapping[str, Level]:
    """What the option `stacks` can give a fault here, each tried."""
    from wstrace_plugins.page_faults.linux.python_stacks.kernel import tried

    return {"stacks=python": tried(), "stacks=native": native_level()}


def native_level() -> Level:
    """`sampled` where an event with registers and stack opens on the calling process, else none and why."""
    own = own_level()
    if own.name not in ("full", "user"):
        return Level("none", own.why, own.remedy)
    try:
        _try(Settings(kernel=own.name == "full", stacks=StackRate(1)), 0, kind=STACKS)
    except OSError as error:
        return Level("none", f"this kernel gives faults no registers and stack ({error.strerror})")
    except Unavailable as absent:
        return Level("none", absent.why, absent.remedy)
    return Level("sampled", own.why, own.remedy)


_PAUSE_SECONDS = 0.1


class FaultCounters:
    """Counts minor and major faults by rusage or /proc/PID/stat: a fault has no thread, instruction or address."""

    def __init__(self, context: Context) -> None:
        self._context, self._looks = context, 0
        context.info.note("addresses, instructions and threads of faults (level counters)")

    def drain(self, timeout: float) -> None:
        """Waits at most `timeout` seconds, and reads the counts: each target remembers its own, and its peak."""
        self._looks += 1
        for target in self._context.targets:
            target.usage()
        time.sleep(min(timeout, _PAUSE_SECONDS))

    def stop(self) -> None:
        """Writes the system's own counts into the ledger."""
        usages = [target.usage() for target in self._context.targets]
        for kind, counts in (("minor", [u.minor for u in usages]), ("major", [u.major for u in usages])):
            total = sum(count or 0 for count in counts)
            self._context.ledger.set("counted", total, kind)
            self._context.ledger.set("unaccounted", total, kind)

    @property
    def finished(self) -> bool:
        """Whether no process is left, if the trace waits for all; else False."""
        pids = [target.pid for target in self._context.targets if procfs.exists(target.pid)]
        children = procfs.descendants(*pids) if self._context.children and pids else ()
        return self._context.wait_children and self._looks > 0 and not pids and not children
