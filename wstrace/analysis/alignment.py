"""Which names of two runs are of the same thing: files of another release or environment, lines that have moved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")

_ABI = re.compile(r"\.(?:(?:cpython|pypy|cp|graalpy)-?\d[\w-]*|abi3)(?=\.(?:so|pyd)$)")
#: what packagers of wheels put into the names of libraries that they bring along
_HASH = re.compile(r"-[0-9a-f]{8,64}(?=[.-])")
_NUMBERS = re.compile(r"[-_.]?\d+(?:[._]\d+)*t?")
#: Lines of one function that are compared; of a function with more, those that hold the most.
_LINES = 64


def unversioned(name: str) -> str:
    """A name without its version, ABI and build: that of `libssl.so.1.1` is that of `libssl.so.3`."""
    return _NUMBERS.sub("", _HASH.sub("", _ABI.sub("", name)))


def paired(
    first: Sequence[T], second: Sequence[T], names: Sequence[Callable[[T], Hashable]]
) -> list[tuple[T | None, T | None]]:
    """Pairs of what is the same in both, and what only one of them has, beside None.

    first, second: what the two runs have. names: what two things have in common that are the same, the surest first. A
    thing is paired by the first name which it alone has in its run, and one alone in the other run.
    """
    pairs: list[tuple[T | None, T | None]] = []
    left, right = list(first), list(second)
    for name in names:
        one, other = _alone(left, name), _alone(right, name)
        found = [(one[key], other[key]) for key in one if key in other]
        pairs += [(left[a], right[b]) for a, b in found]
        gone = {a for a, _ in found}, {b for _, b in found}
        left = [thing for at, thing in enumerate(left) if at not in gone[0]]
        right = [thing for at, thing in enumerate(right) if at not in gone[1]]
    return [*pairs, *((thing, None) for thing in left), *((None, thing) for thing in right)]


def _alone(things: Sequence[T], name: Callable[[T], Hashable]) -> dict[Hashable, int]:
    """Name -> the position of the thing that alone has it."""
    keys = [name(thing) for thing in things]
    several = Counter(keys)
    return {key: at for at, key in enumerate(keys) if several[key] == 1}


def shift_between(first: Sequence[int], second: Sequence[int]) -> int | None:
    """By how many lines a function has moved; None where its lines do not tell.

    first, second: lines of the function that hold memory in either run, those that hold the most first.
    """
    one, other = set(first[:_LINES]), set(second[:_LINES])
    fits = Counter(b - a for a in one for b in other)
    if fits[0] == min(len(one), len(other)):
        return 0
    (best, n), *rest = [*fits.most_common(2), (0, 0)]
    return best if n > rest[0][1] else None
