"""The perf events on the traced threads: three to seven per thread and CPU, which the threads they start inherit.

And which of them the kernel permits: all faults, faults of user code, or nothing; and which stacks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level
from wstrace.text import plural
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.calls import watch_births
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, SIDE, STACKS, Rings
from wstrace_plugins.page_faults.linux.samples import DUMP_BYTES, REGISTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FAULTS = (MINOR, MAJOR)
REMAP = "remap"  # the kind of tracepoints, which write into the side band's ring
#: So often are events stopped again, at most.
_MOST_STOPS = 20


_MACHINE = "x86_64"


class StackRate(NamedTuple):
    """How often a fault is sampled: one out of `period`, or, where that is 0, `rate` a second, per thread and CPU."""

    rate: int
    period: int = 0


def stack_attributes(stacks: StackRate, bits: Sequence[str], fields: Mapping[str, int]) -> NDArray[Any]:
    """Its perf_event_attr: minor and major faults alike, with these further bits and fields.

    Raises Unavailable: the machine is not x86-64, so that neither these registers nor the unwinder fit it.
    """
    if platform.machine() != _MACHINE:
        raise Unavailable(f"native stacks are unwound on {_MACHINE} only, this machine is {platform.machine()}")
    often = stacks.period
    if not often:
        # the kernel lowers this limit when samples take too long, and refuses a higher rate
        often = min(stacks.rate, procfs.setting("kernel/perf_event_max_sample_rate") or stacks.rate)
        bits = (*bits, "freq")
    return perf.attr(
        perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_PAGE_FAULTS, *bits,
        sample_period=often,
        sample_type=perf.SAMPLE_TYPE | perf.PERF_SAMPLE_REGS_USER | perf.PERF_SAMPLE_STACK_USER,
        sample_regs_user=REGISTERS,
        sample_stack_user=DUMP_BYTES,
        **fields,
    )  # fmt: skip


class Settings(NamedTuple):
    """How events are opened.

    Attributes:
        kernel: whether to count faults of kernel code too.
        children: whether to trace the processes that the threads start too.
        period: one fault out of this many is recorded.
        on_exec: whether counting starts at the thread's next execve().
        tracepoints: the perf_event_attr of further events, which write into the side band's ring.
        stacks: how often a fault is sampled with its stack; None = never.
        everywhere: whether events are those of CPUs, of all processes or of a cgroup's: nothing is inherited then.
        fields: what each fault's record has behind what all have.
    """

    kernel: bool = True
    children: bool = True
    period: int = 1
    on_exec: bool = False
    tracepoints: tuple[NDArray[Any], ...] = ()
    stacks: StackRate | None = None
    everywhere: bool = False
    fields: tuple[perf.Field, ...] = ()

    @property
    def events(self) -> int:
        """The number of events per thread and CPU."""
        return 3 + len(self.tracepoints) + (self.stacks is not None)

    def attributes(self, kind: str, lost: bool) -> list[NDArray[Any]]:
        """The perf_event_attr of the events of a kind; `lost` says whether these count lost records (Linux 6.0)."""
        bits = ["sample_id_all"]
        common = [] if self.everywhere else ["inherit"]
        if not self.children:
            common.append("inherit_thread")
        if self.on_exec:
            common.append("enable_on_exec")
        if kind == REMAP:
            made = [one.copy() for one in self.tracepoints]
            for one in made:
                one["flags"] &= ~np.uint64(1 << perf.BITS["inherit"])
                one["flags"] |= np.uint64(sum(1 << perf.BITS[bit] for bit in common))
            return made
        bits += common
        if not self.kernel:
            bits += ["exclude_kernel", "exclude_hv"]
        fields = {"read_format": perf.PERF_FORMAT_LOST if lost else 0}
        if kind == STACKS:
            return [stack_attributes(self.stacks, bits, fields)] if self.stacks is not None else []
        if kind == SIDE:
            bits += ["mmap", "mmap2", "mmap_data", "comm", "comm_exec", "task"]
            config, fields["sample_type"] = perf.PERF_COUNT_SW_DUMMY, perf.PERF_SAMPLE_TID | perf.PERF_SAMPLE_TIME
        else:
            config = perf.PERF_COUNT_SW_PAGE_FAULTS_MAJ if kind == MAJOR else perf.PERF_COUNT_SW_PAGE_FAULTS_MIN
            fields["sample_period"] = self.period
            fields["sample_type"] = perf.SAMPLE_TYPE | sum(field.bit for field in self.fields)
        return [perf.attr(perf.PERF_TYPE_SOFTWARE, config, *bits, **fields)]


class PerfEvents:
    """All perf events of a source.

    rings: where they write to. cpus: the CPUs that they are opened on. descriptors: our limit. opened: called with the
    descriptor of each event of faults and its kind (minor, major, stacks), before it counts.
    """

    def __init__(
        self,
        rings: Rings,
        cpus: Iterable[int],
        descriptors: Descriptors,
        opened: Callable[[int, str], None] = lambda fd, kind: None,
    ) -> None:
        self._rings, self.cpus, self._descriptors, self._opened = rings, tuple(cpus), descriptors, opened
        self._fds: dict[str, list[int]] = {SIDE: [], REMAP: [], MINOR: [], MAJOR: [], STACKS: []}
        self._stops = 0
        self._attributes: tuple[Settings, dict[str, list[NDArray[Any]]]] | None = None
        self.threads: set[int] = set()
        #: one out of so many faults is recorded: see record_one_in(); whether it ever was more than one
        self.every, self.thinned = 1, False
        self._places: list[tuple[int, int]] = []  # what arm_everywhere() opened events on, and the flags for it
        self.counts_lost = True
        #: Whether the tracepoints are on every thread: without room for their descriptors, they are left out.
        self.tracepoints_everywhere = True

    def watch_births(self, births: Iterable[NDArray[Any]]) -> None:
        """Opens the tracepoint of new tasks, on all processes: its records go to the side band. Raises OSError."""
        for attributes, cpu in product(births, self.cpus):
            self._into_side_band(watch_births(attributes, cpu), cpu)

    def watch_cgroups(self) -> None:
        """Opens what tells of new cgroups, whoever makes them: PERF_RECORD_CGROUP, into the side band's ring.

        Raises OSError: before Linux 5.7, or without the right to events of all processes.
        """
        kinds = perf.PERF_SAMPLE_TID | perf.PERF_SAMPLE_TIME
        # `cgroup` alone does not make an event one of the side band, and then nothing is recorded (is_sb_event() in
        # kernel/events/core.c, Linux 6.18); of what does, new kernel symbols are the rarest
        dummy = perf.attr(perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_DUMMY, "cgroup", "ksymbol", "sample_id_all",
                          sample_type=kinds)  # fmt: skip
        for cpu in self.cpus:
            self._into_side_band(perf.perf_event_open(dummy, -1, cpu), cpu)

    def _into_side_band(self, fd: int, cpu: int) -> None:
        self._fds[REMAP].append(fd)
        perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, self._rings.fd(SIDE, cpu))
        perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)

    def record_one_in(self, every: int, fds: Iterable[int] = ()) -> None:
        """Has events of faults, all if none are given, record one out of so many; they still count. Raises OSError."""
        self.every, self.thinned = every, self.thinned or every > 1
        for fd in fds or (fd for kind in _FAULTS for fd in self._fds[kind]):
            perf.set_period(fd, every)

    def arm_everywhere(self, settings: Settings, cgroup: int | None = None) -> None:
        """Opens the events of all processes, or of those of a cgroup; the descriptor of its folder is ours from now on.

        Raises OSError: from perf_event_open. Unavailable: there are no more descriptors.
        """
        place = (-1, 0) if cgroup is None else (cgroup, perf.PERF_FLAG_PID_CGROUP)
        self._places.append(place)
        settings = self.make_room(1, settings)
        self.arm(place[0], settings, flags=place[1])

    def arm(self, tid: int, settings: Settings, *, flags: int = 0) -> bool:
        """Opens the events of one thread, the side band first. Returns False when the thread has ended.

        tid: the thread, or what `flags` make of it. settings: how. flags: of perf_event_open(). Raises OSError: from
        perf_event_open, unless the thread has ended; Unavailable: there are no more descriptors.
        """
        if self._attributes is None or self._attributes[0] is not settings:  # as long to make as the events to open
            made_of = {kind: settings.attributes(kind, self.counts_lost) for kind in self._fds}
            self._attributes = settings, made_of
        for kind, fds in self._fds.items():
            made: list[int] = []
            try:
                for attributes in self._attributes[1][kind]:
                    for cpu in self.cpus:
                        made.append(self._open(attributes, tid, cpu, flags))
                        ring = self._rings.fd(SIDE if kind == REMAP else kind, cpu)
                        perf.ioctl(made[-1], perf.PERF_EVENT_IOC_SET_OUTPUT, ring)
                        if kind in (*_FAULTS, STACKS):
                            self._opened(made[-1], kind)
            except ProcessLookupError:
                perf.close_all(made)
                return False
            except OSError as error:
                perf.close_all(made)
                if error.errno == errno.EINVAL and self.counts_lost:
                    self.counts_lost, self._attributes = False, None  # PERF_FORMAT_LOST: Linux 6.0
                    return self.arm(tid, settings, flags=flags)
                raise
            fds += made
            if self.every > 1 and kind in _FAULTS:
                self.record_one_in(self.every, made)
            if not settings.on_exec:
                for fd in made:
                    perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)
        if not settings.everywhere:
            self.threads.add(tid)
        return True

    def arm_process(self, pid: int, settings: Settings, leave_out: Callable[[], frozenset[int]]) -> None:
        """Opens events on every thread of a running process, repeatedly until none is new: it may be starting some.

        A thread started by a traced one has inherited its events and gets a second set here. Its rows then appear
        twice, next to each other in one ring, and are kept once.
        Raises TargetExited: the process ended meanwhile; OSError, Unavailable: from arm().
        """
        gone: set[int] = set()
        while fresh := [t for t in procfs.threads(pid) if t not in self.threads | gone | leave_out()]:
            settings = self.make_room(len(fresh), settings)
            gone |= {tid for tid in fresh if not self.arm(tid, settings)}
        if procfs.stat(pid).gone:
            raise TargetExited(f"process {pid} ended while it was being attached")

    def _open(self, attributes: NDArray[Any], tid: int, cpu: int, flags: int) -> int:
        try:
            return perf.perf_event_open(attributes, tid, cpu, flags)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise self._too_few(1, everywhere=tid < 0 or bool(flags)) from None
            raise

    def make_room(self, threads: int, settings: Settings) -> Settings:
        """Makes room for that many more threads, without the tracepoints where they are too many. Returns the settings.

        Raises Unavailable: the hard limit of descriptors is too low; the message shows the arithmetic.
        """
        for wanted in (settings, settings._replace(tracepoints=())):
            if self._descriptors.room(threads * len(self.cpus) * wanted.events):
                self.tracepoints_everywhere &= len(wanted.tracepoints) == len(settings.tracepoints)
                return wanted
        raise self._too_few(threads, everywhere=settings.everywhere)

    def _too_few(self, more: int, *, everywhere: bool) -> Unavailable:
        threads, events = len(self.threads) + more, Settings().events
        need = threads * len(self.cpus) * events
        of_all = f"{plural(threads, 'thread')} x {len(self.cpus)} CPUs x {events} events need {need:,}"
        if everywhere:
            of_all = f"the events of all processes on {len(self.cpus)} CPUs need more"
        inherited = ", or trace from the start with run: threads then inherit the events"
        more_of = inherited if threads > 1 and not everywhere else ""
        return Unavailable(
            f"{of_all} file descriptors, wstrace itself some more, RLIMIT_NOFILE allows {self._descriptors.hard:,}",
            f"ulimit -Hn {max(need, self._descriptors.hard) + 1000} (as root){more_of}",
        )

    def disarm(self) -> None:
        """Stops all events, inherited ones included: none counts or records any more. Tracepoints are closed."""
        for fds in self._fds.values():
            for fd in fds:
                with contextlib.suppress(OSError):
                    perf.ioctl(fd, perf.PERF_EVENT_IOC_DISABLE)
        perf.close_later(self._fds[REMAP])

    def went_on(self) -> bool:
        """Whether records have come since the rings were read although all events were stopped: then stops them again.

        A task that is being forked meanwhile gets an inherited event as it was when the fork began, so that it may go
        on (inherit_event() in kernel/events/core.c, Linux 6.18), and threads hand their events over to the
        next one (perf_event_context_sched_out() in kernel/events/core.c, Linux 6.18), so that all that are started from
        then on go on, too: after 34 of 800 stops of a program that starts threads all the time.
        """
        self._stops += 1
        if self._stops > _MOST_STOPS or not any(ring.filled for ring in self._rings):
            return False
        self.disarm()
        return True

    def counts(self, kind: str) -> tuple[int, int | None]:
        """(faults that the kernel counted, records that did not fit into the ring; None before Linux 6.0) of a kind."""
        size = 16 if self.counts_lost else 8
        numbers = np.frombuffer(b"".join(os.read(fd, size) for fd in self._fds[kind]), "<u8").reshape(-1, size // 8)
        counted, *lost = numbers.sum(axis=0).tolist()
        return counted, lost[0] if lost else None

    def close(self) -> None:
        """Closes the events and restores our own limit of descriptors."""
        self._descriptors.restore()
        for fds in self._fds.values():
            perf.close_all(fds)
            fds.clear()
        perf.close_all(place for place, _ in self._places if place >= 0)
        self._places.clear()


_SPARE = 64  # left for everything else in this process


class Descriptors:
    """The limit RLIMIT_NOFILE of the calling process, of which the soft half is raised to the hard one."""

    def __init__(self) -> None:
        import resource

        self._limits: Any = resource  # When mypy checks for Windows, the POSIX half has no types.
        self._before = self._limits.getrlimit(self._limits.RLIMIT_NOFILE)
        self.hard: int = self._before[1]
        self._limits.setrlimit(self._limits.RLIMIT_NOFILE, (self.hard, self.hard))
        if self.hard == self._limits.RLIM_INFINITY:
            self.hard = 1 << 30
        self._left = 0  # how many can be opened without counting anew, which takes longer with each that is open

    def room(self, more: int) -> bool:
        """Whether `more` descriptors can be opened now."""
        if more > self._left:
            self._left = self.hard - len(os.listdir("/proc/self/fd")) - _SPARE  # noqa: PTH208 - a count
            if more > self._left:
                return False
        self._left -= more
        return True

    def restore(self) -> None:
        """Restores the soft limit."""
        self._limits.setrlimit(self._limits.RLIMIT_NOFILE, self._before)


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


def known_fields(context: Context) -> tuple[perf.Field, ...]:
    """What the records of faults have here behind what all have; what this kernel does not know is noted."""
    known = [perf.CGROUP] if context.groups else []
    for field in perf.SAMPLE_FIELDS:
        try:
            _try(Settings(kernel=False, fields=(field,)), 0)
            known.append(field)
        except OSError:
            context.info.lack(field.lacking)
    return tuple(sorted(known))


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

    Raises Unavailable: a target belongs to another user; `require` is "full" and the kernel permits less; or groups,
    for which there are no lesser levels, may not be traced. TargetExited: a target ended meanwhile.
    """
    level = Level("full") if kernel else _WITHOUT_KERNEL
    if context.groups:
        try:
            _try(Settings(everywhere=True, fields=(perf.CGROUP,)), -1, perf.online_cpus()[0])
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
        f"process {pid} of uid {owner} may not be traced by uid {os.geteuid()}", "run wstrace as that user or as root"
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
        self._context, self._reads = context, 0
        context.info.note("addresses, instructions and threads of faults (level counters)")

    def drain(self, timeout: float) -> None:
        """Waits at most `timeout` seconds, and reads the counts: each target remembers its own, and its peak."""
        self._reads += 1
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
        return self._context.wait_children and self._reads > 0 and not pids and not children
