"""The agent's socket on Linux: only the target can make the userfaultfd, so it makes it and passes it to a tracer.

It is a Unix socket of mode 0600 in a folder of mode 0700. Each side asks the kernel who the other one is (SO_PEERCRED).
The target answers only its own user and root. The tracer trusts only the target's process, and of what that passes only
what the kernel calls a userfaultfd. Such a descriptor acts on the memory of the process that made it, wherever it is
used; the watch ends when the tracer closes it. The tracer opens the pagemap itself, before it connects, where it may.

Source: unix(7) SO_PEERCRED and SCM_RIGHTS, userfaultfd(2).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import socket
import stat
import struct
import tempfile
import threading
from itertools import islice
from pathlib import Path
from typing import Any

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.userfaultfd import Userfaultfd

_ASK = b"wstrace write_watch 1\n"
_SECONDS = 5.0
_PAUSE_SECONDS = 0.1  # between two attempts to accept a connection
_RUNTIME = "/run/user"
#: So many entries of the folder of sockets are looked at for those that ended processes have left.
_MOST_LEFT = 4096
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
        with contextlib.ExitStack() as opened:  # the tracer's copies keep the watch
            try:
                uffd = Userfaultfd()
                opened.callback(uffd.close)
                pagemap = pm.Pagemap()
                opened.callback(pagemap.close)
            except Unavailable as refused:
                peer.sendall(b"no " + str(refused).encode())
            else:
                socket.send_fds(peer, [b"ok"], [uffd.fd, pagemap.fd])

    def _forget(self) -> None:
        self._socket.close()


def connect(pid: int, path: str = "") -> tuple[int, int]:
    """(userfaultfd, pagemap) of a process that runs an agent, on that socket or on the default one; not inheritable.

    Raises:
        TargetExited: there is no such process.
        Unavailable: it runs no agent for us, or the agent refused.
    """
    uid = int(procfs.status(pid)["Uid"].split()[1])
    own = _own_pagemap(pid)  # before connecting, so that it belongs to the program that answers
    unused = [] if own is None else [own]
    try:
        answer, handed = _asked(pid, uid, path or default_path(pid, uid))
        unused += handed
        used = _believed(pid, answer, handed, own)
        unused = [fd for fd in unused if fd not in used]
        return used
    finally:
        for fd in unused:
            os.close(fd)


def _own_pagemap(pid: int) -> int | None:
    try:
        return pm.Pagemap(pid).fd
    except TargetExited:
        raise
    except Unavailable:  # a process of our own user that is not dumpable
        return None


def _asked(pid: int, uid: int, path: str) -> tuple[bytes, list[int]]:
    """The answer of the agent on that socket, and the descriptors that it passes."""
    remedy = "call wstrace.agent() in that process"
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_SECONDS)
        try:
            peer.connect(path)
            if credentials(peer)[:2] != (pid, uid):
                raise Unavailable(f"{path} is not process {pid}'s", remedy)
            peer.sendall(_ASK)
            return _received(peer)
        except OSError as error:
            if not procfs.exists(pid):
                raise TargetExited(f"there is no process {pid}") from None
            why = f"process {pid} cannot be watched from outside: it runs no agent ({error.strerror or error})"
            raise Unavailable(why, remedy) from None


def _received(peer: Any) -> tuple[bytes, list[int]]:
    """A message and at most two descriptors, which our child processes do not inherit.

    socket.recv_fds() has a flag for that, but ignores it.
    """
    descriptor = struct.Struct("=i")
    answer, sent, _, _ = peer.recvmsg(1024, socket.CMSG_LEN(2 * descriptor.size), socket.MSG_CMSG_CLOEXEC)
    handed = b"".join(data for level, kind, data in sent if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS))
    whole = len(handed) // descriptor.size * descriptor.size
    return answer, [fd for (fd,) in descriptor.iter_unpack(handed[:whole])]


def _believed(pid: int, answer: bytes, handed: list[int], own: int | None) -> tuple[int, int]:
    """(userfaultfd, pagemap), if the agent passed them."""
    if answer != b"ok":
        said = answer.removeprefix(b"no ").decode(errors="replace") or "it refused"
        raise Unavailable(f"process {pid}'s agent: {said}")
    names = [_file_of(fd) for fd in handed]
    if (
        len(names) != 2
        or names[0] != "anon_inode:[userfaultfd]"
        or (own is None and names[1] != f"/proc/{pid}/pagemap")
    ):
        raise Unavailable(f"process {pid}'s agent handed over something else than a userfaultfd and its pagemap")
    return handed[0], handed[1] if own is None else own


def _file_of(fd: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""


def default_path(pid: int, uid: int, *, make: bool = False) -> str:
    """The default socket of that user's process: in /run/user/UID/wstrace, or in wstrace-UID in the temporary folder.

    Raises:
        Unavailable: (make) the folder does not belong to the user alone.
    """
    runtime = Path(_RUNTIME) / str(uid)
    folder = runtime / "wstrace" if runtime.is_dir() else Path(tempfile.gettempdir()) / f"wstrace-{uid}"
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise Unavailable(f"{folder} is not a folder that only this user can enter", "remove it, or give a path")
        with contextlib.suppress(OSError):  # what cannot be removed stays
            _remove_left(str(folder), uid)
    return str(folder / f"{pid}.sock")


def _remove_left(folder: str, uid: int) -> None:
    """Removes the sockets of processes that ended without closing them, from a folder of this user's alone.

    Nobody else can put anything there; the folder is held open nevertheless, so that it is the one that was looked at,
    and no link is followed. A process of another pid namespace may share the folder: it listens, and keeps its socket.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(held)
        if found.st_uid != uid or found.st_mode & 0o077:
            return
        with os.scandir(held) as entries:
            names = [entry.name for entry in islice(entries, _MOST_LEFT)]
        for name in names:
            pid = name.removesuffix(".sock")
            if pid == name or not (pid.isascii() and pid.isdecimal()) or procfs.exists(int(pid)):
                continue
            own = os.stat(name, dir_fd=held, follow_symlinks=False)
            if stat.S_ISSOCK(own.st_mode) and own.st_uid == uid and _refuses(f"/proc/self/fd/{held}/{name}"):
                os.unlink(name, dir_fd=held)
    finally:
        os.close(held)


def _refuses(path: str) -> bool:
    """Whether nobody listens at this socket; False where that is not certain."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full backlog would hold us up
        return probe.connect_ex(path) == errno.ECONNREFUSED


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
