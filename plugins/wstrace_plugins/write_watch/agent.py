"""wstrace.agent(): a process lets a tracer outside of it see which pages it writes."""

from __future__ import annotations

from wstrace_plugins.write_watch.backend import Agent, backend


def agent(path: str | None = None) -> Agent:
    """Starts a thread that passes a write watch of this process to a tracer of the same user.

    `wstrace attach PID -s write_watch` finds it by the process's id. It needs no privilege on either side.

    Args:
        path: the Unix socket (mode 0600); None = wstrace/PID.sock in the user's runtime folder.

    Raises:
        Unavailable: this system cannot pass a watch to another process, or the socket cannot be made.
    """
    return backend().start_agent(path)
