"""The agent's socket on Linux: only the target can make the userfaultfd, so it makes it and passes it to a tracer.

It is a Unix socket of mode 0600 in a folder of mode 0700. Each side asks the kernel who the other one is (SO_PEERCRED).
The target answers only its own user and root. The tracer trusts only the target's process, and of what that passes only
what the kernel calls a userfaultfd. Such a descriptor acts on the memory of the process that made it, wherever it is
used; the watch ends when the tracer closes it. The tracer opens the pagemap itself.

Source: unix(7) SO_PEERCRED and SCM_RIGHTS, userfaultfd(2).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import stat
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.userfaultfd import Userfaultfd

_ASK = b"wstrace write_watch 1\n"
_SECONDS = 5.0
_PAUSE_SECONDS = 0.1  # between two attempts to accept a connection
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class Agent:
    """The listening side: a daemon thread. See wstrace.agent()."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or default_path(os.getpid(), _uid(), make=True)
        self._socket = _listen(self.path)
        self._maker = os.getpid()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="wstrace-agent", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def close(self) -> None:
        """Stops the agent and removes its socket; may be called again."""
        if self._socket.fileno() < 0 or os.getpid() != self._maker:
            return
        self._closing.set()
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            Path(self.path).unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                peer, _ = self._socket.accept()
            except OSError:  # no free descriptor (EMFILE), or the peer has gone: the next one may be served
                self._closing.wait(_PAUSE_SECONDS)
                continue
            with peer, contextlib.suppress(OSError):  # an error with one peer affects that peer only
                peer.settimeout(_SECONDS)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        _, uid, _ = credentials(peer)
        if uid not in (0, _uid()) or peer.recv(64) != _ASK:
            return
        try:
            uffd = Userfaultfd()
        except Unavailable as refused:
            peer.sendall(b"no " + str(refused).encode())
            return
        try:
            socket.send_fds(peer, [b"ok"], [uffd.fd])
        finally:
            uffd.close()  # the tracer's copy keeps the watch

    def _forget(self) -> None:
        self._socket.close()


def connect(pid: int, path: str = "") -> tuple[Userfaultfd, pm.Pagemap]:
    """The userfaultfd of a process that runs an agent, on that socket or on the default one, and its pagemap.

    Raises:
        TargetExited: there is no such process.
        Unavailable: it runs no agent for us, or the agent refused.
    """
    uid = int(procfs.status(pid)["Uid"].split()[1])
    pagemap = pm.Pagemap(pid)  # before connecting, so that it belongs to the program that answers
    try:
        return Userfaultfd(_handed(pid, uid, path or default_path(pid, uid))), pagemap
    except BaseException:
        pagemap.close()
        raise


def _handed(pid: int, uid: int, path: str) -> int:
    """The userfaultfd that the agent on that socket passes."""
    remedy = "call wstrace.agent() in that process"
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_SECONDS)
        try:
            peer.connect(path)
            if credentials(peer)[:2] != (pid, uid):
                raise Unavailable(f"{path} is not process {pid}'s", remedy)
            peer.sendall(_ASK)
            answer, handed = _received(peer)
        except OSError as error:
            if not procfs.exists(pid):
                raise TargetExited(f"there is no process {pid}") from None
            why = f"process {pid} cannot be watched from outside: it runs no agent ({error.strerror or error})"
            raise Unavailable(why, remedy) from None
    names = [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in handed]
    if answer == b"ok" and names == ["anon_inode:[userfaultfd]"]:
        return handed[0]
    for fd in handed:
        os.close(fd)
    said = answer.removeprefix(b"no ").decode(errors="replace")
    raise Unavailable(f"process {pid}'s agent passes no userfaultfd: {said or 'it refused'}")


def _received(peer: Any) -> tuple[bytes, list[int]]:
    """A message and at most two descriptors, which our child processes do not inherit.

    socket.recv_fds() has a flag for that, but ignores it.
    """
    descriptor = struct.Struct("=i")
    answer, sent, _, _ = peer.recvmsg(1024, socket.CMSG_LEN(2 * descriptor.size), socket.MSG_CMSG_CLOEXEC)
    handed = b"".join(data for level, kind, data in sent if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS))
    whole = len(handed) // descriptor.size * descriptor.size
    return answer, [fd for (fd,) in descriptor.iter_unpack(handed[:whole])]


def default_path(pid: int, uid: int, *, make: bool = False) -> str:
    """The default socket of that user's process: in /run/user/UID/wstrace, or in wstrace-UID in the temporary folder.

    Raises:
        Unavailable: (make) the folder does not belong to the user alone.
    """
    runtime = Path("/run/user") / str(uid)
    folder = runtime / "wstrace" if runtime.is_dir() else Path(tempfile.gettempdir()) / f"wstrace-{uid}"
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise Unavailable(f"{folder} is not a folder that only this user can enter", "remove it, or give a path")
    return str(folder / f"{pid}.sock")


def credentials(peer: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the other side, as reported by the kernel."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def _listen(path: str) -> socket.socket:
    listener: socket.socket = socket.socket(socket.AF_UNIX)
    try:
        # bind() applies the mode, so the socket never has another one
        os.fchmod(listener.fileno(), 0o600)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _alive(path):
                Path(path).unlink()  # left by a process that ended without closing it
        listener.bind(path)
        listener.listen(4)
    except OSError as error:
        listener.close()
        why = f"the agent cannot listen at {path}: {error.strerror or error}"
        raise Unavailable(why, "give another path") from None
    return listener


def _alive(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _uid() -> int:
    uid: int = os.geteuid()
    return uid
