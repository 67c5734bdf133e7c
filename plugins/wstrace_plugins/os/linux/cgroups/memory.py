"""What a cgroup says of its memory, in v2's words; v1's files are read where memory has a v1 hierarchy.

Source: Linux Documentation/admin-guide/cgroup-v2.rst ("Memory Interface Files"), cgroup-v1/memory.rst;
accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wstrace.errors import TargetExited, Unavailable

#: From here on, a limit of v1 is none: the largest number of pages of a counter, in bytes (PAGE_COUNTER_MAX).
_V1_NO_LIMIT = 1 << 62
#: v1's words for sums over a cgroup and all below it (`total_` before them) where v2 has others for the same.
_V1_STAT = {
    "cache": "file",
    "rss": "anon",
    "rss_huge": "anon_thp",
    "mapped_file": "file_mapped",
    "dirty": "file_dirty",
    "writeback": "file_writeback",
}


@dataclass(frozen=True, slots=True)
class Pressure:
    """What waiting for memory costs (PSI): the share of time in percent over 10, 60 and 300 s, and the total in us."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """A cgroup's memory at one time, all below it included; None = this system does not tell it, or has no limit.

    current, max, high, peak, swap: bytes. stat: v2's names -> bytes, or counts (pgfault, pgmajfault). events: how often
    `high`, `max`, `oom` and `oom_kill` happened. some, full: the pressure on some of its tasks, or on all at once.
    """

    current: int
    max: int | None
    high: int | None
    peak: int | None
    swap: int | None
    stat: Mapping[str, int]
    events: Mapping[str, int]
    some: Pressure | None
    full: Pressure | None


class MemoryFiles:
    """The files of a cgroup's memory. Each method reads one; none is held open.

    Args:
        folder: the cgroup's folder in the hierarchy of memory.
        unified: whether that is the v2 hierarchy.
        pressure: its folder in the v2 hierarchy, where pressure is told; None = there is none.
        path: the cgroup's path, for errors.
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
        return self._limit("memory.max" if self.unified else "memory.limit_in_bytes")

    def high(self) -> int | None:
        """The limit in bytes at which processes are slowed down; None = none of its own, or v1, which has no such."""
        return self._limit("memory.high") if self.unified else None

    def peak(self) -> int | None:
        """The most bytes that were in use; None before Linux 5.19."""
        return self._optional("memory.peak" if self.unified else "memory.max_usage_in_bytes")

    def swap(self) -> int | None:
        """Bytes that are swapped out; None where swap is not accounted."""
        if self.unified:
            return self._optional("memory.swap.current")
        both = self._optional("memory.memsw.usage_in_bytes")
        return None if both is None else max(both - self.current(), 0)

    def stat(self) -> Mapping[str, int]:
        """memory.stat by v2's names, of the cgroup and all below it: bytes, and counts as pgfault and pgmajfault."""
        read = _numbers(self._read("memory.stat"))
        if self.unified:
            return read
        totals = {name.removeprefix("total_"): n for name, n in read.items() if name.startswith("total_")}
        return {_V1_STAT.get(name, name): n for name, n in totals.items()}

    def events(self) -> Mapping[str, int]:
        """How often, since it was made: v2 low, high, max, oom, oom_kill ...; v1 max and (Linux 4.13) oom_kill."""
        if self.unified:
            return _numbers(self._read("memory.events"))
        control = _numbers(self._read("memory.oom_control"))
        killed = {"oom_kill": control["oom_kill"]} if "oom_kill" in control else {}
        return {"max": int(self._read("memory.failcnt")), **killed}

    def pressure(self) -> tuple[Pressure, Pressure] | None:
        """(some, full); None where the kernel does not tell it: v1, CONFIG_PSI missing, psi=0, cgroup.pressure = 0."""
        if (file := self.pressure_file) is None:
            return None
        try:
            lines = [line.split() for line in file.read_text("ascii").splitlines()]
        except OSError:
            return None
        told = {line[0]: dict(word.split("=") for word in line[1:]) for line in lines if line}
        if "some" not in told or "full" not in told:
            return None
        some, full = (_pressure(told[kind]) for kind in ("some", "full"))
        return some, full

    def figures(self) -> MemoryFigures:
        """All of them. Raises TargetExited when the cgroup has gone, Unavailable where one may not be read."""
        some, full = self.pressure() or (None, None)
        return MemoryFigures(
            self.current(), self.max(), self.high(), self.peak(), self.swap(), self.stat(), self.events(), some, full
        )

    def _limit(self, name: str) -> int | None:
        text = self._read(name).strip()
        return None if text == "max" or int(text) >= _V1_NO_LIMIT else int(text)

    def _optional(self, name: str) -> int | None:
        try:
            return int((self.folder / name).read_text("ascii"))
        except OSError:
            return None

    def _read(self, name: str) -> str:
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
    return {name: int(number) for name, number in (line.split(" ") for line in text.splitlines())}


def _pressure(words: Mapping[str, str]) -> Pressure:
    return Pressure(float(words["avg10"]), float(words["avg60"]), float(words["avg300"]), int(words["total"]))
