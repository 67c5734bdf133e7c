"""Launches and attaches processes on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform as machine
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from wstrace.errors import TargetExited, Unavailable, WstraceError
from wstrace.interfaces import Group, Platform, ProcessNow, Target, Usage
from wstrace_plugins.os.linux import libc, procfs
from wstrace_plugins.os.linux.launcher import Launcher, file_rights, held_at_execve, start, sudo_user
from wstrace_plugins.os.linux.procfs import node_faults as node_faults
from wstrace_plugins.os.linux.versions import versions

_M_ARENA_MAX = -8
#: What a trace maps. `run` had 28 MB before it, 213 MB in all, and 298 MB with native stacks (VmPeak, Linux 6.18, two
#: CPUs); with native stacks of `import numpy`, tables were complete from 360,000 KiB on. For each of up to 8 CPUs, the
#: kernel's buffers take up to 25 MiB of that.
_ROOM, _ROOM_PER_CPU, _CPUS = 304 << 20, 27 << 20, 8


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LAUNCHER_GROWS = 9 / 8  # The launcher itself may grow by this factor between its last measurement and execve().
_LONGEST_POLL = 86_400.0  # poll(2) takes milliseconds as an int: 24 days at most.
_POLL_SECONDS = 0.01  # The interval of polling where pidfd_open is missing (before Linux 5.3) or refused (containers).


class LinuxTarget(Target):
    """A process: launched (our child, held before execve() until resume()) or attached (any, even ourselves)."""

    def __init__(self, pid: int, name: str, launcher: Launcher | None = None) -> None:
        self.pid, self.name, self.launched = pid, name, launcher is not None
        self.exit_code: int | None = None
        self._launcher = launcher
        self._rusage: tuple[float, int, int, int] | None = None
        self._peak: int | None = None
        self._sampled = False
        self._pidfd = _pidfd(pid)
        self._started_ticks: int | None = None
        self._earlier, self._alone = 0, (0, 0)  # For an attached process: its peak and its own faults from before.
        self._before = Usage() if launcher else self._proc()
        if not launcher:
            self._earlier, self._peak = self._peak or 0, None
            with contextlib.suppress(Unavailable):
                stat = self._stat()
                self._alone = (stat.minor, stat.major)

    def resume(self) -> None:
        """Lets a launched target execute its command; returns once the system has accepted or refused it.

        Raises CommandNotFound, CannotExecute: the system refused the command; the child has ended and is reaped.
        """
        if self._launcher is None:
            return
        try:
            with held_at_execve(self.pid, self.on_start):
                self._before = self._launcher.go()
        except WstraceError:
            self.wait(5)
            self._reap()
            raise

    def wait(self, timeout: float) -> int | None:
        """The exit code, 128 + N for signal N (attached: 0, only its parent knows it); None after `timeout` seconds."""
        ready = self.exit_code is not None or self._pidfd is None or _readable(self._pidfd, timeout)
        if ready and self.exit_code is None:
            deadline = time.monotonic() + timeout
            while not self._ended() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        return self.exit_code

    def _ended(self) -> bool:
        """Checks without reaping: /proc still shows a zombie, and sources read it after the end, until close()."""
        if not self.launched:
            if self._pidfd is None and self._alive():
                return False
            self.exit_code = 0
            return True
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # The embedding program reaps all its children itself.
            self.exit_code = self.exit_code or 0
            return True
        if ended is None:
            return False
        self._rusage = _rusage(self.pid)
        if ended.si_code == os.CLD_EXITED:
            self.exit_code = ended.si_status
        else:
            self.exit_code, self.exit_signal = 128 + ended.si_status, _signal_name(ended.si_status)
        return True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def _alive(self) -> bool:
        try:
            return not procfs.stat(self.pid).gone
        except Unavailable:
            return False

    def usage(self) -> Usage:
        """Faults, CPU and peak since the first instruction (attached: since attaching; earlier values are subtracted).

        The peak of a launched process is that of rusage, unless that is its launcher's own (the kernel carries
        ru_maxrss across execve, exec_mmap() in fs/exec.c). In that case it is the largest VmHWM seen while it ran.
        """
        now = self._proc() if self.exit_code is None or self._rusage is None else self._from_rusage(*self._rusage)
        before = self._before

        def since(new: Any, old: Any) -> Any:
            return None if new is None else max(new - (old or 0), 0)

        return Usage(since(now.minor, before.minor), since(now.major, before.major), now.peak_resident_bytes,
                     since(now.cpu_seconds, before.cpu_seconds), now.peak_sampled, now.peak_pid)  # fmt: skip

    def own_usage(self) -> Usage:
        """The usage of the process alone, without the children that it has waited for."""
        try:
            stat = self._stat()
        except Unavailable:
            return Usage()
        if self.exit_code is None:
            self._proc()
        minor, major = stat.minor - self._alone[0], stat.major - self._alone[1]
        return Usage(minor, major, self._peak, stat.cpu_seconds, True, self.pid if self._peak else None)

    def _from_rusage(self, seconds: float, peak: int, minor: int, major: int) -> Usage:
        """The usage of a target that has ended, by its struct rusage."""
        if peak <= (self._before.peak_resident_bytes or 0) * _LAUNCHER_GROWS:
            return Usage(minor, major, self._peak, seconds, True, self.pid)
        # The largest value of it and of the children that it has waited for; rusage does not say which.
        owner = self.pid if (self._peak or 0) >= peak else None
        return Usage(minor, major, max(peak, self._peak or 0), seconds, peak_pid=owner)

    def _stat(self) -> procfs.Stat:
        """What the system accounts to the process; raises Unavailable when its pid is another process's by now."""
        stat = procfs.stat(self.pid)
        if self._started_ticks is None:
            self._started_ticks = stat.started_ticks
        if stat.started_ticks != self._started_ticks:
            raise TargetExited(f"process {self.pid} has ended")
        return stat

    def _proc(self) -> Usage:
        """The usage by /proc, as far as the process is still there."""
        try:
            peak, resident = procfs.resident(self.pid)
            stat = self._stat()
        except Unavailable:
            return Usage(peak_resident_bytes=self._peak, peak_sampled=self._sampled, peak_pid=self.pid)
        if peak and (self._launcher is None or self._launcher.executed):
            # What an attached process reached before is not a peak of the trace: below it, only sampled values count.
            self._sampled = self._earlier >= peak
            self._peak = max(self._peak or 0, resident if self._sampled else peak)
        return Usage(stat.minor + stat.minor_children, stat.major + stat.major_children, self._peak, stat.cpu_seconds,
                     self._sampled, self.pid)  # fmt: skip

    def signal(self, number: int) -> None:
        """Sends a signal, through the pidfd if there is one, so that it never reaches a successor with the same pid."""
        if self.exit_code is not None:
            return
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise Unavailable(f"cannot signal process {self.pid}: {error.strerror}") from None

    def close(self) -> None:
        """Closes the handle and reaps a launched target that has ended; a target that never ran is killed."""
        if self._launcher is not None and not self._launcher.gone:
            self._launcher.close()
            self.signal(signal.SIGKILL)
            self.wait(5)
        if self.launched:
            if self.exit_code is None:
                self._ended()  # its code, if it has ended since the last wait(): reaped, it has none
            self._reap()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class LinuxPlatform(Platform):
    """Launches and attaches processes through fork, execve, pidfd and /proc."""

    name = "linux"
    page_size = mmap.PAGESIZE

    def launch(self, command: Sequence[str], *, user: str | None = None) -> Target:
        """Creates a child that is blocked before its execve(). Call it before starting threads and raising limits.

        command: the program (searched in PATH) and its arguments. user: the name or number of the user to run as; None
        = the user who called sudo, else ourselves. Raises CommandNotFound, CannotExecute: there is no such program, or
        it is not executable; Unavailable: there is no such user, no right to become that user, or no room for a process
        or a trace.
        """
        self._check_room()
        pid, launcher = start(command, user)
        self.keep_freed_memory()
        return LinuxTarget(pid, os.path.basename(command[0]), launcher)

    def attach(self, pid: int) -> Target:
        """Opens a handle on a running process (or on ourselves). Raises TargetExited, Unavailable."""
        self._check_room()
        stat = procfs.stat(pid)
        if stat.gone:
            raise TargetExited(f"process {pid} ({stat.name}) has ended, or its first thread has")
        if stat.kernel_thread:
            raise Unavailable(f"process {pid} ({stat.name}) is a kernel thread: it has no memory of its own")
        return LinuxTarget(pid, stat.name)

    def process(self, pid: int) -> ProcessNow | None:
        """By /proc/PID/stat; None for a kernel thread and for a zombie, which have no memory."""
        try:
            found = procfs.stat_with_memory(pid)
        except Unavailable:
            return None
        return ProcessNow(procfs.program_name(found), found.resident_bytes, found.mapped_bytes, found.started,
                          found.minor + found.major, found.terminal)  # fmt: skip

    def process_names(self) -> Mapping[int, str]:
        """By /proc."""
        found = {}
        for pid in procfs.processes():
            with contextlib.suppress(Unavailable):
                found[pid] = procfs.program_name(procfs.stat(pid))
        return found

    def descendants(self, pid: int) -> list[int]:
        """By the lists of children in /proc, where the kernel has them."""
        return procfs.living_descendants(pid)

    def group(self, kind: str, name: str = "") -> Group:
        """The processes of control groups, or all."""
        from wstrace_plugins.os.linux.cgroups.groups import group

        self._check_room()
        return group(kind, name)

    def _check_room(self) -> None:
        """Returns if there is room for a trace. Raises Unavailable, as room()."""
        self.room(_ROOM + _ROOM_PER_CPU * min(os.cpu_count() or 1, _CPUS), "a trace")

    def room(self, least: int, what: str) -> int | None:
        """The bytes that may be mapped yet; None = no limit. Under one, malloc serves all threads from one arena.

        Without that, glibc reserves 64 MiB for each thread; and when a new thread of CPython 3.11 finds no memory
        before it has said that it runs, Thread.start() waits for ever.
        least: bytes that are needed. what: for what. Raises Unavailable: the limit leaves too little; the error names
        it, and the least one that suffices.
        """
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        with contextlib.suppress(Unavailable):  # musl has no mallopt, and no arenas.
            libc.mallopt(_M_ARENA_MAX, 1)
        used = int(procfs.content("/proc/self/statm").split()[0]) * mmap.PAGESIZE
        try:
            # Mapped without any right, which the limit counts, and neither memory nor vm.overcommit_memory does.
            mmap.mmap(-1, least, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
        except OSError:
            enough = -(-(used + least) // 10_240_000) * 10_000
            raise Unavailable(
                f"this process may have {limit >> 10:,} KiB of address space (RLIMIT_AS), too little for {what}",
                f"allow at least {enough:,} KiB: ulimit -v {enough}, or unlimited",
            ) from None
        return limit - used

    def environment(self) -> Mapping[str, str]:
        """The kernel, the machine, our privilege, and the settings that decide what may be traced."""
        system = os.uname()
        shown = {
            "system": f"{system.sysname} {system.release}",
            "machine": machine.machine(),
            "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
            "capabilities": procfs.status(os.getpid()).get("CapEff", ""),
        }
        for path in ("kernel/perf_event_paranoid", "kernel/perf_event_mlock_kb", "kernel/yama/ptrace_scope",
                     "vm/unprivileged_userfaultfd"):  # fmt: skip
            value = procfs.setting(path)
            if value is not None:
                shown[path.replace("/", ".")] = str(value)
        return shown

    def versions(self) -> Mapping[str, str]:
        """Kernel, libc, transparent huge pages, processor."""
        return versions()

    def open_named(self, path: str, root: str = "", inode: int = 0) -> int:
        """Its type is known before it is opened."""
        from wstrace_plugins.os.linux.named_file import open_named

        return open_named(path, root, inode)

    def keep_freed_memory(self) -> None:
        """Makes malloc keep what numpy frees: the tracer's own page faults for 1M records fall from 32,000 to 1,400.

        Source: mallopt(3).
        """
        with contextlib.suppress(Unavailable):  # musl has no mallopt.
            libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
            libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)

    def remedies(self) -> Mapping[str, str]:
        """Environment -> lines to copy. CAP_PERFMON (Linux 5.8) is the least privilege that records every fault."""
        import shutil

        python = os.path.realpath(sys.executable)
        here = shutil.which("wstrace") or "wstrace"
        return {
            "this shell": f"sudo {here} run -- COMMAND            # COMMAND still runs as you",
            "sysctl": (
                "sudo sysctl kernel.perf_event_paranoid=1       # your own processes; 2: user faults only\n"
                "echo kernel.perf_event_paranoid=1 | sudo tee /etc/sysctl.d/60-wstrace.conf   # and after the next boot"
            ),
            "setcap": (
                f"sudo setcap cap_perfmon,cap_sys_ptrace+ep {python}\n"
                "# gives it to every script of that interpreter: use a copy of it, in a venv of its own"
            ),
            "Docker": "docker run --cap-add PERFMON --cap-add SYS_PTRACE ...   # seccomp then lets perf events pass",
            "Kubernetes": "securityContext: {capabilities: {add: [PERFMON, SYS_PTRACE]}}   # of the container",
            "systemd": "AmbientCapabilities=CAP_PERFMON CAP_SYS_PTRACE   # in the unit's [Service] section",
            "Python stacks": "the same with cap_bpf, --cap-add BPF, BPF or CAP_BPF beside each perfmon",
        }

    def output_owner(self) -> tuple[int, int] | None:
        """(uid, gid) of the user who called sudo, None without sudo."""
        user = sudo_user()
        return None if user is None else (user.uid, user.gid)

    def as_output_owner(self) -> AbstractContextManager[None]:
        """Takes on the file-system uid, gid and groups of the user who called sudo; does nothing without sudo."""
        user = sudo_user()
        return nullcontext() if user is None else file_rights(user)


def platform() -> Platform:
    """The Platform of Linux."""
    return LinuxPlatform()


def _signal_name(number: int) -> str:
    """`SIGSEGV`; a real-time signal has a number only."""
    try:
        return str(signal.Signals(number).name)
    except ValueError:
        return f"signal {number}"


def _rusage(pid: int) -> tuple[float, int, int, int] | None:
    """CPU seconds, peak bytes, minor and major faults of a zombie; None if it is reaped.

    wait4() would reap it, waitid() with WNOWAIT does not.
    """
    raw = (ctypes.c_long * 18)()  # struct rusage: two struct timeval, 14 long.
    waitid, how = libc.number_of(95, x86_64=247, ppc64le=272, s390x=281), os.WEXITED | os.WNOHANG | os.WNOWAIT
    if libc.syscall(waitid, os.P_PID, pid, 0, how, ctypes.addressof(raw)) < 0:
        return None
    user, user_us, system, system_us, peak, _, _, _, minor, major, *_ = raw
    return user + system + (user_us + system_us) / 1e6, peak * 1024, minor, major


def _pidfd(pid: int) -> int | None:
    """A pidfd; None where there is none for this process. Raises TargetExited."""
    try:
        fd: int = os.pidfd_open(pid)
    except ProcessLookupError:
        raise TargetExited(f"there is no process {pid}") from None
    except (OSError, AttributeError):
        return None
    return fd


def _readable(fd: int, timeout: float) -> bool:
    """Whether a descriptor can be read within that many seconds."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(min(max(timeout, 0), _LONGEST_POLL) * 1000))
