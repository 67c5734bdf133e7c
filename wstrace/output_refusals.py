"""The refusals of outputs: what failed, why, and what to do about it, in one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from wstrace.errors import OutputError
from wstrace.output_folder import ForeignLinkError
from wstrace.output_rights import owner

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
