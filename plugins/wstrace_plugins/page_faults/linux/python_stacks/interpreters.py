"""Which CPython a process runs, or a command will run: from the ELF files that it maps, or that it names."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.schema import (
    ADDRESS_SPACE,
    HOW_BEFORE_PYTHON,
    HOW_NOT_PYTHON,
    HOW_UNKNOWN,
    MAP_EXECUTE,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_FORK,
)
from wstrace_plugins.os.elf import Elf, read_of
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.cpython.elf import Python, python_in
from wstrace_plugins.os.linux.named_file import is_mapped, open_mapped, open_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
#: Names are compared without an expression where that does: compiling one takes 0.1 ms of each start.
_LIBRARY, _LIBRARY_BEGIN = r"libpython\d\.\d+.*\.so.*", "libpython"
#: what a program imports that can start another one, without the `_` that it may begin with
_STARTING = frozenset(
    b"execl execle execlp execv execve execvp execvpe execveat fexecve posix_spawn posix_spawnp fork vfork forkpty "
    b"popen system".split()
)
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
#: what is between blanks and what has a meaning for a shell
_WORD = r"[^\s;&|()<>'\"`$=]+"
_SHEBANG_BYTES = 4096


class File(NamedTuple):
    """What a file is known by, as stat(2) has it: nothing is written to it that leaves its time of change."""

    device: int
    inode: int
    changed_ns: int


class Files(NamedTuple):
    """Where a CPython is: in the program itself (libpython None), or in a library that the program needs."""

    program: File
    libpython: File | None


class Found(NamedTuple):
    """A CPython in a process: which one, and where its _PyRuntime stands.

    files: None where it is in a library that the program does not need by itself.
    """

    python: Python
    at: int
    files: Files | None


class Command(NamedTuple):
    """What a command will do: the CPython that it runs, None = none; whether it may start other programs.

    files: where the CPython is.
    """

    python: Python | None
    starts: bool
    files: Files | None = None


class Looked(NamedTuple):
    """What was seen in a file: the CPython that it has, whether it needs a libpython; which file it is."""

    python: Python | None
    needs: bool
    file: File


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
        program = program_of(pid)
        coming = program not in names  # it is about to be executed
        seen: set[str] = set()
        needing: File | None = None
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
            if needs and name == program:
                needing = file
            if python is not None:
                at = python.runtime + (begin - python.first) * python.movable
                files = Files(file, None) if name == program else Files(needing, file) if needing else None
                return Found(python, at, files), False
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
        fd = open_mapped(pid, name, identity[1], lambda fd: is_mapped(fd, *identity), span)
        if fd < 0:
            return None
        try:
            return Looked(*self.of_file(fd), _file(fd))
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def of_file(self, fd: int) -> tuple[Python | None, bool]:
        """(the CPython that an open file defines, whether it needs a libpython)."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if key not in self._files:
            if len(self._files) >= _MOST_FILES:
                self._files.clear()
            python, needs = None, False
            with contextlib.suppress(ValueError):
                python = python_in(fd)
                needs = python is None and any(map(_is_libpython, Elf(read_of(fd)).libraries()[0]))
            self._files[key] = (python, needs)
        return self._files[key]

    # -- a command -------------------------------------------------------------------------------------------------

    def of_command(self, path: str, environment: Mapping[str, str], root: str = "") -> Command:
        """What a program, or the interpreter that a script names, will do: that of its `#!` line, and so on.

        root: the folder that is `/` for the path; "" = ours.
        """
        for _ in range(_MOST_STEPS):
            try:
                fd = open_named(path, root)
            except (OSError, ValueError):
                return Command(None, True)
            try:
                begin = os.read(fd, _SHEBANG_BYTES)
                if not begin.startswith(b"#!"):
                    python, needs = self.of_file(fd)
                    files = Files(_file(fd), None) if python is not None else None
                    if needs and (library := self._library(fd, path, environment, root)) is not None:
                        python, files = library.python, Files(_file(fd), library.file)
                    return Command(python, starts_others(fd), files)
            except OSError:
                return Command(None, True)
            finally:
                os.close(fd)
            path = _named_by(begin, environment)
        return Command(None, True)

    def _library(self, fd: int, path: str, environment: Mapping[str, str], root: str) -> Looked | None:
        """What is in the libpython that a program needs, searched where ld.so does."""
        try:
            needed, folders = Elf(read_of(fd)).libraries()
        except ValueError:
            return None
        origin = os.path.dirname(path if root else os.path.realpath(path))
        folders = [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders]
        folders += environment.get("LD_LIBRARY_PATH", "").split(":")
        for name in needed:
            if not _is_libpython(name):
                continue
            for folder in (*folders, *_FOLDERS):
                try:
                    library = open_named(os.path.join(folder, name), root)
                except (OSError, ValueError):
                    continue
                try:
                    return Looked(*self.of_file(library), _file(library))
                finally:
                    os.close(library)
        return None


def _file(fd: int) -> File:
    status = os.fstat(fd)
    return File(status.st_dev, status.st_ino, status.st_ctime_ns)


def is_named(name: str) -> bool:
    """Whether a file is named as the programs and libraries of a CPython are.

    Others are looked into if they are a process's program.
    """
    base = name.rpartition("/")[2]
    return "python" in base or base.startswith(("pypy", "uwsgi"))


def starts_others(fd: int) -> bool:
    """Whether the program in an open file can start another one by itself, by what it imports from the C library.

    A program without imports (a static one, a Go program) calls the kernel itself, and may do so.
    """
    try:
        imports = Elf(read_of(fd)).imports()
    except ValueError:
        return True
    return not imports or any(name.lstrip(b"_") in _STARTING for name in imports)


@functools.lru_cache(_MOST_FILES)
def is_library(name: str) -> bool:
    """Whether a file's name is that of a CPython's library."""
    return _is_libpython(name.rpartition("/")[2])


def _is_libpython(base: str) -> bool:
    return base.startswith(_LIBRARY_BEGIN) and re.fullmatch(_LIBRARY, base) is not None


def program_of(pid: int) -> str:
    """The path of the program that the process executes, as that process has it; "" = it has ended, or is another's."""
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def _named_by(begin: bytes, environment: Mapping[str, str]) -> str:
    """The program that a `#!` line names; that of `env` is searched in PATH. "" if it names none."""
    words = os.fsdecode(begin.partition(b"\n")[0][2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        import shutil

        return shutil.which(words[0], path=environment.get("PATH")) or "" if words else ""
    return words[0] if words else ""


def command_of(pid: int) -> tuple[Sequence[str], dict[str, str]]:
    """What a launched process, which waits before its execve(), will execute: {path, words}, and its environment.

    The waiting program has the path in its own command line's place (see wstrace_plugins.os.linux.launcher).
    """
    try:
        command = procfs.content(f"/proc/{pid}/cmdline", procfs.COMMAND_BYTES).split(b"\0")
        environment = procfs.content(f"/proc/{pid}/environ", procfs.ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return ("",), {}
    pairs = (entry.partition(b"=") for entry in environment if entry)
    return [*map(os.fsdecode, command)], {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def named_in(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[str, Sequence[str]]]:
    """What words of a command may name a CPython, as those of `sh -c "python3 x.py"`: its root, "" = ours, and paths.

    A folder among the words before it may be its root (`chroot FOLDER /usr/bin/python3`).
    """
    folders, roots = environment.get("PATH", os.defpath).split(":"), [""]
    for name in (part for word in words for part in re.findall(_WORD, word)):
        if is_named(name):
            paths = [name] if "/" in name else [os.path.join(folder, name) for folder in folders if folder]
            yield from ((root, paths) for root in roots if not root or paths[0].startswith("/"))
        if name.startswith("/"):
            roots.append(name)


_MOST_PROCESSES, _MOST_PROGRAMS, _MOST_MAPPED_FILES = 1 << 14, 64, 1 << 14
_COLUMNS = ("pid", "time_ns", "file", "dev", "ino")


class _Program:
    """A program in execution: shared by the processes that are forked from the one that executed it.

    known: its file was looked into. python: it is a CPython, or needs one. mapped: when it mapped one; None = not yet.
    files: what it mapped that is a CPython; None of one that could not be looked into.
    """

    __slots__ = ("files", "known", "mapped", "python", "started")

    def __init__(self, *, known: bool = False) -> None:
        self.started, self.known, self.python = known, known, False
        self.mapped: int | None = None
        self.files: set[File | None] = set()


class _Since(NamedTuple):
    """From that time on a process executes a program."""

    time_ns: int
    program: _Program


class History:
    """The programs of all processes, by time.

    Args:
        strings: the dictionary of the names of mapped files.
        interpreters: the files that were looked into.
    """

    def __init__(self, strings: Dictionary, interpreters: Interpreters) -> None:
        self._strings, self._interpreters = strings, interpreters
        self._programs: dict[int, list[_Since]] = {}
        #: name, device and inode of a file -> what was seen in it; None = it could not be looked into
        self._files: dict[tuple[int, int, int], Looked | None] = {}
        #: whether a process has executed or mapped a CPython, or what is named like one
        self.met = False
        #: whether a process was started, or executed a further program
        self.others = False

    def begin(self, pid: int) -> None:
        """A process that runs no CPython, as somebody has seen: up to now, or to its next exec."""
        self._programs[pid] = [_Since(0, _Program(known=True))]

    def saw(self, batch: Batch) -> None:
        """Learns from what happened to processes and their mappings, in order of time."""
        if batch.schema is PROCESS:
            self._processes(batch)
        elif batch.schema is ADDRESS_SPACE:
            code = (batch["flags"] & MAP_EXECUTE) != 0
            for row in zip(*(batch[name][code].tolist() for name in _COLUMNS), strict=True):
                self._mapped(*row)

    def _processes(self, batch: Batch) -> None:
        rows = (batch["pid"] == batch["tid"]) & np.isin(batch["event"], (PROCESS_EXEC, PROCESS_FORK))
        columns = (batch[name][rows].tolist() for name in ("event", "pid", "ppid", "time_ns"))
        for event, pid, ppid, time_ns in zip(*columns, strict=True):
            if len(self._programs) >= _MOST_PROCESSES:
                self._programs.clear()
            if event == PROCESS_FORK:
                of_parent = self._programs.get(ppid)
                self._programs[pid] = [_Since(time_ns, of_parent[-1].program)] if of_parent else []
                self.others = True
                continue
            programs = self._programs.setdefault(pid, [])
            self.others |= not programs or programs[-1].time_ns > 0
            programs.append(_Since(time_ns, _Program()))
            del programs[:-_MOST_PROGRAMS]

    def _mapped(self, pid: int, time_ns: int, file: int, dev: int, ino: int) -> None:
        """A process has mapped code of a file."""
        program = next((p for since, p in reversed(self._programs.get(pid, ())) if since <= time_ns), None)
        first = program is not None and not program.started
        named = is_named(self._strings[file])
        if not ino or not (first or named):
            return
        looked = self._look(pid, file, dev, ino)
        python = None if looked is None else looked.python is not None or looked.needs
        self.met |= named if python is None else python
        if program is None:
            return
        if first:
            program.started, program.known, program.python = True, python is not None, bool(python)
        if python is not False and program.mapped is None:
            program.mapped = time_ns
        if looked is None or looked.python is not None:
            program.files.add(looked and looked.file)

    def _look(self, pid: int, file: int, dev: int, ino: int) -> Looked | None:
        """What the mapped file is; None where its name leads to it no more."""
        key = (file, dev, ino)
        if key not in self._files:
            if len(self._files) >= _MOST_MAPPED_FILES:
                self._files.clear()
            self._files[key] = self._interpreters.of_mapped(pid, self._strings[file], (dev, ino))
        return self._files[key]

    def began(self, pid: int, time_ns: int) -> int:
        """When the process had executed what it was running at that time; 0 where that is not known."""
        return next((since for since, _ in reversed(self._programs.get(pid, ())) if since <= time_ns), 0)

    def how(
        self,
        pid: int,
        times: NDArray[Any],
        waiting: NDArray[Any] | None = None,
        libraries: Set[File | None] = frozenset(),
    ) -> NDArray[Any]:
        """Why faults of a process at those times have no Python frame, where that is proven; else HOW_UNKNOWN.

        waiting: of which faults it had not executed any of these libraries.
        """
        programs = self._programs.get(pid, [])
        how = np.full(len(times), HOW_UNKNOWN, "|u1")
        begins = np.array([since.time_ns for since in programs], "<u8")
        if len(begins) and len(times) and times.min() >= begins[-1]:  # as nearly always: no search
            which = np.full(len(times), len(begins))
        else:
            which = begins.searchsorted(times, side="right")
        for i, (_, program) in enumerate(programs, 1):
            if program.mapped is not None:
                how[(which == i) & (times < program.mapped)] = HOW_BEFORE_PYTHON
            elif program.known and not program.python:
                how[which == i] = HOW_NOT_PYTHON
            if waiting is not None and program.python and program.files <= libraries:
                how[(which == i) & waiting] = HOW_BEFORE_PYTHON
        return how
