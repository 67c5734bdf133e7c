"""How values stand in the page: names that are safe and short, and arrays of numbers as base64 text."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.text import number, printable

#: The longest name of a page, in characters; the middle of a longer one is left out.
NAME_LIMIT = 200


def name(text: str) -> str:
    """A name from outside: without control characters, bounded."""
    return printable(text, NAME_LIMIT)


def array(values: NDArray[Any]) -> str:
    """Numbers in base64, little-endian in the width of the array; the page reads them with the same width."""
    return base64.b64encode(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).tobytes()).decode()


def varints(values: NDArray[Any]) -> str:
    """Numbers from 0 on in base64, each of as many bytes as it needs: 7 bits a byte, the lowest first (LEB128)."""
    rest = values.astype(np.uint64)
    if not len(rest):
        return ""
    low, columns, more = np.uint64(127), [], []
    while True:
        columns.append((rest & low).astype(np.uint8))
        rest = rest >> np.uint64(7)
        more.append(rest > 0)
        if not more[-1].any():
            break
    there = np.stack([np.ones(len(values), np.bool_), *more[:-1]], axis=1)
    octets = np.stack(columns, axis=1) | (np.stack(more, axis=1).astype(np.uint8) << np.uint8(7))
    return base64.b64encode(octets[there].tobytes()).decode()


def others(n: int) -> str:
    """The label of what is not told one by one."""
    return f"({number(n)} others)"
