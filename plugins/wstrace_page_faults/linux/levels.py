"""What perf_event_open permits: all faults, faults of user code, or nothing. Tried, not guessed."""

from __future__ import annotations

import errno
import os

from wstrace.errors import Unavailable
from wstrace.interfaces import Level
from wstrace_os.linux import procfs
from wstrace_page_faults.linux import perf_event as perf
from wstrace_page_faults.linux.events import Settings
from wstrace_page_faults.linux.rings import MINOR


def allowed(pid: int, kernel: bool) -> Level:
    """The level `full` or `user`, by opening an event on a process (0 = ourselves). Raises OSError if both fail."""
    settings = Settings()
    why = Level("user", "kernel=no was asked for")
    if kernel:
        try:
            os.close(perf.perf_event_open(settings.attributes(MINOR, lost=False)[0], pid, -1))
            return Level("full")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            refused = perf.refusal(error, kernel=True)
            why = Level("user", f"{refused.why}: faults taken by kernel code are not shown", refused.remedy)
    os.close(perf.perf_event_open(Settings(kernel=False).attributes(MINOR, lost=False)[0], pid, -1))
    return why


def not_ours(pid: int) -> Unavailable:
    """The error for a process that may not be traced, although tracing is permitted on our own."""
    owner = procfs.status(pid).get("Uid", "?").split()[0]
    return Unavailable(
        f"process {pid} of uid {owner} may not be traced by uid {os.geteuid()}",
        "run wstrace as that user or as root",
    )
