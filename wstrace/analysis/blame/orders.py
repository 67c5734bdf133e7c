"""What the rows of blame are by and in order of, apart from what computes them: help texts need no numpy."""

from __future__ import annotations

VIEWS = ("line", "function", "file", "package", "kind", "process", "cgroup", "thread")
SORTS = ("resident", "private", "shared", "pss", "brought", "written", "from_disk", "faults", "again", "major", "time")
