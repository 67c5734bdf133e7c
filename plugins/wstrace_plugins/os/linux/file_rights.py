"""Users: by name, and the one who called sudo; opens files with a user's rights, on one thread, and only meanwhile.

seteuid() is not suitable: the C library changes the ids of all threads (nptl(7)), so the drain of a session would lose
its privilege in the middle of its work. The file-system ids belong to the calling thread alone, and the kernel uses
them for files and nothing else. While they are not root's, the thread has no CAP_DAC_OVERRIDE and no CAP_FOWNER
(setfsuid(2), capabilities(7)). The groups count too: root's own, gid 0 among them, are exchanged by the system call
itself, which changes the calling thread only; the C library's setgroups() would change all threads.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wstrace.errors import OutputError, Unavailable
from wstrace_plugins.os.foreign import declare
from wstrace_plugins.os.linux import libc

_setfsuid = declare(None, "setfsuid", ctypes.c_int, ctypes.c_uint32)
_setfsgid = declare(None, "setfsgid", ctypes.c_int, ctypes.c_uint32)
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

    Raises:
        OutputError: the kernel refuses the change (no CAP_SETUID or CAP_SETGID, as in some containers).
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
