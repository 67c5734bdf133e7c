"""The CPythons of this machine whose stacks are read: by label, where they are."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
