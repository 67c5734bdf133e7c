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
from contextlib import contextmanager
from typing import IO, NamedTuple

from wstrace.errors import OutputError
from wstrace.output_folder import exists, in_folder, refusal, refused
from wstrace.output_rights import callers_rights, effective_uid, owner

#: Flags that not every system has.
_PLAIN = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOINHERIT", "O_NOCTTY"))
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
#: Names of inherited descriptors, such as a shell's `>(command)`. They are links that the kernel itself makes.
_HANDED = r"/(?:dev|proc/self)/fd/(\d{1,9})|/dev/(stdin|stdout|stderr)"
_TRIES, _LONGEST_NAME = 100, 255
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


def open_output(path: str, *, force: bool = False, folder: int | None = None) -> Opened:
    """Opens an output without changing an existing file: the caller locks the file, then truncates it.

    Opening a FIFO waits for its reader. `/dev/fd/N` is opened as a duplicate of descriptor N.

    Args:
        path: a new file, created with mode 0600; or an existing file, FIFO or character device that belongs to root,
            to the effective user or to the user who called sudo.
        force: whether an existing file may be overwritten.
        folder: see whole_file().

    Raises:
        OutputError: the file exists, is a symbolic link, has another hard link or belongs to another user; or the
            system refuses.
    """
    refuse_url(path)
    handed = re.fullmatch(_HANDED, path)
    try:
        if handed is not None:
            number = ("stdin", "stdout", "stderr").index(handed[2]) if handed[2] else int(handed[1])
            return Opened(os.dup(number), created=False, regular=False)
        with in_folder(path, folder) as at:
            return _opened(path, at, force=force)
    except OSError as error:
        raise refusal(path, error) from None


def _opened(path: str, folder: int | None, *, force: bool) -> Opened:
    with callers_rights():
        fd, created = _open(path, folder)
    try:
        regular = created or _check(fd, path, folder, force=force)
        if not regular and hasattr(os, "set_blocking"):
            os.set_blocking(fd, True)
    except BaseException:
        with contextlib.suppress(OSError):  # nothing was written, so only the refusal is reported
            os.close(fd)
        raise
    return Opened(fd, created, regular)


def refuse_url(path: str) -> None:
    """Raises OutputError for the URL of an object, which would else be a folder `s3:`."""
    if re.match(r"(s3|gs|az|https?)://", path):
        url = re.sub(r"(?<=://)[^/]*@", "", path).partition("?")[0]
        raise OutputError(
            f"{url} is no file, and this output is written to files only",
            "write a file and copy it; traces (run, attach) go to s3://, gs:// and az://",
        )


@contextmanager
def whole_file(path: str, *, force: bool = False, folder: int | None = None) -> Iterator[IO[bytes]]:
    """Yields a binary file that gets its name only when the block ends; when the block raises, nothing is left.

    Until then it has a random name in the same folder, which a process that is killed leaves behind. A FIFO, a
    character device and an inherited descriptor are written directly.

    Args:
        path: the file. force: whether an existing file may be overwritten.
        folder: a descriptor of the folder that holds the file, where somebody else may exchange that meanwhile; None =
            the folder is found by its name, each time.

    Raises:
        OutputError: the file exists and `force` is false, or it cannot be written.
    """
    refuse_url(path)
    with contextlib.ExitStack() as stack:
        with refused(path):
            at = None if re.fullmatch(_HANDED, path) else stack.enter_context(in_folder(path, folder))
        yield stack.enter_context(_whole_file(path, force, at))


@contextmanager
def _whole_file(path: str, force: bool, folder: int | None) -> Iterator[IO[bytes]]:
    try:
        there = os.lstat(_in(folder, path), dir_fd=folder) if re.fullmatch(_HANDED, path) is None else None
    except OSError:
        there = None
    if re.fullmatch(_HANDED, path) or (there is not None and not stat.S_ISREG(there.st_mode)):
        with os.fdopen(open_output(path, force=force, folder=folder).fd, "wb") as file, refused(path):
            yield file
        return
    if there is not None and not force:
        raise exists(path)
    unfinished = _unfinished(path)
    try:
        try:
            with refused(path):  # by its own name, not by the random one
                with os.fdopen(_opened(unfinished, folder, force=False).fd, "wb") as file:
                    yield file
                with callers_rights():
                    _name(_in(folder, unfinished), _in(folder, path), force, folder)
        finally:
            remove(unfinished, folder)
    except KeyboardInterrupt:
        remove(unfinished, folder)  # it may have come while the file was created or removed
        raise


def link(existing: str, path: str) -> None:
    """Gives a file that wstrace has written one more name; where the file system has no hard links, a copy has it.

    Raises:
        OutputError: the name is taken, or the system refuses.
    """
    try:
        with callers_rights(), in_folder(existing, None) as here, in_folder(path, None) as there:
            os.link(_in(here, existing), _in(there, path), src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except FileExistsError:
        raise exists(path) from None
    except (OSError, NotImplementedError):
        import shutil

        with whole_file(path) as copy, refused(existing):
            with callers_rights():
                fd = _open_old(existing, os.O_RDONLY)
            with os.fdopen(fd, "rb") as file:
                shutil.copyfileobj(file, copy)


def sync(path: str) -> None:
    """Makes what was written to a file of ours durable. Raises OutputError: the system does not confirm it."""
    try:
        with callers_rights():
            fd = _open_old(path, os.O_RDWR | _NO_WAIT)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OutputError(f"{path} may not survive a power failure: {error.strerror or error}") from None


def own_folder(path: str) -> None:
    """Makes a folder that only its owner may enter, or accepts an existing one of root, us or the caller of sudo.

    Raises:
        OutputError: it is a link or no folder, or belongs to another user; or the system refuses.
    """
    try:
        plain = path.rstrip("/")  # "link/" is what the link leads to
        with callers_rights(), in_folder(plain, None) as at:
            name = path if at is None else _in(at, plain)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=at)
            status = os.lstat(name, dir_fd=at)
    except OSError as error:
        raise refusal(path, error) from None
    us = effective_uid()
    if not stat.S_ISDIR(status.st_mode) or (us >= 0 and status.st_uid not in (0, us, owner())):
        raise OutputError(f"{path} is no folder, or belongs to another user", "remove it, or choose another name")


def open_own(path: str) -> int:
    """A descriptor for reading a file that wstrace wrote, opened with the writer's rights; the caller closes it.

    Raises:
        OutputError: it is no regular file, is a symbolic link, has another hard link or belongs to another user; or the
            system refuses.
    """
    try:
        with callers_rights():
            fd = _open_old(path, os.O_RDONLY | _NO_WAIT)
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        status = os.fstat(fd)
        _check_status(status, path)
        if not stat.S_ISREG(status.st_mode):
            raise OutputError(f"{path} is no file")  # noqa: TRY301
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove(path: str, folder: int | None = None) -> None:
    """Removes a file with the rights that it was opened with. A missing file is no error.

    On Windows another program may have the file open for a moment, so removal is retried for half a second.

    Raises:
        OSError: the system refuses.
    """
    for _ in range(10):
        try:
            with callers_rights(), contextlib.suppress(FileNotFoundError), in_folder(path, folder) as at:
                os.unlink(_in(at, path), dir_fd=at)
        except PermissionError:
            if hasattr(os, "geteuid"):
                raise
            time.sleep(0.05)
        else:
            return


def _in(folder: int | None, path: str) -> str:
    """How a file is named to the system: from a folder's descriptor on, or whole."""
    return path if folder is None else os.path.basename(path)


def _open_old(path: str, flags: int) -> int:
    """A descriptor of a file that exists, and is no link. Raises OSError."""
    with in_folder(path, None) as at:
        return os.open(_in(at, path), flags | _NO_LINK | _PLAIN, dir_fd=at)


def _open(path: str, folder: int | None) -> tuple[int, bool]:
    """(descriptor, whether the file is new). Raises OSError."""
    name = _in(folder, path)
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _PLAIN, 0o600, dir_fd=folder), True
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            while True:
                try:
                    return os.open(name, os.O_WRONLY | _NO_LINK | _NO_WAIT | _PLAIN, dir_fd=folder), False
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                # Nobody reads the FIFO yet. The result of lstat() may be outdated, so it is used only to refuse.
                _check_status(os.lstat(name, dir_fd=folder), path)
                time.sleep(_FIFO_SECONDS)
    raise OSError(errno.EBUSY, "the name appears and disappears all the time")


def _check(fd: int, path: str, folder: int | None, *, force: bool) -> bool:
    """Whether the descriptor is a regular file. Raises OutputError for a file that may not be written."""
    status = os.fstat(fd)
    _check_status(status, path)
    if not stat.S_ISREG(status.st_mode):
        if os.isatty(fd):
            raise OutputError(f"{path} is a terminal", "pipe it, or name a file")
        return False
    if not force:
        raise exists(path)
    try:
        named = os.lstat(_in(folder, path), dir_fd=folder)
    except OSError as error:
        raise refusal(path, error) from None
    # An attacker may remove a hard link after open(), which leaves the victim's file with one name: compare that name.
    # On Windows, some versions of Python give st_ino by path and by descriptor differently: check for links only.
    other = stat.S_ISLNK(named.st_mode) if effective_uid() < 0 else not os.path.samestat(named, status)
    if other:
        raise OutputError(f"{path} is a symbolic link, or was exchanged meanwhile", "name the file itself")
    _check_status(named, path)
    return True


def _check_status(status: os.stat_result, path: str) -> None:
    kind, us = stat.S_IFMT(status.st_mode), effective_uid()
    if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFCHR):
        raise OutputError(f"{path} is neither a file nor a pipe", "choose another name")
    if us >= 0 and status.st_uid not in (0, us, owner()):
        raise OutputError(f"{path} belongs to another user (uid {status.st_uid})", "remove it, or choose another name")
    if kind == stat.S_IFREG and status.st_nlink > 1:
        raise OutputError(
            f"{path} is a file that has {status.st_nlink} names: the others would change too",
            "remove this one, or choose another name",
        )


def _unfinished(path: str) -> str:
    """A random name in the folder of a path, no longer than names may be."""
    base, ending = os.path.basename(path), f".{os.urandom(8).hex()}.part"
    if len(os.fsencode(base + ending)) > _LONGEST_NAME:
        base = "wstrace"
    return os.path.join(os.path.dirname(path), base + ending)


def _name(unfinished: str, path: str, force: bool, folder: int | None) -> None:
    """Gives a finished file its name; without `force`, only when that name is still free. Raises OSError."""
    if force:
        os.replace(unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)
    elif not hasattr(os, "geteuid"):
        os.rename(unfinished, path)
    else:
        try:
            os.link(unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)  # fails when the target exists
        except FileExistsError:
            raise exists(path) from None
        except OSError:  # a file system without hard links
            with contextlib.suppress(FileNotFoundError):
                os.lstat(path, dir_fd=folder)
                raise exists(path) from None
            os.rename(unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)
