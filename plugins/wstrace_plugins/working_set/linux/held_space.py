"""An address space that outlives its process on Linux: what was resident at the exit can still be read.

The target does not notice: there is no signal, no stop and no ptrace; its memory is freed only when we release it or
end (keeper.py explains how). Its files in /proc, opened before, also work for a zombie, which a launched target is
until the trace closes.

Source: userfaultfd(2); fs/proc/task_mmu.c.
"""

from __future__ import annotations

import _socket
import os
import signal
import struct
import sys

from wstrace.errors import TargetExited
from wstrace_plugins.os.linux import procfs, userfaultfd
from wstrace_plugins.working_set.backend import KeeperFailed, Totals
from wstrace_plugins.working_set.linux import smaps
from wstrace_plugins.working_set.linux.space import Space

_SECONDS = 5.0  # for the keeper's answer: it needs 25 ms to start


class Keeper:
    """The process that keeps the address space of one process at a time; see keeper.py.

    Raises:
        Unavailable: the kernel may not be made to wait; the message says what lifts it.
        KeeperFailed: the process cannot be started.
    """

    def __init__(self) -> None:
        os.close(userfaultfd.create())  # tried here, where a refusal can be reported
        self._socket, theirs = _socket.socketpair()  # `socket` takes 7 ms of every start
        self._socket.settimeout(_SECONDS)
        program = os.path.join(os.path.dirname(__file__), "keeper.py")
        words = [sys.executable, "-I", "-S", program, str(userfaultfd.system_call())]
        inherit = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        try:
            self._pid: int = os.posix_spawn(
                sys.executable,
                words,
                os.environ,
                file_actions=inherit,
                setsid=True,
                setsigmask=signal.valid_signals(),
            )
        except OSError as error:
            self._socket.close()
            raise KeeperFailed(f"cannot start {sys.executable}: {error.strerror}") from None
        finally:
            theirs.close()
        try:
            self._answer()  # wait until it is ready: otherwise a command of 20 ms would end before it is held
        except BaseException:
            self.close()
            raise

    def hold(self, pid: int) -> HeldSpace:
        """Holds the process's current address space, and releases the one held before.

        Raises:
            TargetExited: the process has ended.
            Unavailable: it belongs to another user.
        """
        return HeldSpace(pid, self)

    def keep(self, pagemap: int) -> None:
        """Keeps the address space of that open pagemap.

        Raises:
            ProcessLookupError: the address space has ended.
            KeeperFailed: the keeper has ended, or cannot keep it.
        """
        try:
            self._socket.sendmsg([b"k"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", pagemap))])
        except OSError as error:
            raise _silent(str(error)) from None
        if (answer := self._answer()) == b"!":
            raise KeeperFailed("the process that keeps memory has no room for a thread (ulimit -u, pids.max)")
        if answer != b"+":
            raise ProcessLookupError

    def _answer(self) -> bytes:
        try:
            answer: bytes = self._socket.recv(1)
        except OSError as error:
            raise _silent(str(error)) from None
        if not answer:
            raise _silent("it has ended")
        return answer

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself and keeps nothing: killed by others, or by the kernel for want of memory."""
        return not self._pid or os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self) -> None:
        """Releases the address space; may be called again."""
        if self._pid:
            self._socket.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _silent(why: str) -> KeeperFailed:
    return KeeperFailed(f"the process that keeps memory does not answer: {why}")


class HeldSpace(Space):
    """A Space that outlives its process for as long as its keeper keeps it."""

    def __init__(self, pid: int, keeper: Keeper) -> None:
        self._seen, self._last_status = procfs.stat(pid), procfs.status(pid)
        super().__init__(pid)
        self._files: dict[str, int] = {}
        try:
            # opened before it is kept: of a process that ends meanwhile they would have no address space
            self._files = {name: os.open(f"/proc/{pid}/{name}", os.O_CLOEXEC) for name in ("maps", "smaps")}
            keeper.keep(self._pagemap.fd)
            same = self.look()  # if so, everything that was opened belongs to one program
        except BaseException as error:
            self.close()
            if isinstance(error, FileNotFoundError | ProcessLookupError):
                raise TargetExited(f"there is no process {pid}") from None
            raise
        if not same:
            self.close()
            raise TargetExited(f"process {pid} executed another program while it was opened")

    def look(self) -> bool:
        """True while this is the process's address space, or was its last one; False after another execve().

        Of a process that has ended only the name can still be compared. Its memory is gone before it is a zombie: in
        between, for milliseconds on a busy machine, it is said to run (do_exit() in kernel/exit.c, exit_mm() and then
        exit_notify()). One that calls execve() has the memory of the next program already.

        Raises:
            TargetExited: it has been reaped.
        """
        now = procfs.stat(self.pid)
        if now.gone or not now.mapped_bytes:
            return now.name == self._seen.name
        if now.image != self._seen.image:
            return False
        self._seen, self._last_status = now, procfs.status(self.pid)
        return True

    def totals(self) -> Totals:
        """No totals: the system's counters end with the process."""
        return Totals()

    def close(self) -> None:
        """Closes its files; the keeper then frees the memory. May be called again."""
        for fd in self._files.values():
            os.close(fd)
        self._files = {}
        super().close()

    def _maps(self) -> procfs.Maps:
        try:
            return procfs.parse_maps(procfs.pieces(self._files["maps"]))
        except ProcessLookupError:
            raise self._gone() from None

    def _status(self) -> dict[str, str]:
        return self._last_status  # a zombie's status has no memory fields

    def _smaps(self) -> bytes:
        try:
            return smaps.kept(self._files["smaps"])
        except ProcessLookupError:
            raise self._gone() from None
