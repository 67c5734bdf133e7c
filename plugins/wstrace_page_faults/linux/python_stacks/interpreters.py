"""Which CPython a process runs, or a command will run: from the ELF files that it maps, or that it names."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from wstrace_os.linux import procfs
from wstrace_os.linux.cpython.elf import ElfFile, Python, python_in
from wstrace_os.linux.mapped import is_mapped, open_mapped

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
#: how the programs and libraries of a CPython are named; others are looked into if they are a process's program
_NAMED = re.compile(r"(lib)?python(\d(\.\d+)?)?[a-z]*(-\w+)?(\.so.*|\.exe)?|pypy.*|uwsgi.*|.*python.*")
_LIBRARY = re.compile(r"libpython\d\.\d+.*\.so.*")
#: what a program imports that can start another one
_STARTING = re.compile(rb"_*(f?exec(l|le|lp|v|ve|vp|vpe|veat)|posix_spawnp?|v?fork|forkpty|popen|system)")
_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/lib",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
_MOST_FILES, _MOST_STEPS = 4096, 4
_SHEBANG_BYTES = 4096
_HEADS = struct.Struct("<QQq")  # struct pyinterpreters: head, main, next_id, which is 0 or -1 before the first one


class Found(NamedTuple):
    """A CPython in a process: which one, and where its _PyRuntime stands.

    program: device and inode of its file as stat(2) has them, if that is the process's program itself.
    """

    python: Python
    at: int
    program: tuple[int, int] | None


class Command(NamedTuple):
    """What a command will do: the CPython that it runs, None = none; whether it may start other programs.

    program: device and inode of the program's file, if the CPython is in that itself.
    """

    python: Python | None
    starts: bool
    program: tuple[int, int] | None = None


class Looked(NamedTuple):
    """What was seen in a mapped file: the CPython that it has, whether it needs a libpython; its device and inode."""

    python: Python | None
    needs: bool
    file: tuple[int, int]


class Interpreters:
    """The ELF files that were looked into, by device, inode and time of change."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, ...], tuple[Python | None, bool]] = {}

    # -- a process -------------------------------------------------------------------------------------------------

    def of_process(self, pid: int) -> tuple[Found | None, bool]:
        """(the CPython that the process has mapped, whether it will map one: its program needs a libpython).

        Raises:
            Unavailable: it has ended, or belongs to someone else.
        """
        maps = procfs.read_maps(pid)
        columns, names = maps.columns, maps.files
        program = _program(pid)
        coming = program not in names  # it is about to be executed
        seen: set[str] = set()
        for row in range(len(columns["start"])):
            name = names[columns["file"][row]]
            if name in seen or columns["offset"][row] or not columns["ino"][row]:
                continue
            if name != program and not is_named(name):
                continue
            seen.add(name)
            begin, end, dev, ino = (int(columns[key][row]) for key in ("start", "end", "dev", "ino"))
            looked = self.of_mapped(pid, name, (dev, ino), (begin, end))
            if looked is None:
                continue
            python, needs, file = looked
            coming = coming or needs
            if python is not None:
                at = python.runtime + (begin - python.first) * python.movable
                return Found(python, at, file if name == program else None), False
        return None, coming

    def of_mapped(
        self, pid: int, name: str, identity: tuple[int, int], span: tuple[int, int] = (0, 0)
    ) -> Looked | None:
        """What a file is that a process has mapped; the process may have ended.

        Args:
            pid: the process.
            name: the name that the file has for it.
            identity: its device and inode, as the kernel gives them for mappings.
            span: begin and end of a mapping of it, where known.

        Returns:
            None where the name does not lead to that file any more.
        """
        fd = open_mapped(pid, name, lambda fd: is_mapped(fd, *identity), span)
        if fd < 0:
            return None
        try:
            status = os.fstat(fd)
            return Looked(*self.of_file(fd), (status.st_dev, status.st_ino))
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def of_file(self, fd: int) -> tuple[Python | None, bool]:
        """(the CPython that an open file defines, whether it needs a libpython)."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None, False
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if key not in self._files:
            if len(self._files) >= _MOST_FILES:
                self._files.clear()
            python, needs = None, False
            with contextlib.suppress(OSError, ValueError, IndexError):
                python = python_in(fd)
                needs = python is None and any(_LIBRARY.fullmatch(name) for name in ElfFile(fd).libraries()[0])
            self._files[key] = (python, needs)
        return self._files[key]

    # -- a command -------------------------------------------------------------------------------------------------

    def of_command(self, path: str, environment: Mapping[str, str]) -> Command:
        """What a program, or the interpreter that a script names, will do: that of its `#!` line, and so on."""
        for _ in range(_MOST_STEPS):
            try:
                fd = os.open(path, os.O_RDONLY | _os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                return Command(None, True)
            try:
                begin = os.read(fd, _SHEBANG_BYTES)
                if not begin.startswith(b"#!"):
                    python, needs = self.of_file(fd)
                    status = os.fstat(fd)
                    program = (status.st_dev, status.st_ino) if python is not None else None
                    if needs:
                        python = self._library(fd, path, environment)
                    return Command(python, starts_others(fd), program)
            except OSError:
                return Command(None, True)
            finally:
                os.close(fd)
            path = _named_by(begin, environment)
        return Command(None, True)

    def _library(self, fd: int, path: str, environment: Mapping[str, str]) -> Python | None:
        """The CPython in the libpython that a program needs, searched where ld.so does."""
        try:
            needed, folders = ElfFile(fd).libraries()
        except (OSError, ValueError, IndexError):
            return None
        origin = str(PurePosixPath(os.path.realpath(path)).parent)
        folders = [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders]
        folders += environment.get("LD_LIBRARY_PATH", "").split(":")
        for name in needed:
            if not _LIBRARY.fullmatch(name):
                continue
            for folder in (*folders, *_FOLDERS):
                try:
                    library = os.open(os.path.join(folder, name), os.O_RDONLY | _os.O_CLOEXEC)
                except OSError:
                    continue
                try:
                    return self.of_file(library)[0]
                finally:
                    os.close(library)
        return None


def is_named(name: str) -> bool:
    """Whether a file's name is that of a CPython's program or library."""
    return _NAMED.fullmatch(name.rpartition("/")[2]) is not None


def starts_others(fd: int) -> bool:
    """Whether the program in an open file can start another one by itself, by what it imports from the C library.

    A program without imports (a static one, a Go program) calls the kernel itself, and may do so.
    """
    try:
        imports = ElfFile(fd).imports()
    except (OSError, ValueError, IndexError):
        return True
    return not imports or any(map(_STARTING.fullmatch, imports))


def is_library(name: str) -> bool:
    """Whether a file's name is that of a CPython's library."""
    return _LIBRARY.fullmatch(name.rpartition("/")[2]) is not None


def _program(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""


def _named_by(begin: bytes, environment: Mapping[str, str]) -> str:
    """The program that a `#!` line names; that of `env` is searched in PATH. "" if it names none."""
    words = os.fsdecode(begin.partition(b"\n")[0][2:]).split()
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        import shutil

        return shutil.which(words[0], path=environment.get("PATH")) or "" if words else ""
    return words[0] if words else ""


def is_unborn(pid: int, interpreters: int) -> bool:
    """Whether no interpreter was ever made in a process, where that can be read.

    Args:
        pid: the process.
        interpreters: the address of _PyRuntime.interpreters.head.
    """
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | _os.O_CLOEXEC)
    except OSError:
        return False
    try:
        raw: bytes = _os.pread(fd, _HEADS.size, interpreters)
    except (OSError, OverflowError):
        return False
    finally:
        os.close(fd)
    if len(raw) != _HEADS.size:
        return False
    head, _, next_id = _HEADS.unpack(raw)
    return bool(head == 0 and next_id <= 0)


def command_of(pid: int) -> tuple[str, dict[str, str]]:
    """The program that a launched process, which waits before its execve(), will execute, and its environment.

    The waiting program has the path in its own command line's place (see wstrace_os.linux.launcher).
    """
    try:
        path = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0])
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return "", {}
    pairs = (entry.partition(b"=") for entry in environment if entry)
    return path, {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
