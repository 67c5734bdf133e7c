"""Opens outputs; every file that wstrace writes is opened here.

wstrace often runs as root in another user's folder. That user may plant a link, a FIFO or a file under the name of an
output, or exchange it between two checks. Therefore decisions rest on the descriptor, not on the path: a file is
created exclusively, or opened without following a link and without truncating it, and fstat() on the descriptor decides
whether it is written. Under sudo, all of this happens with the rights of the user who called sudo.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, NamedTuple

from wstrace.errors import OutputError
from wstrace.plugins import own_platform

#: Flags that not every system has.
_PLAIN = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOINHERIT", "O_NOCTTY"))
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
#: Names of inherited descriptors, such as a shell's `>(command)`. They are links that the kernel itself makes.
_HANDED = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})|/dev/(stdin|stdout|stderr)")
_TRIES = 100
_FIFO_SECONDS = 0.02


class Opened(NamedTuple):
    """A descriptor open for writing.

    Attributes:
        fd: the descriptor, which the caller closes.
        created: whether this call created the file.
        regular: whether it is a regular file, which can be truncated and synced.
    """

    fd: int
    created: bool
    regular: bool


def open_output(path: str, *, force: bool = False, resume: bool = False) -> Opened:
    """Opens an output without changing an existing file: the caller locks the file, then truncates it.

    Opening a FIFO waits for its reader. `/dev/fd/N` is opened as a duplicate of descriptor N.

    Args:
        path: a new file, created with mode 0600; or an existing file, FIFO or character device that belongs to root,
            to the effective user or to the user who called sudo.
        force: whether an existing file may be overwritten.
        resume: whether an existing file may be opened to be continued.

    Raises:
        OutputError: the file exists, is a symbolic link, has another hard link or belongs to another user; or the
            system refuses.
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
        with contextlib.suppress(OSError):  # nothing was written, so only the refusal is reported
            os.close(fd)
        raise
    return Opened(fd, created, regular)


@contextmanager
def whole_file(path: str, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Yields a binary file that gets its name only when the block ends; when the block raises, nothing is left.

    Until then the file has a random name in the same folder. A FIFO, a character device and an inherited descriptor
    are written directly.

    Raises:
        OutputError: the file exists and `force` is false, or it cannot be written.
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
    unfinished = f"{path}.{os.urandom(8).hex()}.part"
    try:
        opened = open_output(unfinished)
        try:
            with _refused(path):
                with os.fdopen(opened.fd, "wb") as file:
                    yield file
                with callers_rights():
                    _name(unfinished, path, force)
        finally:
            remove(unfinished)
    except KeyboardInterrupt:
        remove(unfinished)  # it may have come while the file was created or removed
        raise


def remove(path: str) -> None:
    """Removes a file with the rights that it was opened with. A missing file is no error.

    On Windows another program may have the file open for a moment, so removal is retried for half a second.

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
    """A context in which this thread accesses files as the user who called sudo; without sudo it changes nothing."""
    platform = own_platform() if _effective_uid() == 0 else None
    return nullcontext() if platform is None else platform.as_output_owner()


def _effective_uid() -> int:
    """The effective user id, or -1 on a system without user ids."""
    geteuid = getattr(os, "geteuid", None)
    return -1 if geteuid is None else int(geteuid())


def _owner() -> int | None:
    """The id of the user who called sudo, or None."""
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
                # Nobody reads the FIFO yet. The result of lstat() may be outdated, so it is used only to refuse.
                _check_status(os.lstat(path), path)
                time.sleep(_FIFO_SECONDS)
    raise OSError(errno.EBUSY, "the name appears and disappears all the time")


def _check(fd: int, path: str, *, force: bool, resume: bool) -> bool:
    """Whether the descriptor is a regular file. Raises OutputError for a file that may not be written."""
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
    # An attacker may remove a hard link after open(), which leaves the victim's file with one name: compare that name.
    # On Windows, some versions of Python give st_ino by path and by descriptor differently: check for links only.
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
    """Gives a finished file its name; without `force`, only when that name is still free. Raises OSError."""
    if force:
        os.replace(unfinished, path)  # noqa: PTH105
    elif not hasattr(os, "geteuid"):
        os.rename(unfinished, path)  # noqa: PTH104  on Windows, rename() fails when the target exists
    else:
        try:
            os.link(unfinished, path)  # fails when the target exists
        except FileExistsError:
            raise _exists(path) from None
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                raise _exists(path) from None
            os.rename(unfinished, path)  # noqa: PTH104


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """Turns an OSError of the block into an OutputError that names the output."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error) from None


def _exists(path: str) -> OutputError:
    return OutputError(f"{path} exists", "choose another name, or overwrite it with -f (force=true)")


def _refusal(path: str, error: OSError) -> OutputError:
    """The system's refusal as an error in one line, with a remedy."""
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
