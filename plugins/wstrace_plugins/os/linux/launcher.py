"""Forks a command, holds it before its execve(), and lets it go: this is how `run` launches a target on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import NoReturn

from wstrace.errors import CannotExecute, CommandNotFound, TargetExited, Unavailable
from wstrace.interfaces import Usage
from wstrace_plugins.os.foreign import declare
from wstrace_plugins.os.linux.file_rights import User, find_user, sudo_user
from wstrace_plugins.os.linux.held_image import image

_SEIZE, _CONT, _DETACH, _TRACE_EXEC = 0x4206, 7, 17, 0x10
_EXECUTED = signal.SIGTRAP | 4 << 8  # PTRACE_EVENT_EXEC
_ptrace = declare(None, "ptrace", ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

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
