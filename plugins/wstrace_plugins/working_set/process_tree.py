"""Trees of processes with their memory, each with its own figures and three sums; and SnapshotSource, the base of the
sources that read the pages of such trees.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level, Source
from wstrace.schema import ADDRESS_SPACE, RESIDENT_PAGES, Schema
from wstrace.text import base_name
from wstrace_plugins.working_set.backend import backend

if TYPE_CHECKING:
    from wstrace_plugins.working_set.working_set import WorkingSet


class Process(NamedTuple):
    """A process of a tree; sizes in bytes, None where they may not be read.

    depth: 0 of a root. title: what it calls itself or was started as. pss: its private pages and its part of those that
    it shares. large: large pages (hugetlb), which are in no other figure.
    """

    pid: int
    ppid: int
    depth: int
    user: str
    name: str
    title: str
    resident: int
    private: int | None
    shared: int | None
    pss: int | None
    large: int | None


class Sums(NamedTuple):
    """The memory of several processes, in bytes.

    rss_sum: the sum of what is resident in each, where a shared page counts once for each that has it. pss: the sum of
    the proportional shares: a page that others have too counts for its part. distinct: every page once; None where the
    system does not say, with the reason in why. refused: processes whose pss may not be read, which it leaves out.
    """

    processes: int
    rss_sum: int
    pss: int | None
    distinct: int | None
    why: str = ""
    refused: int = 0


def traced(context: Context, backend: Any) -> list[int]:
    """The pids of what a session traces now, each once: its targets, what is in its groups, and what these started.

    Without any it is the calling process.

    A process whose parent has ended descends from no target any more, as of a shell's `program &` or of a service that
    daemonizes: a source that records births tells of these.
    """
    if not context.live:
        return [os.getpid()]
    pids = context.processes()
    if context.children:
        parents = dict(context.progress.parents)  # a copy, as the source's thread changes it
        pids += [pid for pid, parent in parents.items() if parent not in parents]
        pids += [child for pid in dict.fromkeys(pids) for child in backend.descendants(pid)]
    return list(dict.fromkeys(pids))


def title(name: str, arguments: Sequence[str]) -> str:
    """What a process is, in words: the title that it gave itself, else its program with its arguments."""
    words = [word for word in arguments if word]
    if not words:
        return name
    if " " in words[0] and not words[0].startswith(("/", "\\")):  # `postgres: checkpointer`, set by the process itself
        return " ".join(words).strip()
    script = [base_name(word) if word.startswith("/") else word for word in words[1:2]]  # of an interpreter
    return " ".join((base_name(words[0]), *script, *words[2:]))


def processes(system: Any, roots: Sequence[int] = ()) -> Iterator[Process]:
    """The processes below these roots and the roots themselves, each before its children; no roots: all.

    One that ends meanwhile is left out.
    """
    listed = {one[0]: one for one in system.listed()}
    children: dict[int, list[int]] = {}
    for pid in sorted(listed):
        children.setdefault(listed[pid][1], []).append(pid)
    wanted = set(roots) & set(listed) if roots else {
        pid for pid, parent, *_ in listed.values() if parent not in listed or parent == pid
    }  # fmt: skip
    waiting = [(pid, 0) for pid in sorted(wanted, reverse=True)]
    seen: set[int] = set()
    while waiting:
        pid, depth = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        waiting += [(child, depth + 1) for child in reversed(children.get(pid, ()))]
        _, parent, name, user, resident = listed[pid]
        try:
            private, large, pss, then = system.accounted(pid)
        except TargetExited:
            continue
        resident = resident if then is None else then
        private = None if private is None else min(private, resident)  # may not be read at the same moment
        shared = None if private is None else resident - private
        yield Process(pid, parent, depth, user or "-", name, title(name, system.arguments(pid)), resident, private,
                      shared, pss, large)  # fmt: skip


def sums(system: Any, found: Sequence[Process]) -> Sums:
    """The three sums of these processes."""
    known = [process.pss for process in found if process.pss is not None]
    distinct, why = None, ""
    try:
        distinct = system.distinct([process.pid for process in found])
    except Unavailable as refused:
        why = str(refused)
    return Sums(len(found), sum(process.resident for process in found), sum(known) if known else None, distinct, why,
                len(found) - len(known))  # fmt: skip


class SnapshotSource(Source):
    """A source of snapshots."""

    streams: ClassVar[tuple[Schema, ...]] = (RESIDENT_PAGES, ADDRESS_SPACE)
    _context: Context
    _backend: Any

    def __init__(self) -> None:
        self._number, self._cpu_seconds = 0, 0.0  # snapshots so far, and what they took
        self._refused: dict[int, str] = {}  # why, of processes that may not be read

    @classmethod
    def probe(cls) -> Level:
        """The level that this machine gives, tried on the calling process."""
        level: Level = backend().probe()
        return level

    def start(self, context: Context) -> None:
        """Checks that the targets can be read."""
        self._context, self._backend = context, backend()
        for target in context.targets:
            with self._backend.Space(target.pid):
                pass

    def _snapshots(self, pids: Iterable[int], **options: Any) -> Iterator[WorkingSet]:
        """Yields a snapshot of each process that can be read."""
        from wstrace_plugins.working_set.working_set import working_set  # not loaded for a command that ends at once

        for pid in pids:
            try:
                taken = working_set(pid, strings=self._context.strings, **options)
            except Unavailable as error:  # TargetExited: the ordinary end of a process
                if type(error) is Unavailable:
                    self._refused[pid] = error.why
                continue
            self._number += 1
            self._cpu_seconds += taken.cost_seconds
            yield taken
