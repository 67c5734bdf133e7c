"""The daemon: traces the page faults of a whole node for as long as the machine runs. The command `daemon`.

Its parts, each of which imports only those before it:

* settings: what the file `--config` says.
* limits: what the daemon may take of CPU and memory, and a source that keeps to it.
* health: the HTTP server for the daemon's state; state: that state.
* daemon: the sessions and the signals. command: the word of the command line, and the rights that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

from wstrace.hookspecs import hookimpl

#: the ledger's stages for records that the daemon itself drops, and for the time between two sessions
OVER_MEMORY, BETWEEN = "over_memory", "between_sessions"


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """The ledger's stages for what the daemon leaves out."""
    return {
        OVER_MEMORY: (True, "records dropped: the daemon had reached its max_memory"),
        BETWEEN: (True, "faults of the whole node while the daemon began another session, none of them recorded"),
    }
