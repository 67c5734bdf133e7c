"""The option `stacks=` of page_faults: which stacks a fault is to carry."""

from __future__ import annotations

from typing import NamedTuple

from wstrace.errors import UsageError
from wstrace.text import nearest

_ALONE = ("auto", "none")
_JOINED = ("python", "native")


class Stacks(NamedTuple):
    """Which stacks are wanted.

    python: the Python frames, read at each fault by an eBPF program. native: the stack of sampled faults, unwound.
    required: a kind that cannot be had is an error; without it (`auto`) it is left out, and said so.
    """

    python: bool = False
    native: bool = False
    required: bool = True


def parse_stacks(text: str) -> Stacks:
    """The stacks that `python` and `native`, joined by `+`, or `auto` or `none` alone, ask for.

    Raises:
        UsageError: another word, or `auto` or `none` beside one.
    """
    words = text.strip().lower().split("+")
    for word in words:
        if word not in _ALONE + _JOINED:
            raise UsageError(f"page_faults: stacks={text}: {word!r} is none", nearest(word, _ALONE + _JOINED))
    if len(words) > 1 and (alone := next((word for word in words if word in _ALONE), None)):
        raise UsageError(f"page_faults: stacks={text}: {alone!r} stands alone", f"write stacks={alone}")
    if words == ["auto"]:
        return Stacks(python=True, required=False)
    return Stacks("python" in words, "native" in words)
