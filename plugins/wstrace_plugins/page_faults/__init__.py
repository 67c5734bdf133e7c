"""Page faults: who brought which page into memory, by which instruction and thread, minor or major.

`wstrace_plugins.os.backend("wstrace_plugins.page_faults").PageFaults` is the source of the running system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wstrace.errors import Unavailable, UsageError
from wstrace.hookspecs import Reference, hookimpl
from wstrace.text import nearest


@hookimpl
def wstrace_sources() -> Sequence[Reference]:
    """The source `page_faults`; on a system without capture, the Linux one, which says so at its start."""
    from wstrace_plugins.os import system

    try:
        name = system()
    except Unavailable:
        name = "linux"
    return [Reference("page_faults", f"{__name__}.{name}.backend:PageFaults", default=True)]


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """The ledger stages for events that the kernel takes off a program that gains privilege by exec."""
    return {
        "lost_privileged": (True, "faults of programs that gained privilege by exec, at most so many"),
        "skipped_side_band": (True, "mapping and process records left out: more came than the tracer can take"),
        "before_armed": (True, "faults of a cgroup made during the trace, before it was traced"),
        "missed_cgroups": (True, "cgroups that had gone before they could be traced: how many faults is not known"),
    }


_ALONE = ("auto", "none")
_JOINED = ("python", "native")


class Stacks(NamedTuple):
    """Which stacks are wanted.

    python: the Python frames, read at each fault by an eBPF program. native: the stack of sampled faults, unwound.
    required: a kind that cannot be had is an error, and native stacks are those of CPythons, too; without it (`auto`)
    what cannot be had is left out.
    """

    python: bool = False
    native: bool = False
    required: bool = True


def parse_stacks(text: str) -> Stacks:
    """The stacks that `python` and `native`, joined by `+`, or `auto` or `none` alone, ask for.

    Raises UsageError: another word, or `auto` or `none` beside one.
    """
    words = text.strip().lower().split("+")
    for word in words:
        if word not in _ALONE + _JOINED:
            raise UsageError(f"page_faults: stacks={text}: {word!r} is none", nearest(word, _ALONE + _JOINED))
    if len(words) > 1 and (alone := next((word for word in words if word in _ALONE), None)):
        raise UsageError(f"page_faults: stacks={text}: {alone!r} stands alone", f"write stacks={alone}")
    if words == ["auto"]:
        return Stacks(python=True, native=True, required=False)
    return Stacks("python" in words, "native" in words)
