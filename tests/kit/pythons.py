"""The CPythons of this machine whose stacks are read: by label, where they are."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wstrace.schema import STACK_HOW

#: other distributions' CPythons, each in a root of its own: see tests/install-pythons
CHROOTS = Path(os.environ.get("WSTRACE_CHROOTS", "/srv/chroots"))


@dataclass(frozen=True)
class Installed:
    """A CPython: its version, program and root ("" = ours)."""

    version: tuple[int, int]
    program: str
    root: str = ""

    def command(self, *arguments: object) -> list[str]:
        """The command that runs it. In a root of its own, paths are as it sees them."""
        words = [self.program, *map(str, arguments)]
        return ["/usr/sbin/chroot", self.root, *words] if self.root else words

    @property
    def label(self) -> str:
        """`pyenv-3.12`, `debian-3.11`, `sid-3.14`."""
        where = Path(self.root).name if self.root else "pyenv" if "/versions/" in self.program else "system"
        return f"{where}-{self.version[0]}.{self.version[1]}"


def installed() -> Sequence[Installed]:
    """Those of 3.11 to 3.15 that are here."""
    found = {}
    roots = [root for root in sorted(CHROOTS.glob("*")) if (root / "usr/bin").is_dir()] if CHROOTS.is_dir() else []
    for minor in range(11, 16):
        for path in sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")):
            if re.fullmatch(r"[\d.]+", path.parents[1].name):
                one = Installed((3, minor), str(path))
                found.setdefault(one.label, one)
        if system := shutil.which(f"python3.{minor}", path="/usr/bin:/usr/local/bin"):
            one = Installed((3, minor), system)
            found.setdefault(one.label, one)
        for root in roots:
            if (root / f"usr/bin/python3.{minor}").exists():
                one = Installed((3, minor), f"/usr/bin/python3.{minor}", str(root))
                found.setdefault(one.label, one)
    return list(found.values())


def named(trace: Any) -> tuple[dict[int, tuple[str, int, str]], Any]:
    """The innermost frame of each stack, and the faults."""
    names = ("id", "function", "line", "file")
    rows = zip(*(trace.column("call_site", name).tolist() for name in names), strict=True)
    strings = trace.context.strings
    sites = {number: (strings[function], line, strings[file]) for number, function, line, file in rows}
    columns = ("time_ns", "pid", "va", "stack", "stack_how")
    return sites, np.rec.fromarrays([trace.column("page_fault", name) for name in columns], names=list(columns))


def judged(trace: Any, regions: Sequence[dict[str, Any]]) -> tuple[int, Counter[Any], Counter[str]]:
    """The pages that have the function and line that touched them, what others have instead of it, and their reasons.

    An address may have been another mapping's before: the last fault of a page is the region's.
    """
    sites, faults = named(trace)
    right, wrong, reasons = 0, Counter(), Counter()
    for region in regions:
        inside = (faults.va >= region["base"]) & (faults.va < region["base"] + region["pages"] * 4096)
        places = [(function, region["line"], region["file"]) for function in region["function"].split("|")]
        for row in {int(row.va) >> 12: row for row in faults[inside & (faults.pid == region["pid"])]}.values():
            how = STACK_HOW[row.stack_how]
            if not row.stack:
                reasons[how] += 1
            elif how == "exact" and sites[int(row.stack)] in places:
                right += 1
            else:
                wrong[region["name"], sites[int(row.stack)], places[0], how] += 1
    return right, wrong, reasons


def frames(trace: Any) -> dict[int, list[tuple[str, int]]]:
    """stack -> (function, flags) of each of its frames, innermost first."""
    found = {0: []}
    names = ("id", "parent", "function", "flags")
    for stack, parent, function, flags in zip(*(trace.column("call_site", one).tolist() for one in names), strict=True):
        found[stack] = [(trace.context.strings[function], flags), *found[parent]]
    return found
