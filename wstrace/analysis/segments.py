"""Segments: neighbouring rows that are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row differs from the one before it in any of these columns of shape (n,); the first row does."""
    new = np.ones(len(columns[0]), np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new
