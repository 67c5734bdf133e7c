"""wstrace.agent(): a process lets a tracer outside of it see which pages it writes."""

from __future__ import annotations

from typing import Protocol


class Agent(Protocol):
    """A running agent."""

    path: str

    def close(self) -> None:
        """Stops it and removes its socket; a watch that a tracer has already goes on."""


def agent(path: str | None = None) -> Agent:
    """Starts a thread that passes a write watch of this process to a tracer of the same user.

    `wstrace attach PID -s write_watch` finds it by the process's id. It needs no privilege on either side.

    Args:
        path: the Unix socket (mode 0600); None = wstrace/PID.sock in the user's runtime folder.

    Raises:
        Unavailable: this system cannot pass a watch to another process, or the socket cannot be made.
    """
    from wstrace_write_watch.backend import backend

    return backend().start_agent(path)
