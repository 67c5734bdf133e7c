"""The live screen: who faults and who grows in running processes, now. The command `top`.

`look` sums what is kept of a trace at a moment, by the analysis that reports have, and `live` is the exporter that
takes looks in bounded memory. `screen` makes lines of text of a look and answers keys; `app` draws these lines by
Textual, which nothing else here needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.declarations import Command
from wstrace.hookspecs import hookimpl


@hookimpl
def wstrace_commands() -> Sequence[Command]:
    """The command `top`."""
    about = "Watch whose page faults and whose memory grow, live."
    return [Command("top", about, "wstrace_exporters.live_screen.command:top", "Inspect")]
