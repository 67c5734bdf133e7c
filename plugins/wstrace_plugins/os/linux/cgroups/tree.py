"""The control groups of this machine: found by path, container, unit or process; what lies below each.

A cgroup is named by its path below the mount and by its id, which is the inode of its folder and what perf's records
carry (PERF_SAMPLE_CGROUP, PERF_RECORD_CGROUP: cgroup_id() in kernel/cgroup/cgroup.c). An id is not used again while the
machine runs; a path may be, by the next container of that name.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from wstrace import cgroup_names as names
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace_plugins.os.linux.cgroups.memory import MemoryFiles
from wstrace_plugins.os.linux.cgroups.mounts import Hierarchy, hierarchy_of, path_of

#: The fewest digits of a container's id that are taken: `docker ps` shows 12, and 4 are soon another one's.
LEAST_DIGITS = 8
_PREFIX = re.compile(rf"[0-9a-f]{{{LEAST_DIGITS},64}}")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group.

    path: below the mount, beginning with `/`; the root is `/`. id: its inode. folder: where it is seen here.
    """

    path: str
    id: int
    folder: Path

    def holds(self, other: Cgroup) -> bool:
        """Whether the other one is this one or lies below it: then its processes are counted in this one, too."""
        return f"{other.path}/".startswith(f"{self.path.rstrip('/')}/")

    def exists(self) -> bool:
        """Whether it is still there: this one, not another of the same path."""
        try:
            return self.folder.stat().st_ino == self.id
        except OSError:
            return False

    def open(self) -> int:
        """A descriptor of its folder, as PERF_FLAG_PID_CGROUP takes it.

        Raises TargetExited: it has been removed. Unavailable: its folder may not be opened.
        """
        try:
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(self.path, error) from None
        if os.fstat(fd).st_ino != self.id:
            os.close(fd)
            raise TargetExited(f"the cgroup {self.path} has been removed; another one has its name by now")
        return fd

    def processes(self) -> list[int]:
        """The pids of its processes and of those below it, each once; those that this pid namespace lacks are left out.

        Raises TargetExited: it has been removed. Unavailable: it may not be read.
        """
        found: dict[int, None] = {}
        for folder, _ in _walk(self.folder, self.path):
            try:
                found.update(dict.fromkeys(map(int, (folder / "cgroup.procs").read_bytes().split())))
            except OSError as error:
                # A threaded cgroup lists no processes: the one above it does. One below may go away meanwhile.
                if error.errno != errno.EOPNOTSUPP and folder == self.folder:
                    raise _refused(self.path, error) from None
        return [pid for pid in found if pid]


class Cgroups:
    """The cgroups by which perf events go, and their memory, which on a hybrid system is another hierarchy's.

    events: the hierarchy of perf_event. memory: that of memory; an error says why there is none. proc: where processes
    are described.
    """

    def __init__(self, events: Hierarchy, memory: Hierarchy | Unavailable, proc: Path = Path("/proc")) -> None:
        self._events, self._memory, self._proc = events, memory, proc

    @classmethod
    def mounted(cls) -> Cgroups:
        """Those of this machine. Raises Unavailable where they are not mounted or not for perf events."""
        events = hierarchy_of("perf_event")
        try:
            return cls(events, hierarchy_of("memory"))
        except Unavailable as absent:
            return cls(events, absent)

    @property
    def folder(self) -> Path:
        """The folder of the root cgroup of the hierarchy that perf events go by."""
        return self._events.folder

    def at(self, path: str) -> Cgroup:
        """The cgroup of this path below the mount, or of the path of its folder.

        Raises TargetExited: there is none. Unavailable: it is in another hierarchy only, or may not be read.
        """
        below = self.below(path)
        folder = self.folder / below.lstrip("/")
        try:
            found = folder.lstat()
            if found.st_dev != self.folder.stat().st_dev or not stat.S_ISDIR(found.st_mode):
                raise FileNotFoundError(errno.ENOENT, "no cgroup")
        except OSError as error:
            raise _refused(below, error) from None
        return Cgroup(below, found.st_ino, folder)

    def all(self) -> Iterator[Cgroup]:
        """Every cgroup that is there now, parents before children, the root first."""
        for folder, path in _walk(self.folder, "/"):
            try:
                yield Cgroup(path, folder.stat().st_ino, folder)
            except OSError:  # it has just gone
                continue

    def matching(self, pattern: str) -> list[Cgroup]:
        """The cgroup of this path, else those whose path matches a glob: `*` within a name, `**` over any depth.

        Raises TargetExited: there is none.
        """
        if not glob.has_magic(pattern) or self._is_there(pattern):
            return [self.at(pattern)]
        return self.taken(self.taken_by(pattern), f"no cgroup below {self.folder} matches {pattern}")

    def taken(self, takes: Callable[[str], bool], why: str, remedy: str = "") -> list[Cgroup]:
        """Those whose path is taken. Raises TargetExited, with these words, where there is none."""
        found = [one for one in self.all() if takes(one.path)]
        if not found:
            raise TargetExited(why, remedy)
        return found

    def taken_by(self, pattern: str) -> Callable[[str], bool]:
        """Whether a path or glob chooses a cgroup by its path, also one that is made later. Raises UsageError."""
        below = self.below(pattern)
        if not glob.has_magic(pattern) or self._is_there(pattern):  # a name may have brackets
            return lambda path: path == below
        return lambda path: path == below or matches(path, below)

    def container(self, prefix: str) -> Cgroup:
        """The cgroup of the container whose id begins so. Raises UsageError, TargetExited."""
        wanted = prefix.lower()
        if not _PREFIX.fullmatch(wanted):
            raise UsageError(
                f"{prefix!r} is not the id of a container",
                f"give at least {LEAST_DIGITS} of its hex digits, as docker ps, crictl ps or podman ps shows them",
            )
        found: dict[str, Cgroup] = {}
        for one in self.all():
            container = names.own_container_id(one.path)
            if container.startswith(wanted):
                found.setdefault(container, one)  # parents come first: the container's own, not one made inside it
        if len(found) > 1:
            ids = ", ".join(sorted(container[:16] for container in found))
            raise UsageError(f"{len(found)} containers have ids that begin with {prefix}: {ids}", "give more digits")
        if not found:
            raise TargetExited(
                f"no cgroup is that of a container {prefix}",
                "is it running? docker ps, crictl ps or podman ps lists them",
            )
        return next(iter(found.values()))

    def memory(self, cgroup: Cgroup) -> MemoryFiles:
        """The files that tell of a cgroup's memory.

        In a hierarchy of its own, memory is that of the same path.
        Raises Unavailable: there is none.
        """
        if isinstance(self._memory, Unavailable):
            raise self._memory
        below = cgroup.path.lstrip("/")
        folder = self._memory.folder / below
        if self._memory != self._events and not folder.is_dir():
            raise Unavailable(f"the cgroup {cgroup.path} has no memory cgroup of its name ({self._memory.folder})")
        pressure = self._events.folder / below if self._events.unified else None
        return MemoryFiles(folder, self._memory.unified, pressure, cgroup.path)

    def memory_of_process(self, pid: int) -> tuple[Cgroup, MemoryFiles]:
        """The cgroup that a process's memory is accounted to, in the hierarchy of memory, and what tells of it.

        Raises TargetExited: there is no such process. Unavailable: there is no such hierarchy.
        """
        if isinstance(self._memory, Unavailable):
            raise self._memory
        path = path_of(pid, "" if self._memory.unified else "memory", self._proc)
        if path is None:
            raise TargetExited(f"there is no process {pid}, or its cgroup is not seen here")
        folder = self._memory.folder / path.lstrip("/")
        try:
            cgroup = Cgroup(path, folder.stat().st_ino, folder)
        except OSError as error:
            raise _refused(path, error) from None
        return cgroup, self.memory(cgroup)

    def below(self, path: str) -> str:
        """A path below the mount, of that or of the path of a folder. Raises UsageError."""
        mount = str(self.folder)
        parts = [part for part in f"{path}/".removeprefix(f"{mount}/").split("/") if part not in ("", ".")]
        if not path or ".." in parts or "\0" in path:  # an unset variable does not mean all of the machine
            raise UsageError(f"{path!r} is not the path of a cgroup", f"give one below {mount}, without ..; / is all")
        return "/" + "/".join(parts)

    def _is_there(self, path: str) -> bool:
        return (self.folder / self.below(path).lstrip("/")).is_dir()


def matches(path: str, pattern: str) -> bool:
    """Whether a cgroup's path is that of a glob: `*`, `?` and `[...]` within a name, `**` for names at any depth."""
    return _match(path.split("/")[1:], pattern.split("/")[1:])


def _match(names_of: list[str], pattern: list[str]) -> bool:
    """Whether the names of a path match those of a glob."""
    if not pattern:
        return not names_of
    if pattern[0] == "**":
        return any(_match(names_of[i:], pattern[1:]) for i in range(len(names_of) + 1))
    return bool(names_of) and fnmatchcase(names_of[0], pattern[0]) and _match(names_of[1:], pattern[1:])


def unit_name(name: str) -> str:
    """A unit's name with its kind, which is `.service` where none is given."""
    return name if name.endswith(names.UNITS) else f"{name}.service"


def topmost(cgroups: Iterable[Cgroup]) -> list[Cgroup]:
    """Those of them that lie below no other of them: together they hold the same processes, each once."""
    kept: list[Cgroup] = []
    for one in sorted({one.path: one for one in cgroups}.values(), key=lambda one: one.path.count("/")):
        if not any(other.holds(one) for other in kept):
            kept.append(one)
    return kept


def _walk(folder: Path, path: str) -> Iterator[tuple[Path, str]]:
    """A cgroup's folder and those of all below it, with their paths, parents first; links are not followed."""
    waiting = [(folder, path)]
    for folder, path in waiting:
        yield folder, path
        try:
            with os.scandir(folder) as entries:
                names_below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:  # it has just gone; or it may not be read
            continue
        waiting += [(folder / name, f"{path.rstrip('/')}/{name}") for name in names_below]


def _refused(path: str, error: OSError) -> Unavailable:
    """The error for a cgroup that cannot be read."""
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
        return TargetExited(f"there is no cgroup {path}", "all are shown by: systemd-cgls, or ls /sys/fs/cgroup")
    return Unavailable(f"the cgroup {path} cannot be read: {error.strerror}", "run wstrace as root")
