"""The folder of an output, and its refusals. As root, nobody else decides by a symbolic link which folder that is."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from wstrace.errors import OutputError
from wstrace.output_rights import callers_rights, effective_uid, owner

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

    Args:
        path: the path of an output.
        folder: the descriptor, where the caller has one.

    Yields:
        None where the path can be left to the system: for a user who is not root, who reaches no more than is his; and
        for root where all folders on the way are root's.

    Raises:
        ForeignLinkError: it is not root who decides where a link on the way leads.
        OSError: there is no such folder.
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

    Raises:
        ForeignLinkError: as in_folder().
        OSError: the system refuses, or there is something else under that name.
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
            if not os.path.isdir(folder):  # noqa: PTH112
                raise


def _held(path: str) -> int | None:
    where, name = os.path.split(path)
    # Under sudo, files are written with the rights of the user who called it.
    if not _PLACE or not name or effective_uid() != 0 or owner() is not None:
        return None
    # In a user namespace without the machine's root, the machine's own folders and links belong to the overflow uid.
    roots = {0, os.stat("/").st_uid}  # noqa: PTH116
    at, safe, links = os.open("/" if where.startswith("/") else ".", _FOLDER), True, 0
    parts = where.split("/")[::-1]
    try:
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            folder = os.fstat(at)
            try:
                step = os.open(part, _FOLDER | _NO_LINK, dir_fd=at)
                status = os.fstat(step)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                status, target = _link(part, at, folder.st_uid, roots)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                if target:
                    parts += target.split("/")[::-1]
                    part = "/" if target.startswith("/") else "."
                step = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = step
            safe = safe and _is_kept(folder, status.st_uid, roots)
    except BaseException:
        os.close(at)
        raise
    if safe:
        os.close(at)
    return None if safe else at


def _link(name: str, at: int, folder_uid: int, roots: AbstractSet[int]) -> tuple[os.stat_result, str]:
    """What a symbolic link is and where it leads; "" = follow it: it has no name for that. Raises OSError."""
    fd = os.open(name, _PLACE | _NO_LINK, dir_fd=at)
    try:
        status = os.fstat(fd)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for uid in (folder_uid, status.st_uid):
            if uid not in roots:
                why = f"its folder {name} is a symbolic link that uid {uid} may change, and root does not follow it"
                raise ForeignLinkError(errno.EPERM, why)
        target = os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)
    # Those of /proc/PID lead to the folder itself, which may have no name here; they are not as long as their text.
    return status, target if len(os.fsencode(target)) == status.st_size else ""


def _is_kept(folder: os.stat_result, uid: int, roots: AbstractSet[int]) -> bool:
    """Whether only root may exchange what is in a folder and belongs to that user."""
    closed = not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder.st_uid in roots and (closed or (bool(folder.st_mode & stat.S_ISVTX) and uid in roots))


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
