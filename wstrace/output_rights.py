"""With whose rights files are written: our own, or as root under sudo those of the user who called it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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
    """Yields a folder in which outputs can be written, which is removed with all that is in it.

    Under sudo it is the caller's: files are written with that user's rights, for whom root's own folder is closed.
    """
    import shutil  # most runs need none
    import tempfile

    with callers_rights():
        folder = tempfile.mkdtemp(prefix="wstrace-")
    try:
        yield folder
    finally:
        with callers_rights():
            shutil.rmtree(folder, ignore_errors=True)


def effective_uid() -> int:
    """The effective user id, or -1 on a system without user ids."""
    geteuid = getattr(os, "geteuid", None)
    return -1 if geteuid is None else int(geteuid())


def owner() -> int | None:
    """The id of the user who called sudo, or None."""
    platform = own_platform() if effective_uid() == 0 else None
    owner = None if platform is None else platform.output_owner()
    return None if owner is None else owner[0]
