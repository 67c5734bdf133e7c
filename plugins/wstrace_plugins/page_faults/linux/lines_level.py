"""Whether Python lines can be learned here: samples with their stack, and the memory of the process. Both are tried."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from wstrace.interfaces import Level

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
#: A shell whose child is a process of its own, and another that is not ours, as its parent ends at once. The second
#: one sleeps: it ends by itself if nobody can end it.
_SHELLS = 'sh -c "sleep 20 >/dev/null & echo \\$!"; read line'
_REMEDY = "sudo sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"


def lines_level(native: Level) -> Level:
    """`learned`, with why only launched commands have lines; else none and why.

    Args:
        native: the level of stacks=native, which the lines are learned from.
    """
    if native.name != "sampled":
        return native
    import subprocess

    try:
        child = subprocess.Popen(["/bin/sh", "-c", _SHELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        return Level("none", f"no process could be started to try to read its memory ({error.strerror})")
    with child:
        assert child.stdout is not None
        other = int(child.stdout.readline() or 0)
        try:
            own, foreign = refusal(child.pid), refusal(other)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if other:
                    os.kill(other, signal.SIGTERM)
    if own:
        return Level("none", f"the memory of a process of one's own may not be read ({own})", _REMEDY)
    if foreign:
        return Level("learned", f"of launched commands only: the memory of others may not be read ({foreign})", _REMEDY)
    return Level("learned", native.why, native.remedy)


def refusal(pid: int) -> str:
    """Why the memory of a process may not be read; "" = it may be."""
    try:
        os.close(_os.open(f"/proc/{pid}/mem", os.O_RDONLY | _os.O_CLOEXEC))
    except OSError as error:
        return str(error.strerror)
    return ""
