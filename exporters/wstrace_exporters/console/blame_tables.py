"""What the tables of `imports`, `unshared`, `diff` and `--over-time` share: names, and the lines above them."""

from __future__ import annotations

from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.words import completeness
from wstrace.terminal.table import Styled

TITLES = {"line": "own line", "function": "function", "package": "package", "file": "file of the page",
           "kind": "kind of memory", "process": "process", "cgroup": "control group", "thread": "thread"}  # fmt: skip


def known(told: Blame, more: str = "", *, pages: bool = True) -> list[Styled]:
    """The lines below the first one: how complete it is, and what the records lack, with what lifts that."""
    return [Styled(line, "dim") for line in (completeness(told, pages=pages) + more, *told.of.info.obstacles)]
