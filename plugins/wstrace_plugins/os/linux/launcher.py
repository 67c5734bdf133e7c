"""Forks a command, holds it before its execve(), and lets it go: this is how `run` launches a target on Linux.

Besides: users, by name and the one who called sudo, and opening files with a user's rights, on one thread and only
meanwhile. seteuid() is not suitable: the C library changes the ids of all threads (nptl(7)), so the drain of a session
would lose its privilege in the middle of its work. The file-system ids belong to the calling thread alone, and the
kernel uses them for files and nothing else. While they are not root's, the thread has no CAP_DAC_OVERRIDE and no
CAP_FOWNER (setfsuid(2), capabilities(7)). The groups count too: root's own, gid 0 among them, are exchanged by the
system call itself, which changes the calling thread only; the C library's setgroups() would change all threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple, NoReturn

from wstrace.errors import CannotExecute, CommandNotFound, OutputError, TargetExited, Unavailable
from wstrace.interfaces import Usage
from wstrace_plugins.os.foreign import Foreign
from wstrace_plugins.os.linux import libc
from wstrace_plugins.os.linux.held_image import image

_setfsuid = Foreign(None, "setfsuid", ctypes.c_int, ctypes.c_uint32)
_setfsgid = Foreign(None, "setfsgid", ctypes.c_int, ctypes.c_uint32)
_ASK = 0xFFFFFFFF  # An invalid id: both calls then change nothing and return the current one.


class User(NamedTuple):
    """A user with all of its groups, its name and its home."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a program that the user runs."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def become(self) -> None:
        """Sets the groups first: after setuid() there is no right to change them."""
        if (os.geteuid(), os.getegid()) != (self.uid, self.gid):
            os.setgroups(self.groups)
            os.setgid(self.gid)
            os.setuid(self.uid)


def find_user(name: str, gid: int | None = None) -> User:
    """The user with that name or number; gid: its group, None = that of its account. Raises Unavailable."""
    import pwd

    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        raise Unavailable(f"there is no user {name}") from None
    gid = entry.pw_gid if gid is None else gid
    return User(entry.pw_uid, gid, tuple(os.getgrouplist(entry.pw_name, gid)), entry.pw_name, entry.pw_dir)


def sudo_user() -> User | None:
    """The user who called sudo, if that made us root; None otherwise."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not uid.isdecimal() or not int(uid):
        return None
    return _sudo_user(uid, int(gid) if gid.isdecimal() else None)


@functools.cache
def _sudo_user(uid: str, gid: int | None) -> User:
    try:
        return find_user(uid, gid)
    except Unavailable:  # sudo in a container, or a directory service that does not answer
        gid = int(uid) if gid is None else gid
        return User(int(uid), gid, (gid,), uid, "/")


@contextmanager
def file_rights(user: User) -> Iterator[None]:
    """Inside, the calling thread has a user's rights on files, and root's rights on everything else.

    Raises OutputError: the kernel refuses the change (no CAP_SETUID or CAP_SETGID, as in some containers).
    """
    groups, gid, uid = os.getgroups(), _setfsgid(_ASK), _setfsuid(_ASK)
    try:
        taken = _set(user.groups, user.gid, user.uid)
        if not taken:
            raise OutputError(
                f"cannot take on the rights of uid {user.uid}, who called sudo, to write files",
                "give the container CAP_SETUID and CAP_SETGID, or unset SUDO_UID to write as root",
            )
        yield
    finally:
        _set(groups, gid, uid)


def _set(groups: tuple[int, ...] | list[int], gid: int, uid: int) -> bool:
    """Sets the ids and returns whether the thread has them. The uid is set last, whatever failed before it."""
    listed = (ctypes.c_uint32 * len(groups))(*groups)
    setgroups = libc.number_of(159, x86_64=116, ppc64le=81, s390x=206)
    done = libc.syscall(setgroups, len(groups), ctypes.addressof(listed)) == 0
    _setfsgid(gid)
    _setfsuid(uid)
    return done and (_setfsgid(_ASK), _setfsuid(_ASK)) == (gid, uid)


_SEIZE, _CONT, _DETACH, _TRACE_EXEC = 0x4206, 7, 17, 0x10
_EXECUTED = signal.SIGTRAP | 4 << 8  # PTRACE_EVENT_EXEC
_ptrace = Foreign(None, "ptrace", ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

#: struct rusage: two struct timeval, 14 long.
_RUSAGE = struct.Struct("<18q")
_U64 = struct.Struct("<Q")


class Launcher:
    """The two pipes between us and a child that has not executed its command yet.

    The child sends its struct rusage right before execve(), and the errno if that is refused; a successful execve()
    closes the pipe.
    """

    def __init__(self, command: str, go: int, answer: int) -> None:
        self.command, self._go, self._answer = command, go, answer
        self.gone = self.executed = False

    def go(self) -> Usage:
        """Lets the child run; returns its own usage until then."""
        self.gone = True
        # The child could not become its user; it sends the reason, which is read below.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"!")
        os.close(self._go)
        answer = b""
        while chunk := os.read(self._answer, 256):
            answer += chunk
        os.close(self._answer)
        if len(answer) % _RUSAGE.size == _U64.size:
            raise exec_refused(self.command, _U64.unpack(answer[-_U64.size :])[0])
        if len(answer) != _RUSAGE.size:
            raise TargetExited(f"{self.command} was killed before its first instruction")
        self.executed = True
        user, user_us, system, system_us, peak, _, _, _, minor, major, *_ = _RUSAGE.unpack(answer)
        return Usage(minor, major, peak * 1024, user + system + (user_us + system_us) / 1e6)

    def close(self) -> None:
        """Closes the pipes; the child ends when it reads the end of file."""
        self.gone = True
        os.close(self._go)
        os.close(self._answer)


@contextlib.contextmanager
def held_at_execve(pid: int, then: Callable[[], None] | None) -> Iterator[None]:
    """Holds a child of ours at the execve() that is made inside, calls `then`, and lets it run its first instruction.

    Root alone holds: under a tracer without rights a set-user-ID program would not get those of its file.

    Source: ptrace(2), PTRACE_SEIZE and PTRACE_EVENT_EXEC.
    """
    if then is None or os.geteuid() or _ptrace(_SEIZE, pid, None, _TRACE_EXEC):
        yield
        return
    try:
        yield
        while True:
            now = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if now is None or now.si_code != os.CLD_TRAPPED or now.si_status == _EXECUTED:
                break
            _ptrace(_CONT, pid, None, now.si_status & 0xFF)  # a signal came first
        then()
    finally:
        _ptrace(_DETACH, pid, None, None)


def exec_refused(command: str, number: int) -> CommandNotFound | CannotExecute:
    """The error for a failed execve()."""
    if number == errno.ENOENT and not os.path.lexists(command):
        return CommandNotFound(f"{command}: no such command")
    why = f"{command}: {os.strerror(number)}"
    if number == errno.ENOENT:
        return CannotExecute(why, "its #! line names an interpreter that is not there")
    if number == errno.ENOEXEC:
        return CannotExecute(why, "a script needs a #! line as its first line")
    return CannotExecute(why)


def start(command: Sequence[str], user: str | None) -> tuple[int, Launcher]:
    """Starts a child that is blocked before its execve(). The errors are those of LinuxPlatform.launch().

    It has our current limits, process group, signal mask and terminal, but none of our descriptors (PEP 446 makes them
    all close-on-exec). The child is a tiny program (see held_image) or, where that cannot be executed (another machine,
    vm.memfd_noexec), a fork of ours.
    """
    path = find_program(command[0])
    owner = find_user(user) if user is not None else sudo_user()
    import_module("resource")  # before the fork: the child's user may have no right to read Python's files
    pipes = go_read, go_write, answer_read, answer_write = *os.pipe(), *os.pipe()
    environment = {**os.environ, **(owner.environment if owner else {})}
    with warnings.catch_warnings():
        # Python 3.12 warns of fork() beside threads, which are usually numpy's; the child makes only system calls.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            forked: int = os.fork()
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            raise Unavailable(f"cannot start {command[0]}: {error.strerror}") from None
    if forked == 0:
        try:
            os.close(go_write)
            _child(path, list(command), environment, owner, go_read, answer_write)
        finally:
            os._exit(126)
    os.close(go_read)
    os.close(answer_write)
    said = os.read(answer_read, 2 * _U64.size)
    pid, refused = _U64.unpack(said[: _U64.size])[0] if len(said) >= _U64.size else 0, said[_U64.size :]
    if pid != forked:  # The forked child has ended, and its sibling is now our child.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(forked, 0)
    launcher = Launcher(path, go_write, answer_read)
    if refused and owner is not None:
        launcher.close()
        os.waitpid(pid, 0)
        raise Unavailable(
            f"cannot become the user {owner.name} to run {command[0]}: {os.strerror(_U64.unpack(refused)[0])}",
            "run wstrace as root, or leave --user out",
        )
    if not pid:
        launcher.close()
        raise Unavailable(f"cannot start {path}: its process was killed")
    return pid, launcher


def find_program(command: str) -> str:
    """The path of a command's program, searched as execvp(3) does. Raises CommandNotFound or CannotExecute."""
    if not command:
        raise CommandNotFound("the command is empty")
    path = command if "/" in command else _in_path(command, os.X_OK)
    if path is None:
        found = _in_path(command, os.F_OK)
        if found:
            raise CannotExecute(f"{found} is not executable", f"chmod +x {found}")
        raise CommandNotFound(f"{command}: no such command in PATH")
    if not os.path.lexists(path):
        raise CommandNotFound(f"{path}: no such file")
    if os.path.isdir(path):
        raise CannotExecute(f"{path} is a directory")
    return path


def _in_path(command: str, mode: int) -> str | None:
    """The first file of that name in the folders of PATH that may be accessed so, as shutil.which() finds it.

    The import of shutil would take 6 ms of every start.
    """
    folders = os.environ.get("PATH", os.defpath)
    paths = (os.path.join(folder, command) for folder in folders.split(os.pathsep) if folders)
    return next((path for path in paths if os.access(path, mode) and not os.path.isdir(path)), None)


def _child(
    path: str, command: list[str], environment: dict[str, str], owner: User | None, go: int, out: int
) -> NoReturn:
    """Runs in the forked child: becomes the target's user, restores what Python changed, and waits for the launcher's
    byte, if possible in the held image. It makes only system calls.
    """
    try:
        if owner is not None:
            try:
                owner.become()
            except OSError as error:
                os.write(out, _U64.pack(os.getpid()) + _U64.pack(error.errno or 0))
                os._exit(126)
        # Python ignores these two signals from its start, and a program inherits that; execve() resets handlers itself.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        _execute_held_image(path, command, environment, go, out)
        os.write(out, _U64.pack(os.getpid()))
        if os.read(go, 1) != b"!":
            os._exit(0)
        os.write(out, _own_usage())
        try:
            os.execve(path, command, environment)
        except OSError as error:
            os.write(out, _U64.pack(error.errno or 0))
    except KeyboardInterrupt:  # Ctrl-C arrived before the command could handle it.
        os._exit(128 + signal.SIGINT)
    os._exit(126)


def _execute_held_image(path: str, command: list[str], environment: dict[str, str], go: int, out: int) -> None:
    """Executes the held image; returns where that is refused."""
    program = image(go, out)
    if program is None:
        return
    with contextlib.suppress(OSError):
        fd = os.memfd_create("wstrace")
        os.write(fd, program)
        os.set_inheritable(go, True)
        os.set_inheritable(out, True)
        os.execve(fd, [path, *command], environment)
    os.set_inheritable(go, False)
    os.set_inheritable(out, False)


def _own_usage() -> bytes:
    """Our struct rusage."""
    import resource

    user, system, *rest = resource.getrusage(resource.RUSAGE_SELF)
    times = [part for seconds in (user, system) for part in (int(seconds), int(seconds % 1 * 1e6))]
    return _RUSAGE.pack(*times, *rest)
