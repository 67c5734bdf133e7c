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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import IO, NamedTuple

from wstrace.errors import OutputError
from wstrace.plugins import own_platform


def belongs_to_us(path: str) -> bool:
    """Whether it is a regular file, no link, of the user whose rights files are written with."""
    us, caller = effective_uid(), owner()
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (us < 0 or status.st_uid == (us if caller is None else caller))


def callers_rights() -> AbstractContextManager[None]:
    """A context in which this thread accesses files as the user who called sudo; without sudo it changes nothing."""
    platform = own_platform() if effective_uid() == 0 else None
    return nullcontext() if platform is None else platform.as_output_owner()


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yields a folder in which outputs can be written, which is removed with the files in it.

    Under sudo it is the caller's: files are written with that user's rights, for whom root's own folder is closed.
    """
    # As tempfile and shutil would, whose import takes 6 ms of every `run`.
    places = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")] + ["/tmp", "/var/tmp"]  # noqa: S108
    folder = os.path.join(next(filter(os.path.isdir, places), "."), f"wstrace-{os.urandom(8).hex()}")
    with callers_rights():
        os.mkdir(folder, 0o700)
    try:
        yield folder
    finally:
        with callers_rights(), contextlib.suppress(OSError):
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def effective_uid() -> int:
    """The effective user id, or -1 on a system without user ids."""
    geteuid = getattr(os, "geteuid", None)
    return -1 if geteuid is None else int(geteuid())


def owner() -> int | None:
    """The id of the user who called sudo, or None."""
    platform = own_platform() if effective_uid() == 0 else None
    owner = None if platform is None else platform.output_owner()
    return None if owner is None else owner[0]


#: Of a folder that is only a place on the way; 0 = the system has no such descriptors.
_PLACE = getattr(os, "O_PATH", 0)
_FOLDER = _PLACE | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
#: As many as the kernel follows: path_resolution(7).
_MOST_LINKS = 40


class ForeignLinkError(PermissionError):
    """A folder on the way to an output is a symbolic link that is in the hands of another user."""


@contextmanager
def in_folder(path: str, folder: int | None) -> Iterator[int | None]:
    """Yields a descriptor of the folder that holds a path, so that all that is done there is done in the same one.

    path: the path of an output. folder: the descriptor, where the caller has one. Yields none where the path can be
    left to the system: for a user who is not root, who reaches no more than is his. Raises ForeignLinkError: it is not
    root who decides where a link on the way leads; OSError: there is no such folder.
    """
    held = _held(path) if folder is None else None
    try:
        yield held if folder is None else folder
    finally:
        if held is not None:
            os.close(held)


def make_folders(path: str) -> None:
    """Makes a folder for outputs, and those above it that are missing; a folder that exists already is no error.

    As root, none is made where a link leads that is in the hands of another user: os.makedirs() follows all links.
    Raises ForeignLinkError: as in_folder(); OSError: the system refuses, or there is something else under that name.
    """
    folder = path.rstrip("/")
    try:
        _make(folder)
    except FileNotFoundError:
        above = os.path.dirname(folder)
        if not above:
            raise
        make_folders(above)
        _make(folder)


def _make(folder: str) -> None:
    if not folder:  # the root, which is there
        return
    with callers_rights():
        try:
            with in_folder(folder, None) as at:
                os.mkdir(folder if at is None else os.path.basename(folder), dir_fd=at)
        except ForeignLinkError:
            raise
        except OSError:  # of a folder that is there, systems tell several errors
            if not os.path.isdir(folder):
                raise


def _held(path: str) -> int | None:
    where, name = os.path.split(path)
    # Under sudo, files are written with the rights of the user who called it.
    if not _PLACE or not name or effective_uid() != 0 or owner() is not None:
        return None
    at, links = os.open("/" if where.startswith("/") else ".", _FOLDER), 0
    parts = where.split("/")[::-1]
    try:
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            try:
                step = os.open(part, _FOLDER | _NO_LINK, dir_fd=at)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                target = _target(part, at)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                if target:
                    parts += target.split("/")[::-1]
                    part = "/" if target.startswith("/") else "."
                step = os.open(part, _FOLDER, dir_fd=at)
            at, before = step, at  # first, so that an interrupt closes none twice
            os.close(before)
    except BaseException:
        os.close(at)
        raise
    return at


def _target(name: str, at: int) -> str:
    """Where a symbolic link leads; "" = follow it: it has no name for that. Raises OSError."""
    fd = os.open(name, _PLACE | _NO_LINK, dir_fd=at)
    try:
        status = os.fstat(fd)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for uid in (os.fstat(at).st_uid, status.st_uid):
            # In a user namespace without the machine's root, its own folders and links belong to the overflow uid.
            if uid not in (0, os.stat("/").st_uid):
                why = f"its folder {name} is a symbolic link that uid {uid} may change, and root does not follow it"
                raise ForeignLinkError(errno.EPERM, why)
        target = os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)
    # Those of /proc/PID lead to the folder itself, which may have no name here; they are not as long as their text.
    return target if len(os.fsencode(target)) == status.st_size else ""


#: What to do about a disk that has no room.
NO_ROOM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space or choose another disk"),
    errno.EFBIG: "allow larger files (ulimit -f) or choose another disk",
}


@contextmanager
def refused(path: str) -> Iterator[None]:
    """Turns an OSError of the block into an OutputError that names the output."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from None


def exists(path: str) -> OutputError:
    """The refusal to write where a file is."""
    return OutputError(f"{path} exists", "choose another name, or overwrite it with -f (force=true)")


def refusal(path: str, error: OSError) -> OutputError:
    """The system's refusal as an error in one line, with a remedy."""
    if isinstance(error, ForeignLinkError):
        return OutputError(f"cannot write {path}: {error.strerror}", "name the folder that it leads to")
    if error.errno == errno.ELOOP:
        return OutputError(f"{path} is a symbolic link", "name the file itself, or remove the link")
    caller = owner() if error.errno in (errno.EACCES, errno.EPERM) else None
    rights = "" if caller is None else f" to uid {caller}, who called sudo and whose rights files are written with"
    remedies = {
        errno.ENOENT: "create its directory first",
        errno.EACCES: "choose a directory that you may write to",
        errno.EROFS: "choose a directory that you may write to",
        **NO_ROOM,
        errno.EISDIR: "name a file in it",
    }
    why = f"cannot write {path}: {error.strerror or error}{rights}"
    return OutputError(why, remedies.get(error.errno or 0, "choose another name"))


#: Flags that not every system has.
_PLAIN = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOINHERIT", "O_NOCTTY"))
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
#: Names of inherited descriptors, such as a shell's `>(command)`. They are links that the kernel itself makes.
_HANDED = r"/(?:dev|proc/self)/fd/(\d{1,9})|/dev/(stdin|stdout|stderr)"
_TRIES, _LONGEST_NAME = 100, 255
_FIFO_SECONDS = 0.02


class Opened(NamedTuple):
    """A descriptor open for writing.

    fd: the descriptor, which the caller closes. created: whether this call created the file. regular: whether it is a
    regular file, which can be truncated and synced.
    """

    fd: int
    created: bool
    regular: bool


def open_output(path: str, *, force: bool = False, folder: int | None = None) -> Opened:
    """Opens an output without changing an existing file: the caller locks the file, then truncates it.

    Opening a FIFO waits for its reader. `/dev/fd/N` is opened as a duplicate of descriptor N.
    path: a new file, created with mode 0600; or an existing file, FIFO or character device that belongs to root, to the
    effective user or to the user who called sudo. force: whether an existing file may be overwritten. folder: see
    whole_file(). Raises OutputError: the file exists, is a symbolic link, has another hard link or belongs to another
    user; or the system refuses.
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
    force: whether an existing file may be overwritten. folder: a descriptor of the folder that holds the file, where
    somebody else may exchange that meanwhile; None = the folder is found by its name, each time. Raises OutputError:
    the file exists and `force` is false, or it cannot be written.
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

    Raises OutputError: the name is taken, or the system refuses.
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

    Raises OutputError: it is a link or no folder, or belongs to another user; or the system refuses.
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

    Raises OutputError: it is no regular file, is a symbolic link, has another hard link or belongs to another user; or
    the system refuses.
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
    Raises OSError: the system refuses.
    """

    def unlink() -> None:
        with callers_rights(), contextlib.suppress(FileNotFoundError), in_folder(path, folder) as at:
            os.unlink(_in(at, path), dir_fd=at)

    _retried(unlink)


def _retried(act: Callable[[], None]) -> bool:
    """Whether it could be done: on Windows, where another program may have the file open, it is tried half a second.

    Raises OSError: another system refuses.
    """
    for _ in range(10):
        try:
            act()
        except PermissionError:
            if hasattr(os, "geteuid"):
                raise
            time.sleep(0.05)
        else:
            return True
    return False


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
        if not _retried(partial(os.replace, unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)):
            raise OutputError(
                f"cannot write {path}: another program has it open, or it is read-only",
                "close it there, or choose another name",
            )
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
