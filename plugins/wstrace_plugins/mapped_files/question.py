"""wstrace.mapped_file: one question, answered by the system itself."""

from __future__ import annotations

from wstrace_plugins.os import backend


def mapped_file(address: int, pid: int | None = None) -> str | None:
    """The path of the file mapped at an address of a process (None = the calling one); None where no file is.

    Raises:
        TargetExited: there is no such process.
        Unavailable: it belongs to someone else, or wstrace captures nothing on this system.
    """
    path: str | None = backend("wstrace_plugins.mapped_files").mapped_file(address, pid)
    return path
