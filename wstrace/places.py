"""The questions and answers of a Resolver: MappedFile, Part, Place, SourceLine."""

from __future__ import annotations

from typing import NamedTuple

from wstrace.schema import OFFSET_UNKNOWN

#: mappings that no file backs, but whose functions the running system may know: the kernel's, from the lowest of its
#: addresses on, and those of the image that it maps into each process
OWN_KERNEL = ("[kernel]", "[vdso]")


class MappedFile(NamedTuple):
    """A file that a process had mapped, and what distinguishes it from another file under its name.

    path: as the process names it.
    pid: the process whose root the path refers to (/proc/PID/root); 0 = ours.
    build_id: in hexadecimal; a file on disk with another build-id is not used. "" = not known.
    dev, ino: its device and inode, 0 = not known; without a build-id, another file under its name is not used.
    as_of_ns: the wall time at which a recorded trace ended; without a build-id, a file that was changed later is not
        used. 0 = not known, or the trace is live.
    boot_id: of one of OWN_KERNEL, whose path is its name: the boot that it is of; "" = this one.
    """

    path: str
    pid: int = 0
    build_id: str = ""
    dev: int = 0
    ino: int = 0
    as_of_ns: int = 0
    boot_id: str = ""


class Part(NamedTuple):
    """A named part of a file (a section, a tensor): from byte `start` up to, not including, `end`."""

    name: str
    start: int
    end: int


class SourceLine(NamedTuple):
    """A line of source code: the function, the path of its file as the compiler was given it, and the line from 1."""

    function: str
    file: str
    line: int


class Place(NamedTuple):
    """Where an address lies in an image.

    module is the file's base name. section and number (1-based) are the image section, "" and 0 outside of all
    sections. function is the demangled symbol, with displacement bytes into it. address is the image's own (link-time)
    address, as addr2line takes it. why says, in words that follow the file's name, why there is no section or readable
    function: "cannot be read"; "" if there is. lines are its source lines where Resolver.lines() was called:
    of the innermost inlined function first, () = not known.
    """

    module: str
    section: str = ""
    number: int = 0
    function: str = ""
    displacement: int = 0
    address: int = 0
    why: str = ""
    lines: tuple[SourceLine, ...] = ()

    def __str__(self) -> str:
        """`module!section(n)` in an image; `module+0xaddress` outside of any section.

        `module` alone where the offset into the file is not known.
        """
        if self.number:
            return f"{self.module}!{self.section}({self.number})"
        return self.module if self.address >= OFFSET_UNKNOWN else f"{self.module}+{self.address:#x}"

    @property
    def symbol(self) -> str:
        """`module!function+0x1a`, or the same as str() where no symbol covers the address."""
        return f"{self.module}!{self.function}+{self.displacement:#x}" if self.function else str(self)
