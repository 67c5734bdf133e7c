"""The orders of the rows of blame, apart from what computes them: help texts need no numpy."""

from __future__ import annotations

SORTS = ("resident", "private", "shared", "brought", "written", "from_disk", "faults", "again", "major", "time")
