"""Trees of processes with their memory: each with its own figures, and three sums that answer three questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.text import base_name
from wstrace_plugins.working_set.backend import Backend


@dataclass(frozen=True, slots=True)
class Process:
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


class Held(NamedTuple):
    """What sums() asks of a process; sizes in bytes."""

    pid: int
    resident: int
    pss: int | None


@dataclass(frozen=True, slots=True)
class Sums:
    """The memory of several processes, in bytes.

    rss_sum: the sum of what is resident in each, where a shared page counts once for each that has it. pss: the sum of
    the proportional shares: a page that others have too counts for its part. distinct: every page once; None where the
    system does not tell, with the reason in why. refused: processes whose pss may not be read, which it leaves out.
    """

    processes: int
    rss_sum: int
    pss: int | None
    distinct: int | None
    why: str = ""
    refused: int = 0


def traced(context: Context, backend: Backend) -> list[int]:
    """The pids of what a session traces now, each once: its targets, what is in its groups, and what these started.

    A process whose parent has ended descends from no target any more, as of a shell's `program &` or of a service that
    daemonizes: a source that records births tells of these.
    """
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
    return " ".join((base_name(words[0]), *words[1:]))


def processes(system: Backend, roots: Iterable[int] = ()) -> Iterator[Process]:
    """The processes below these roots and the roots themselves, each before its children; no roots: all.

    One that ends meanwhile is left out.
    """
    parents, listed = system.parents(), {row[0]: row for row in system.listed()}
    children: dict[int, list[int]] = {}
    for pid in sorted(listed):
        children.setdefault(parents.get(pid, 0), []).append(pid)
    wanted = set(roots)
    first = wanted & set(listed) if wanted else {pid for pid in listed if parents.get(pid, 0) not in {*listed} - {pid}}
    open_ = [(pid, 0) for pid in sorted(first, reverse=True)]
    seen: set[int] = set()
    while open_:
        pid, depth = open_.pop()
        if pid in seen:
            continue
        seen.add(pid)
        open_ += [(child, depth + 1) for child in reversed(children.get(pid, ())) if child != pid]
        _, name, user, resident = listed[pid]
        told = system.accounted(pid)
        if told.ended:
            continue
        if told.resident is not None:
            resident = told.resident
        private = None if told.private is None else min(told.private, resident)  # may not be read at the same moment
        shared = None if private is None else resident - private
        yield Process(pid, parents.get(pid, 0), depth, user or "-", name, title(name, system.arguments(pid)), resident,
                      private, shared, told.pss, told.large)  # fmt: skip


def resident_bytes(system: Backend, pid: int) -> int:
    """The resident bytes of a process; 0 if it has ended or may not be looked at."""
    try:
        with system.Space(pid) as space:
            return space.totals().total or 0
    except Unavailable:
        return 0


def sums(system: Backend, found: Sequence[Process | Held], *, distinct: bool = True) -> Sums:
    """The three sums of these processes."""
    known = [process.pss for process in found if process.pss is not None]
    pages, why = None, ""
    if distinct:
        try:
            pages = system.distinct([process.pid for process in found])
        except Unavailable as refused:
            why = str(refused)
    return Sums(len(found), sum(process.resident for process in found), sum(known) if known else None, pages, why,
                len(found) - len(known))  # fmt: skip
