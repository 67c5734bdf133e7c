"""Which CPython a process runs, or a command will run: from the ELF files that it maps, or that it names.

An ELF file has a CPython if it defines the symbols _PyRuntime and Py_Version, which stripped files keep.
Source: Include/patchlevel.h (PY_VERSION_HEX).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.schema import ADDRESS_SPACE, MAP_EXECUTE, PROCESS, PROCESS_EXEC, PROCESS_FORK
from wstrace_plugins.os.elf import EXECUTABLE, MOVABLE, Elf, read_of
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.named_file import is_mapped, open_mapped, open_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.os.linux.cpython.layouts import Layout

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
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
#: places in which a program's libpython is searched; files of a process, beside its program, that are looked into
_MOST_SEARCHED, _MOST_OF_PROCESS = 1000, 32
#: what is between blanks and what has a meaning for a shell
_WORD = r"[^\s;&|()<>'\"`$=]+"
_SHEBANG_BYTES = 4096
_OF_MAPPING = ("start", "end", "dev", "ino", "offset", "file")


#: distances within a larger file may be too long for a constant of an instruction
_MOST_BYTES = 1 << 30


class Python(NamedTuple):
    """A CPython in a file: its layout, or why it cannot be read (`refused`); the link-time address of _PyRuntime.

    movable: the address is relative to where the file's first segment (`first`, its link-time address) is mapped.
    from_begin: where _PyRuntime is from where the begin of the file is mapped, as the mapping of its code tells that.
    static: where what is mapped of the file begins, from _PyRuntime on, and its bytes.
    """

    layout: Layout | None
    refused: str
    runtime: int
    movable: bool
    first: int
    from_begin: int
    static: tuple[int, int]


def python_in(fd: int) -> Python | None:
    """The CPython that an open file defines; None if it defines none.

    Raises ValueError: it is no ELF file, or cannot be read.
    """
    elf = Elf(read_of(fd))
    runtime = elf.symbol(b"_PyRuntime")
    if runtime is None:
        return None
    # Not for every command: to make the class of so many fields takes 2 ms.
    from wstrace_plugins.os.linux.cpython.layouts import DEBUG_OFFSETS_BYTES, READ, NoLayoutError, layout

    version = elf.symbol(b"Py_Version")
    number = int.from_bytes(_data(elf, version[0], 4), "little") if version is not None else 0
    found: Layout | None = None
    refused = ""
    if number:
        try:
            found = layout((number >> 24, number >> 16 & 255), _data(elf, runtime[0], DEBUG_OFFSETS_BYTES))
        except NoLayoutError as why:
            refused = str(why)
    else:
        refused = f"a CPython before 3.11 (it has no Py_Version): {READ}"
    first = next((one.address - one.offset & ~0xFFF for one in elf.loads), 0)
    code, offset = min(((one.address, one.offset) for one in elf.loads if one.flags & EXECUTABLE), default=(0, 0))
    begin = min((one.address for one in elf.loads), default=0)
    size = max((one.address + one.size - begin for one in elf.loads), default=0)
    static = (begin - runtime[0], size) if size < _MOST_BYTES else (0, 0)
    return Python(found, refused, runtime[0], elf.kind == MOVABLE, first, runtime[0] - code + offset, static)


def _data(elf: Elf, address: int, most: int) -> bytes:
    """What stands at an address before the file is run; less where its segment ends."""
    for one in elf.loads:
        if one.address <= address < one.address + one.size:
            return elf.content(elf.offset_of(address), min(most, one.address + one.size - address))
    return b""


class Looked(NamedTuple):
    """What was seen in a file: the CPython that it has, whether it needs a libpython, whether it may start a program.

    file: its bytes and time of change in ns, by which the programs know it: what is written to a file changes that.
    """

    python: Python | None
    needs: bool
    starts: bool
    file: tuple[int, int]


class Interpreters:
    """The ELF files that were looked into, by device, inode and time of change."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, ...], Looked] = {}

    def of_process(self, pid: int) -> tuple[Looked, int] | None:
        """The file with the CPython that the process has mapped, and where its _PyRuntime stands; None = there is none.

        Raises Unavailable: it has ended, or belongs to someone else.
        """
        maps, program = procfs.read_maps(pid), program_of(pid)
        columns = maps.columns
        files: dict[str, tuple[int, ...]] = {}
        for *where, offset, file in zip(*(columns[name].tolist() for name in _OF_MAPPING), strict=True):
            name = maps.files[file]
            if where[3] and not offset and (name == program or is_named(name)):
                files.setdefault(name, tuple(where))
        for name, (begin, end, dev, ino) in itertools.islice(files.items(), _MOST_OF_PROCESS):
            looked = self.of_mapped(pid, name, (dev, ino), (begin, end))
            if looked is not None and (python := looked.python) is not None:
                return looked, python.runtime + (begin - python.first) * python.movable
        return None

    def of_mapped(
        self, pid: int, name: str, identity: tuple[int, int], span: tuple[int, int] = (0, 0)
    ) -> Looked | None:
        """What a file is that a process has mapped; the process may have ended.

        name: the name that the file has for it. identity: its device and inode, as the kernel gives them for mappings.
        span: begin and end of a mapping of it, where known. Returns none where the name does not lead to that file any
        more.
        """
        fd = open_mapped(pid, name, identity[1], lambda fd: is_mapped(fd, *identity), span)
        if fd < 0:
            return None
        try:
            return self.of_file(fd)
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def of_file(self, fd: int) -> Looked:
        """What an open file is."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        if key not in self._files:
            if len(self._files) >= _MOST_FILES:
                self._files.clear()
            python, needs, starts = None, False, True
            with contextlib.suppress(ValueError):
                python = python_in(fd)
                needs = python is None and any(map(_is_libpython, Elf(read_of(fd)).libraries()[0]))
                starts = python is None and (needs or starts_others(fd))
            self._files[key] = Looked(python, needs, starts, (status.st_size, status.st_ctime_ns))
        return self._files[key]

    def of_command(self, path: str, environment: Mapping[str, str], root: str = "") -> Looked | None:
        """The file with the CPython that a command will run, else its program; None = it cannot be looked into.

        A script is what its `#!` line names, and so on. root: the folder that is `/` for the path; "" = ours.
        """
        for _ in range(_MOST_STEPS):
            try:
                fd = open_named(path, root)
            except (OSError, ValueError):
                break
            try:
                begin = os.read(fd, _SHEBANG_BYTES)
                if not begin.startswith(b"#!"):
                    looked = self.of_file(fd)
                    return (self._library(fd, path, environment, root) if looked.needs else None) or looked
            except OSError:
                break
            finally:
                os.close(fd)
            path = _named_by(begin, environment)
        return None

    def _library(self, fd: int, path: str, environment: Mapping[str, str], root: str) -> Looked | None:
        """What is in the libpython that a program needs, searched where ld.so does."""
        try:
            needed, folders = Elf(read_of(fd)).libraries()
        except ValueError:
            return None
        origin = os.path.dirname(path if root else os.path.realpath(path))
        folders = [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders]
        folders += environment.get("LD_LIBRARY_PATH", "").split(":")
        searched = itertools.product(filter(_is_libpython, needed), (*folders, *_FOLDERS))
        for name, folder in itertools.islice(searched, _MOST_SEARCHED):
            try:
                library = open_named(os.path.join(folder, name), root)
            except (OSError, ValueError):
                continue
            try:
                return self.of_file(library)
            finally:
                os.close(library)
        return None


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


def _is_libpython(base: str) -> bool:
    return base.startswith("libpython") and ".so" in base


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
    """The words of a process's command line, and its environment.

    The program that waits before its execve() has the path of what it will execute in place of its own first word (see
    wstrace_plugins.os.linux.launcher).
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
_NEVER = (1 << 64) - 1


class Program:
    """A program in execution, shared by the processes that are forked from the one that executed it.

    since: from when on it may run Python; _NEVER = it does not; 0 = at any time, as its file was not seen yet. known:
    whether the programs in the kernel knew each CPython that it has mapped before it did.
    """

    def __init__(self, since: int = 0) -> None:
        self.since, self.known = since, True


class History:
    """The programs of all processes, by time: what runs no Python, and since when others may.

    strings: the dictionary of the names of mapped files. interpreters: the files that were looked into.
    """

    def __init__(self, strings: Dictionary, interpreters: Interpreters) -> None:
        self._strings, self._interpreters = strings, interpreters
        #: pid -> since when it has executed which program; 0 = before the trace
        self._programs: dict[int, list[tuple[int, Program]]] = {}
        #: name, device and inode of a file -> what was seen in it; None = it could not be looked into
        self._files: dict[tuple[int, int, int], Looked | None] = {}
        self._opened = Counter[int]()  # pid -> the files of it that were looked into
        #: whether a process has mapped a CPython, or what is named like one
        self.met = False
        #: whether a process was started, or executed a further program
        self.others = False
        #: when the programs in the kernel know of a file with a CPython: its first instruction makes it known
        self.reported: dict[tuple[int, int], int] = {}
        #: processes that have mapped a CPython that the programs do not know, since they were last looked at
        self.new: set[int] = set()
        #: why the frames of CPythons that processes have mapped are not read
        self.refusals: set[str] = set()

    def seen(self, pid: int) -> None:
        """A process that was there before its first record runs no CPython up to its next exec."""
        self._programs.setdefault(pid, [(0, Program(_NEVER))])

    def saw(self, batch: Batch) -> None:
        """Learns from what happened to processes and their mappings, in order of time."""
        if batch.schema is PROCESS:
            rows = (batch["pid"] == batch["tid"]) & np.isin(batch["event"], (PROCESS_EXEC, PROCESS_FORK))
            for row in zip(*(batch[name][rows].tolist() for name in ("event", "pid", "ppid", "time_ns")), strict=True):
                self._process(*row)
        elif batch.schema is ADDRESS_SPACE:
            code = (batch["flags"] & MAP_EXECUTE) != 0
            for row in zip(*(batch[name][code].tolist() for name in _COLUMNS), strict=True):
                self._mapped(*row)

    def _process(self, event: int, pid: int, ppid: int, time_ns: int) -> None:
        if len(self._programs) >= _MOST_PROCESSES:
            self._programs.clear()
            self._opened.clear()
        programs = self._programs.setdefault(pid, [])
        if event == PROCESS_FORK:
            programs[:] = [(time_ns, program) for _, program in self._programs.get(ppid, ())[-1:]]
            self.others = True
            return
        self.others |= not programs or programs[-1][0] > 0
        programs.append((time_ns, Program()))
        del programs[:-_MOST_PROGRAMS]

    def _mapped(self, pid: int, time_ns: int, file: int, dev: int, ino: int) -> None:
        """A process has mapped code of a file."""
        program = next((one for began, one in reversed(self._programs.get(pid, ())) if began <= time_ns), None)
        first = program is not None and not program.since
        named = is_named(self._strings[file])
        if not ino or not (first or named):
            return
        key = (file, dev, ino)
        if key not in self._files and (first or self._opened[pid] < _MOST_OF_PROCESS):
            self._opened[pid] += 1
            if len(self._files) >= _MOST_MAPPED_FILES:
                self._files.clear()
            self._files[key] = self._interpreters.of_mapped(pid, self._strings[file], (dev, ino))
        looked = self._files.get(key)
        python = None if looked is None else looked.python
        possible = named if looked is None else python is not None
        self.met |= possible
        known = looked is not None and self.reported.get(looked.file, _NEVER) <= time_ns
        if program is not None and (first or possible):
            program.since = min(program.since or _NEVER, time_ns) if possible else _NEVER
            program.known &= known or not possible
        if python is not None and python.layout is None:
            self.refusals.add(python.refused)
        elif python is not None and not known:
            self.new.add(pid)

    def proven(
        self, pid: int, times: NDArray[Any], unknown: NDArray[np.bool_], unborn: NDArray[Any]
    ) -> NDArray[np.bool_]:
        """At which of these times a process ran no Python for sure.

        times: of faults without a stack, shape (n,). unknown: at which of them the programs did not know the process:
        it had executed no file that they knew. unborn: of those of its faults at which its CPython had no interpreter
        yet: nor had it before.
        """
        programs = self._programs.get(pid, [])
        begins = np.array([began for began, _ in programs], "<u8")
        which, which_unborn = (begins.searchsorted(at, side="right") for at in (times, unborn))
        found = np.zeros(len(times), bool)
        for i, (_, program) in enumerate(programs, 1):
            since = max(program.since, int(unborn[which_unborn == i].max(initial=0)))
            found |= (which == i) & ((times < np.uint64(since)) | (unknown & bool(program.since and program.known)))
        return found
