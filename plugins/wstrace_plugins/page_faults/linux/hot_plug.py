"""Processors that come and go during a trace: events are opened on those that were online when it began."""

from __future__ import annotations

import time
from collections.abc import Iterable

from wstrace_plugins.page_faults.linux import perf_event as perf

_APART_SECONDS = 1.0


class Processors:
    """The CPUs that a trace has events on, and those on which it lacks them.

    An event of a thread serves again when its CPU comes back. One of all processes of a CPU does not: the kernel takes
    it off when the CPU goes (perf_event_exit_cpu_context() in kernel/events/core.c, Linux 6.18).

    Args:
        traced: the CPUs that events were opened on.
        everywhere: whether they are those of CPUs, and not of threads.
    """

    def __init__(self, traced: Iterable[int], *, everywhere: bool) -> None:
        self._traced, self._everywhere = frozenset(traced), everywhere
        self._gone: frozenset[int] = frozenset()
        self._untraced: set[int] = set()
        self._due = 0.0

    def look_if_due(self) -> None:
        """Looks at most once a second which CPUs are online."""
        if time.monotonic() >= self._due:
            self.look()

    def look(self) -> None:
        """Looks which CPUs are online."""
        online = frozenset(perf.online_cpus())
        self._untraced |= online - self._traced
        if self._everywhere:
            self._untraced |= online & self._gone
            self._gone |= self._traced - online
        self._due = time.monotonic() + _APART_SECONDS

    @property
    def untraced(self) -> str:
        """`CPU 3, which came online during the trace`, as words; empty when events were on every CPU."""
        if not self._untraced:
            return ""
        numbers = ", ".join(map(str, sorted(self._untraced)))
        return f"CPU{'s' if len(self._untraced) > 1 else ''} {numbers}, which came online during the trace"
