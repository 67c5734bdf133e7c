"""Opening an output, the one way for every file that wstrace writes.

wstrace often runs as root in a folder of somebody else's, who may plant a link, a FIFO or a file under the name of an
output, or exchange it between two looks. So nothing is decided about a path that is not decided about the descriptor:
a file is created exclusively or opened without following a link and without emptying it, and what fstat() says of the
descriptor decides whether it is written. Under sudo all of it happens with the rights of the user who called.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, NamedTuple

from wstrace.errors import OutputError
from wstrace.plugins import own_platform

#: flags that not every system has
_PLAIN = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOINHERIT", "O_NOCTTY"))
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
#: names of descriptors that were handed to us (`>(command)` of a shell): links of the system's own making
_HANDED = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})|/dev/(stdin|stdout|stderr)")
_TRIES = 100
_FIFO_SECONDS = 0.02


class Opened(NamedTuple):
    """A descriptor open for writing; created: this call made the file; regular: it can be cut and synced."""

    fd: int
    created: bool
    regular: bool


def open_output(path: str, *, force: bool = False, resume: bool = False) -> Opened:
    """Opens an output and changes nothing in a file that is there: the caller locks it, then cuts it.

    A FIFO waits for its reader. `/dev/fd/N` is a copy of that descriptor.

    Args:
        path: a new file, mode 0600; or a file, FIFO or character device of root's, of ours or of who called sudo.
        force: an existing file may be overwritten.
        resume: an existing file is kept.

    Raises:
        OutputError: it exists, is a symbolic link, has a second name or belongs to another user; or the system refuses.
    """
    handed = _HANDED.fullmatch(path)
    try:
        if handed is not None:
            number = ("stdin", "stdout", "stderr").index(handed[2]) if handed[2] else int(handed[1])
            return Opened(os.dup(number), created=False, regular=False)
        with callers_rights():
            fd, created = _open(path)
    except OSError as error:
        raise _refusal(path, error) from None
    try:
        regular = created or _check(fd, path, force=force, resume=resume)
        if not regular and hasattr(os, "set_blocking"):
            os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return Opened(fd, created, regular)


@contextmanager
def whole_file(path: str, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A binary file to write, which stands under its name once it is whole; when the block raises, nothing is left.

    Until then it has a name that nobody can foresee, in the same folder. A FIFO, a character device and a descriptor
    that was handed on are written as they are.

    Raises:
        OutputError: it exists and force is not given, or it cannot be written.
    """
    try:
        there = os.lstat(path) if _HANDED.fullmatch(path) is None else None
    except OSError:
        there = None
    if _HANDED.fullmatch(path) or (there is not None and not stat.S_ISREG(there.st_mode)):
        with os.fdopen(open_output(path, force=force).fd, "wb") as file, _refused(path):
            yield file
        return
    if there is not None and not force:
        raise _exists(path)
    unfinished = f"{path}.{secrets.token_hex(8)}.part"
    opened = open_output(unfinished)
    try:
        with _refused(path):
            with os.fdopen(opened.fd, "wb") as file:
                yield file
            with callers_rights():
                _name(unfinished, path, force)
    finally:
        remove(unfinished)


def remove(path: str) -> None:
    """Removes a file with the rights that it was opened with; one that is not there is no error.

    On Windows another program may have it open for a moment: it is tried for half a second.

    Raises:
        OSError: the system refuses.
    """
    for _ in range(10):
        try:
            with callers_rights(), contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
        except PermissionError:
            if hasattr(os, "geteuid"):
                raise
            time.sleep(0.05)
        else:
            return


def callers_rights() -> AbstractContextManager[None]:
    """While entered, this thread opens, names and removes files as the user who called sudo; else nothing changes."""
    platform = own_platform() if _effective_uid() == 0 else None
    return nullcontext() if platform is None else platform.as_output_owner()


def _effective_uid() -> int:
    """-1 where the system has no such users."""
    geteuid = getattr(os, "geteuid", None)
    return -1 if geteuid is None else int(geteuid())


def _owner() -> int | None:
    """Who called sudo."""
    platform = own_platform() if _effective_uid() == 0 else None
    owner = None if platform is None else platform.output_owner()
    return None if owner is None else owner[0]


def _open(path: str) -> tuple[int, bool]:
    """(descriptor, whether the file is new). Raises OSError."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _PLAIN, 0o600), True
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            while True:
                try:
                    return os.open(path, os.O_WRONLY | _NO_LINK | _NO_WAIT | _PLAIN), False
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                # nobody reads the FIFO yet. What lstat() says may be outdated: here it only refuses, and never permits
                _check_status(os.lstat(path), path)
                time.sleep(_FIFO_SECONDS)
    raise OSError(errno.EBUSY, "the name appears and disappears all the time")


def _check(fd: int, path: str, *, force: bool, resume: bool) -> bool:
    """Whether it is a regular file. Raises OutputError for what is not to be written."""
    status = os.fstat(fd)
    _check_status(status, path)
    if not stat.S_ISREG(status.st_mode):
        if os.isatty(fd):
            raise OutputError(f"{path} is a terminal", "pipe it, or name a file")
        return False
    if not force and not resume:
        raise _exists(path)
    try:
        named = os.lstat(path)
    except OSError as error:
        raise _refusal(path, error) from None
    # a hard link that is taken away after open() leaves a victim with one name: it must be this one, in this instant.
    # Some versions of Python on Windows number a file differently by path and by descriptor: there only links are seen
    other = stat.S_ISLNK(named.st_mode) if _effective_uid() < 0 else not os.path.samestat(named, status)
    if other:
        raise OutputError(f"{path} is a symbolic link, or was exchanged meanwhile", "name the file itself")
    _check_status(named, path)
    return True


def _check_status(status: os.stat_result, path: str) -> None:
    kind, us = stat.S_IFMT(status.st_mode), _effective_uid()
    if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFCHR):
        raise OutputError(f"{path} is neither a file nor a pipe", "choose another name")
    if us >= 0 and status.st_uid not in (0, us, _owner()):
        raise OutputError(f"{path} belongs to another user (uid {status.st_uid})", "remove it, or choose another name")
    if kind == stat.S_IFREG and status.st_nlink > 1:
        raise OutputError(
            f"{path} is a file that has {status.st_nlink} names: the others would change too",
            "remove this one, or choose another name",
        )


def _name(unfinished: str, path: str, force: bool) -> None:
    """Gives a whole file its name; without force only where nothing stands under it by now. Raises OSError."""
    if force:
        os.replace(unfinished, path)  # noqa: PTH105
    elif not hasattr(os, "geteuid"):
        os.rename(unfinished, path)  # noqa: PTH104  Windows replaces nothing
    else:
        try:
            os.link(unfinished, path)  # fails where there is a file by now
        except FileExistsError:
            raise _exists(path) from None
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                raise _exists(path) from None
            os.rename(unfinished, path)  # noqa: PTH104


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """An OSError that comes of writing is told as the output's failure."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error) from None


def _exists(path: str) -> OutputError:
    return OutputError(f"{path} exists", "choose another name, or overwrite it with -f (force=true)")


def _refusal(path: str, error: OSError) -> OutputError:
    """The system's refusal in a line, with what can be done."""
    if error.errno == errno.ELOOP:
        return OutputError(f"{path} is a symbolic link", "name the file itself, or remove the link")
    owner = _owner() if error.errno in (errno.EACCES, errno.EPERM) else None
    whose = "" if owner is None else f" to uid {owner}, who called sudo and whose rights files are written with"
    remedies = {
        errno.ENOENT: "create its directory first",
        errno.EACCES: "choose a directory that you may write to",
        errno.EROFS: "choose a directory that you may write to",
        errno.ENOSPC: "free some space or choose another disk",
        errno.EISDIR: "name a file in it",
    }
    why = f"cannot write {path}: {error.strerror or error}{whose}"
    return OutputError(why, remedies.get(error.errno or 0, "choose another name"))
