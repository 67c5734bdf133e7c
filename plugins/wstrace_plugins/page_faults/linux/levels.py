"""What perf_event_open permits: all faults, faults of user code, or nothing; and which stacks. Tried, not guessed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level, Target
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.events import Settings, StackRate
from wstrace_plugins.page_faults.linux.rings import MINOR, STACKS


def allowed(pid: int, kernel: bool) -> Level:
    """The level `full` or `user`, by opening an event on a process (0 = ourselves). Raises OSError if both fail."""
    why = Level("user", "kernel=no was given")
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
    """The level on all that is traced; it is noted in the trace's description.

    Raises:
        Unavailable: a target belongs to another user; `require` is "full" and the kernel permits less; or groups, for
            which there are no lesser levels, may not be traced.
        TargetExited: a target ended meanwhile.
    """
    if context.groups:
        if error := everywhere_refused(Settings(everywhere=True, cgroups=True)):
            raise no_groups(error)
        level = Level("full") if kernel else Level("user", "kernel=no was given")
    else:
        level = level_on(context.targets, kernel)
    context.info.level = level
    if level.name != "full" and context.require == "full":
        raise Unavailable(f"page faults: only level {level.name} works here: {level.why}", level.remedy)
    return level


def everywhere_refused(settings: Settings) -> OSError | None:
    """The error of an event of faults on all processes of a CPU, tried; None = it is permitted."""
    try:
        _try(settings._replace(everywhere=True), -1, perf.online_cpus()[0])
    except OSError as error:
        return error
    return None


def no_groups(error: OSError) -> Unavailable:
    """What a refusal of events of cgroups, or of all processes, means."""
    if error.errno == errno.EINVAL:
        return Unavailable("to tell the cgroups of faults needs Linux 5.7 with CONFIG_CGROUP_PERF", "attach by PID")
    return perf.refusal(error, everywhere=True)


def level_on(targets: Iterable[Target], kernel: bool) -> Level:
    """The lowest level among the targets, tried on each itself.

    Raises:
        Unavailable: one belongs to another user.
        TargetExited: one ended meanwhile.
    """
    lowest = Level("full")
    for target in targets:
        try:
            level = allowed(procfs.memory_task(target.pid), kernel)
        except ProcessLookupError:
            raise TargetExited(f"there is no process {target.pid}") from None
        except OSError:
            own = own_level()
            if own.name == "counters":
                return own
            raise not_ours(target.pid) from None
        if level.name != "full":
            lowest = level
    return lowest


def not_ours(pid: int) -> Unavailable:
    """The error for a process that may not be traced, although tracing is permitted on our own."""
    owner = procfs.status(pid).get("Uid", "?").split()[0]
    return Unavailable(
        f"process {pid} of uid {owner} may not be traced by uid {os.geteuid()}",
        "run wstrace as that user or as root",
    )


def refused(pid: int, error: OSError, *, children: bool) -> Unavailable:
    """What a refusal of an event on that process means; `children`: those that it starts were to be traced, too."""
    if error.errno == errno.EINVAL and not children:
        return Unavailable("to leave children out needs Linux 5.13 (inherit_thread)", "leave out children=no")
    return not_ours(pid) if error.errno in (errno.EACCES, errno.EPERM) else perf.refusal(error)


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
    except (Unavailable, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            return Level("none", f"this kernel gives faults no registers and stack ({error.strerror})")
        refused = perf.refusal(error) if isinstance(error, OSError) else error
        return Level("none", refused.why, refused.remedy)
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
