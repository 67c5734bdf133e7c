"""What the side band knows of a traced process that has not ended."""

from __future__ import annotations

from collections.abc import Iterable

from wstrace.errors import Unavailable
from wstrace.schema import KIND_ANON, KIND_FILE
from wstrace_plugins.os.linux import procfs

_HEAP_WITHIN = 1 << 30  # arch_randomize_brk(): up to 32 MiB above the image on x86-64, 1 GiB on arm64


class Live:
    """A process: its parent, name (code) and threads, where its program's image ends, and whether that image is mapped
    completely.

    Attributes:
        bare: whether the last record about the process was its exec.
        title: that it gave itself since it executed its program, as it was told last.
    """

    __slots__ = ("bare", "image", "image_end", "loaded", "name", "ppid", "threads", "title")

    def __init__(
        self, ppid: int, name: int, threads: set[int], image: int = 0, image_end: int = 0, loaded: bool = False
    ) -> None:
        self.ppid, self.name, self.threads = ppid, name, threads
        self.image, self.image_end, self.loaded = image, image_end, loaded
        self.bare, self.title = False, b""

    def maps_heap(self, start: int, end: int, code: int, kind: int) -> bool:
        """Notes a mapping, and says whether it is the heap although the kernel reports it as //anon.

        At the heap's first growth, brk() sets mm->brk only after calling perf (mm/mmap.c, 6.x).

        Without address randomization the heap begins where .bss ends; execve() maps .bss itself, before the interpreter
        and the vdso (load_elf_binary()).

        Args:
            start, end: its addresses.
            code: the code of its name.
            kind: KIND_*.
        """
        if kind == KIND_FILE:
            if not self.image_end or code == self.image:
                self.image, self.image_end = code, max(self.image_end, end)
            else:
                self.loaded = True
        elif kind == KIND_ANON:
            if start == self.image_end and not self.loaded:
                self.image_end = end  # .bss
            else:
                return bool(self.image_end) and 0 <= start - self.image_end <= _HEAP_WITHIN
        return False


class LiveProcesses(dict[int, Live]):
    """The traced processes that have not ended, by pid.

    Attributes:
        came: those that were added since whoever looks at new ones has cleared it: of thousands few are new.
    """

    def __init__(self) -> None:
        super().__init__()
        self.came: list[int] = []

    def __setitem__(self, pid: int, live: Live) -> None:
        self.came.append(pid)
        super().__setitem__(pid, live)

    def setdefault(self, pid: int, live: Live) -> Live:
        """The process of that pid, else the given one, which is one more."""
        if pid not in self:
            self[pid] = live
        return self[pid]


def ended(live: Iterable[int]) -> list[int]:
    """Those processes that have ended; after an exec that gains privilege the kernel does not report the end."""
    found = []
    for pid in live:
        try:
            gone = procfs.stat(pid).gone
        except Unavailable:
            gone = True
        if gone:
            found.append(pid)
    return found
