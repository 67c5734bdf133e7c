"""What a cgroup says of its memory, in v2's words; v1's files are read where memory has a v1 hierarchy.

Source: Linux Documentation/admin-guide/cgroup-v2.rst ("Memory Interface Files"), cgroup-v1/memory.rst;
accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wstrace.errors import TargetExited, Unavailable

#: From here on, a limit of v1 is none: the largest number of pages of a counter, in bytes (PAGE_COUNTER_MAX).
_V1_NO_LIMIT = 1 << 62


class MemoryFiles:
    """The files of a cgroup's memory. Each method reads one; none is held open.

    folder: the cgroup's folder in the hierarchy of memory. unified: whether that is the v2 hierarchy. pressure: its
    folder in the v2 hierarchy, where pressure is counted; None = there is none. path: the cgroup's path, for errors.
    """

    def __init__(self, folder: Path, unified: bool, pressure: Path | None, path: str) -> None:
        self.folder, self.unified, self._pressure, self._path = folder, unified, pressure, path

    @property
    def id(self) -> int:
        """The inode of its folder. Raises TargetExited."""
        try:
            return self.folder.stat().st_ino
        except OSError:
            raise TargetExited(f"the cgroup {self._path} has been removed") from None

    @property
    def pressure_file(self) -> Path | None:
        """What takes a trigger (psi.rst: write `some 150000 1000000`, poll POLLPRI); None = there is none."""
        return None if self._pressure is None else self._pressure / "memory.pressure"

    def current(self) -> int:
        """Bytes in use, page cache included."""
        return int(self._read("memory.current" if self.unified else "memory.usage_in_bytes"))

    def max(self) -> int | None:
        """The limit in bytes at which processes are killed; None = none of its own."""
        text = self._read("memory.max" if self.unified else "memory.limit_in_bytes").strip()
        return None if text == "max" or int(text) >= _V1_NO_LIMIT else int(text)

    def stat(self) -> Mapping[str, int]:
        """memory.stat of the cgroup and all below it: bytes, and counts as pgfault and pgmajfault."""
        read = _numbers(self._read("memory.stat"))
        if self.unified:
            return read
        return {name.removeprefix("total_"): n for name, n in read.items() if name.startswith("total_")}

    def events(self) -> Mapping[str, int]:
        """How often, since it was made: v2 low, high, max, oom, oom_kill ...; v1 max and (Linux 4.13) oom_kill."""
        if self.unified:
            return _numbers(self._read("memory.events"))
        control = _numbers(self._read("memory.oom_control"))
        killed = {"oom_kill": control["oom_kill"]} if "oom_kill" in control else {}
        return {"max": int(self._read("memory.failcnt")), **killed}

    def _read(self, name: str) -> str:
        """The text of one of its files. Raises TargetExited, Unavailable."""
        try:
            return (self.folder / name).read_text("ascii")
        except OSError as error:
            if not self.folder.is_dir():
                raise TargetExited(f"the cgroup {self._path} has been removed") from None
            if isinstance(error, FileNotFoundError):
                raise Unavailable(
                    f"the cgroup {self._path} has no {name}: it is the root, or memory is not accounted for it",
                    f"enable it: echo +memory > {self.folder.parent}/cgroup.subtree_control",
                ) from None
            raise Unavailable(f"cannot read {self.folder / name}: {error.strerror}", "run wstrace as root") from None


def _numbers(text: str) -> dict[str, int]:
    """The numbers of a file of lines `name number`."""
    return {name: int(number) for name, number in (line.split(" ") for line in text.splitlines())}
