"""Control groups of this machine that a test makes, moves processes into and removes again, with all below them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class MadeCgroup:
    """A cgroup that a test has made, in the hierarchy of perf events and, where it is another one, in memory's."""

    def __init__(self, path: str, folder: Path, memory: Path | None) -> None:
        self.path, self.folder, self.memory = path, folder, memory

    @property
    def id(self) -> int:
        return self.folder.stat().st_ino

    def take(self, pid: int) -> None:
        """Moves a process into it."""
        for folder in {self.folder, self.memory} - {None}:
            (folder / "cgroup.procs").write_text(str(pid))

    def joining(self) -> list[str]:
        """The beginning of a command that joins it before it executes what follows."""
        files = " ".join(f"{folder}/cgroup.procs" for folder in {self.folder, self.memory} - {None})
        return ["sh", "-c", f'for f in {files}; do echo $$ > "$f"; done; exec "$@"', "sh"]

    def limit(self, n_bytes: int) -> None:
        """Its processes may have that much memory, and no swap; skips the test where none can be limited."""
        folder = self.memory or self.folder
        with contextlib.suppress(OSError):
            (folder.parent / "cgroup.subtree_control").write_text("+memory")
        limits = [folder / name for name in ("memory.max", "memory.limit_in_bytes") if (folder / name).exists()]
        if not limits:
            pytest.skip("no cgroup here has a limit of memory")
        limits[0].write_text(str(n_bytes))
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")

    def make(self, name: str) -> "MadeCgroup":
        """A new one below it."""
        made = self.at(name)
        for folder in {made.folder, made.memory} - {None}:
            folder.mkdir()
        return made

    def at(self, name: str) -> "MadeCgroup":
        """That of this name below it."""
        return MadeCgroup(
            f"{self.path}/{name}", self.folder / name, None if self.memory is None else self.memory / name
        )

    def remove(self) -> None:
        """Ends its processes, and removes it and all below it."""
        folders = [folder for folder in (self.folder, self.memory) if folder is not None]
        for top in folders:
            for folder in [*reversed([one for one in top.rglob("*") if one.is_dir()]), top]:
                _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while folder.is_dir():
        try:
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            folder.rmdir()
        except OSError:  # it holds processes that are just ending
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def made_cgroup(name: str = "") -> Iterator[MadeCgroup]:
    """A new cgroup below the root; skips the test where none can be made."""
    from wstrace.errors import Unavailable
    from wstrace_plugins.os.linux.cgroups.mounts import hierarchy_of

    path = f"/wstrace-{os.getpid()}{name}"
    try:
        events = hierarchy_of("perf_event")
        folder = Path(f"{events.folder}{path}")
        folder.mkdir()
    except (Unavailable, OSError) as refused:
        pytest.skip(f"no cgroup can be made here: {refused}")
    memory = None
    with contextlib.suppress(Unavailable, OSError):
        if (other := hierarchy_of("memory")) != events:
            memory = Path(f"{other.folder}{path}")
            memory.mkdir()
    made = MadeCgroup(path, folder, memory)
    try:
        yield made
    finally:
        made.remove()
