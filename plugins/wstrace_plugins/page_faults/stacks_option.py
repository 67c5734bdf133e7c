"""The option `stacks=` of page_faults: which stacks a fault is to carry."""

from __future__ import annotations

from typing import NamedTuple

from wstrace.errors import UsageError
from wstrace.text import nearest

_ALONE = ("auto", "none")
_JOINED = ("python", "native", "lines")


class Stacks(NamedTuple):
    """Which stacks were asked for.

    python: the Python frames, read at each fault by an eBPF program. native: the stack of sampled faults, unwound.
    lines: the Python line of sampled faults, learned from their native stacks; it implies native.
    required: a kind that cannot be had is an error; without it (`auto`) it is left out, and said so.
    """

    python: bool = False
    native: bool = False
    lines: bool = False
    required: bool = True


def parse_stacks(text: str) -> Stacks:
    """The stacks that `python`, `native` and `lines`, joined by `+`, or `auto` or `none` alone, ask for.

    Raises:
        UsageError: another word, `auto` or `none` beside one, or two ways to Python lines.
    """
    words = text.strip().lower().split("+")
    for word in words:
        if word not in _ALONE + _JOINED:
            raise UsageError(f"page_faults: stacks={text}: {word!r} is none", nearest(word, _ALONE + _JOINED))
    if len(words) > 1 and (alone := next((word for word in words if word in _ALONE), None)):
        raise UsageError(f"page_faults: stacks={text}: {alone!r} stands alone", f"write stacks={alone}")
    if words == ["auto"]:
        return Stacks(python=True, required=False)
    if {"python", "lines"} <= set(words):
        raise UsageError(
            f"page_faults: stacks={text}: lines stands for python where that is refused",
            "write stacks=python+native, or stacks=lines",
        )
    return Stacks("python" in words, "native" in words or "lines" in words, "lines" in words)
