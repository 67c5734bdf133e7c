"""The daemon: traces the page faults of a whole node for as long as the machine runs. The command `daemon`.

Its parts, each of which imports only those before it:

* settings: what the file `--config` says. limits: what the daemon may take of the CPU.
* linux.health: the HTTP server for the daemon's state. linux.backend: one session after another, within the limits.
* command: the word of the command line, and the rights it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

from wstrace.hookspecs import hookimpl

#: the ledger's stage for the time between two sessions
BETWEEN = "between_sessions"


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """The ledger's stage for what no session of the daemon records."""
    return {BETWEEN: (True, "faults of the whole node that were only counted, between two sessions of the daemon")}
