"""Which stacks faults can have here: each way is tried, not guessed."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from wstrace.errors import Unavailable
from wstrace.interfaces import Level
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.events import Settings
from wstrace_plugins.page_faults.linux.levels import own_level
from wstrace_plugins.page_faults.linux.rings import STACKS
from wstrace_plugins.page_faults.linux.stack_event import StackRate


def stack_levels() -> Mapping[str, Level]:
    """What the option `stacks` can give a fault here, each tried."""
    from wstrace_plugins.page_faults.linux.python_stacks.kernel import tried

    return {"stacks=python": tried(), "stacks=native": native_level()}


def native_level() -> Level:
    """`sampled` where an event with registers and stack opens on the calling process, else none and why."""
    own = own_level()
    if own.name not in ("full", "user"):
        return Level("none", own.why, own.remedy)
    settings = Settings(kernel=own.name == "full", stacks=StackRate(1))
    try:
        os.close(perf.perf_event_open(settings.attributes(STACKS, lost=False)[0], 0, -1))
    except Unavailable as absent:
        return Level("none", absent.why, absent.remedy)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            return Level("none", f"this kernel gives faults no registers and stack ({error.strerror})")
        refused = perf.refusal(error)
        return Level("none", refused.why, refused.remedy)
    return Level("sampled", own.why, own.remedy)
