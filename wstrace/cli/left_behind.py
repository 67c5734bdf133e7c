"""What `run` says of traced processes that go on when its command has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstrace.errors import WstraceError
from wstrace.text import base_name, number, printable

if TYPE_CHECKING:
    from wstrace.interfaces import Platform
    from wstrace.trace_info import TraceInfo

#: The name under which TraceInfo.extra has the pids of traced processes that had not ended when a source stopped.
WENT_ON = "went_on"
#: As many are named.
_NAMED = 3


def left_behind(info: TraceInfo, platform: Platform) -> str:
    """Names those processes that still run, with what traces them; "" where all have ended.

    A source tells of a process that ends a little after the command, as a helper does that waits for its end. So they
    are asked once more, when all records are written.

    Args:
        info: of the trace that has ended. platform: opens the processes.
    """
    running = []
    pids = info.extra.get(WENT_ON)
    for pid in pids if isinstance(pids, list) else ():
        try:
            target = platform.attach(pid)
        except WstraceError:  # it has ended, or this process may open no more: then it is not worth a word
            continue
        running.append((printable(base_name(target.name)), pid))
        target.close()
    if not running:
        return ""
    names = [f"{name} ({pid})" for name, pid in running[:_NAMED]]
    names += [f"{number(len(running) - _NAMED)} more"] if len(running) > _NAMED else []
    who = f"{', '.join(names[:-1])} and {names[-1]} go" if len(names) > 1 else f"{names[0]} goes"
    it, end = ("them", "they end") if len(names) > 1 else ("it", "it ends")
    some = " ".join(str(pid) for _, pid in running[:_NAMED])
    return (
        f"{who} on, no longer traced: `wstrace run --wait-children` traces until {end}, "
        f"`wstrace attach {some}` traces {it} from now on"
    )
