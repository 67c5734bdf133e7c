"""What the side band knows of a traced process that has not ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from wstrace.schema import KIND_ANON, KIND_FILE

_HEAP_WITHIN = 1 << 30  # arch_randomize_brk(): up to 32 MiB above the image on x86-64, 1 GiB on arm64


@dataclass(slots=True)
class Live:
    """A process: its parent, name (code) and threads, where its program's image ends, and whether that image is mapped
    completely.
    """

    ppid: int
    name: int
    threads: set[int] = field(default_factory=set)
    image: int = 0
    image_end: int = 0
    loaded: bool = False
    #: True when the last record about the process was its exec
    bare: bool = False
    #: The title that it gave itself since it executed its program, as it was told last
    title: bytes = b""

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
