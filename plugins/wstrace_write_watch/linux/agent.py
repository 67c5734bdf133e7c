"""The agent's socket on Linux: the target makes the userfaultfd, for only it can, and passes it to a tracer outside.

A unix socket, mode 0600 in a folder of mode 0700. The kernel tells each side who the other is (SO_PEERCRED): the target
answers its own user and root only, the tracer believes the target's process only. The userfaultfd acts on the memory of
who made it, wherever it is used; when the tracer closes it the watch is over.

Source: unix(7) SO_PEERCRED and SCM_RIGHTS, userfaultfd(2).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
import threading
from pathlib import Path

from wstrace.errors import TargetExited, Unavailable
from wstrace_os.linux import pagemap as pm
from wstrace_os.linux import procfs
from wstrace_os.linux.userfaultfd import Userfaultfd

_ASK = b"wstrace write_watch 1\n"
_SECONDS = 5.0
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class Agent:
    """The listening side: a daemon thread. See wstrace.agent()."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or default_path(os.getpid(), _uid(), make=True)
        self._socket = _listen(self.path)
        self._maker = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="wstrace-agent", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._forget)  # type: ignore[attr-defined, unused-ignore]

    def close(self) -> None:
        """Ends it and takes its socket away; again is no error."""
        if self._socket.fileno() < 0 or os.getpid() != self._maker:
            return
        with contextlib.suppress(OSError):
            Path(self.path).unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):  # whatever a peer does costs that peer only
                peer.settimeout(_SECONDS)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        _, uid, _ = credentials(peer)
        if uid not in (0, _uid()) or peer.recv(64) != _ASK:
            return
        with contextlib.ExitStack() as opened:  # the tracer's copies are the watch
            try:
                uffd = Userfaultfd()
                opened.callback(uffd.close)
                pagemap = pm.Pagemap()
                opened.callback(pagemap.close)
            except Unavailable as refused:
                peer.sendall(b"no " + str(refused).encode())
            else:
                socket.send_fds(peer, [b"ok"], [uffd.fd, pagemap.fd])  # type: ignore[attr-defined, unused-ignore]

    def _forget(self) -> None:
        self._socket.close()


def connect(pid: int, path: str = "") -> tuple[int, int]:
    """(userfaultfd, pagemap) of a process that runs an agent, at that socket or at the default one.

    Raises:
        TargetExited: there is no such process.
        Unavailable: it runs no agent for us, or the agent refused.
    """
    remedy = "call wstrace.agent() in that process"
    uid = int(procfs.status(pid)["Uid"].split()[1])
    path = path or default_path(pid, uid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:  # type: ignore[attr-defined, unused-ignore]
        peer.settimeout(_SECONDS)
        try:
            peer.connect(path)
            if credentials(peer)[:2] != (pid, uid):
                raise Unavailable(f"{path} is not process {pid}'s", remedy)
            peer.sendall(_ASK)
            answer, fds, _, _ = socket.recv_fds(peer, 1024, 2)  # type: ignore[attr-defined, unused-ignore]
        except OSError as error:
            if not procfs.exists(pid):
                raise TargetExited(f"there is no process {pid}") from None
            why = f"process {pid} cannot be watched from outside: it runs no agent ({error.strerror or error})"
            raise Unavailable(why, remedy) from None
    if answer == b"ok" and len(fds) == 2:
        return fds[0], fds[1]
    for fd in fds:
        os.close(fd)
    said = answer.removeprefix(b"no ").decode(errors="replace") or "it refused"
    raise Unavailable(f"process {pid}'s agent: {said}")


def default_path(pid: int, uid: int, *, make: bool = False) -> str:
    """Where that user's process has its socket: in /run/user/UID/wstrace, or in wstrace-UID among the temporary files.

    Raises:
        Unavailable: (make) the folder is not the user's alone.
    """
    runtime = Path(f"/run/user/{uid}")
    folder = runtime / "wstrace" if runtime.is_dir() else Path(tempfile.gettempdir()) / f"wstrace-{uid}"
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise Unavailable(f"{folder} is not a folder that only this user can enter", "remove it, or give a path")
    return str(folder / f"{pid}.sock")


def credentials(peer: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the other side, as the kernel tells them."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)  # type: ignore[attr-defined, unused-ignore]
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # type: ignore[attr-defined, unused-ignore]
    try:
        # bind() takes the mode over: no moment with another one
        os.fchmod(listener.fileno(), 0o600)  # type: ignore[attr-defined, unused-ignore]
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _alive(path):
                Path(path).unlink()  # of a process that ended without closing
        listener.bind(path)
        listener.listen(4)
    except OSError as error:
        listener.close()
        why = f"the agent cannot listen at {path}: {error.strerror or error}"
        raise Unavailable(why, "give another path") from None
    return listener


def _alive(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:  # type: ignore[attr-defined, unused-ignore]
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _uid() -> int:
    uid: int = os.geteuid()  # type: ignore[attr-defined, unused-ignore]
    return uid
