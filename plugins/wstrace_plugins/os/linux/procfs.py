"""Reads processes from /proc on Linux: mappings as columns, threads, descendants, counters.

Source: proc(5), Linux Documentation/filesystems/proc.rst; fs/proc/task_mmu.c show_map_vma() for the maps format.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace import schema
from wstrace.batch import Columns, Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Usage
from wstrace_plugins.os.linux import libc

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ENDED = "ZXx"  # States of a task in /proc/PID/stat.
#: The most bytes of a title that are taken.
TITLE_BYTES = 128
#: The most bytes that are read of a command line, of an environment, and of any other file. A process decides itself
#: where the first two of its own begin and end (PR_SET_MM_MAP), so they may be as long as its memory.
COMMAND_BYTES, ENVIRONMENT_BYTES, _FILE_BYTES = 4096, 256 << 10, 1 << 20
#: of one read, which takes memory for as much as it may give: a megabyte a read was 11 GB in a storm of 45 s
_PIECE = 64 << 10
_COMM_BYTES = 15  # of a name in stat and comm (TASK_COMM_LEN - 1)
#: The kernel's default of vm.max_map_count, and the mappings beyond that which it lists itself.
_MAPPINGS, _OWN_MAPPINGS = 65530, 16
USER_END = 1 << 63
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
#: start-end perms offset major:minor inode [path]
_LINE = rb"(?m)^([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+)[ ]*(.*)$"
_SHARED_MEMORY = ("/dev/shm/", "/memfd:", "/dev/zero")  # noqa: S108 - names that mappings have; nothing is opened
_PERMISSIONS = (
    (0, "r", schema.MAP_READ),
    (1, "w", schema.MAP_WRITE),
    (2, "x", schema.MAP_EXECUTE),
    (3, "s", schema.MAP_SHARED),
)


class Stat(NamedTuple):
    """/proc/PID/stat. Faults are counts; minor_children and major_children are those of reaped children."""

    pid: int
    name: str
    state: str
    ppid: int
    kernel_thread: bool
    minor: int
    minor_children: int
    major: int
    major_children: int
    cpu_seconds: float
    #: The device number of its terminal, as st_rdev has it; 0 = none.
    terminal: int
    started_ticks: int
    mapped_bytes: int
    resident_bytes: int
    #: Where the program's code begins and ends, and where its stack begins. execve() changes them; 0 without the right.
    image: tuple[int, int, int]

    @property
    def started(self) -> float:
        """When it began, in seconds since 1970."""
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + self.started_ticks / os.sysconf("SC_CLK_TCK")

    @property
    def gone(self) -> bool:
        """True for a zombie, which has no memory any more, and for a process whose first thread has ended
        (pthread_exit()): it goes on, but only its other threads show its memory, and they are not searched for.
        """
        return self.state in _ENDED


class Maps(NamedTuple):
    """The mappings of a process, ordered by address.

    columns: start, end, offset, dev, ino (u64), file (u32, index into files), flags (u16: permissions and kind),
    each of shape (n,).
    """

    columns: Columns
    files: list[str]

    def coded(self, strings: Dictionary) -> Columns:
        """The columns with `file` as codes of that Dictionary, as the streams ADDRESS_SPACE and MAPPING have them."""
        import numpy as np

        codes = np.array([strings.code(name) for name in self.files], "<u4")
        return {**self.columns, "file": codes[self.columns["file"]]}

    def of_the_user(self, strings: Dictionary) -> Columns:
        """The same without [vsyscall], which lies above USER_END and is no memory of the process."""
        return {name: column[self.columns["end"] <= USER_END] for name, column in self.coded(strings).items()}


def label(name: str) -> tuple[str, int]:
    """The file name to show for a mapping, and its kind, from its name in maps or in a PERF_RECORD_MMAP2.

    Unnamed memory is `[anon]`, unnamed shared memory is `[shared memory]`. ` (deleted)` is removed: device and inode
    still distinguish such a file from a new one with the same name.
    """
    if name.startswith("/"):
        if name.startswith("//"):  # perf's own names: //anon, //toolong, //enomem.
            return ("[anon]", schema.KIND_ANON) if name == "//anon" else ("", schema.KIND_OTHER)
        deleted = name.endswith(" (deleted)")
        path = name.removesuffix(" (deleted)")
        if path == "/dev/zero" and deleted:
            return "[shared memory]", schema.KIND_SHARED
        if path.startswith(_SHARED_MEMORY) or (deleted and path.startswith("/SYSV")):
            return path, schema.KIND_SHARED
        if path == "/anon_hugepage":
            return "[anon]", schema.KIND_ANON
        return path, schema.KIND_FILE
    if not name or name.startswith("[anon:"):
        return name or "[anon]", schema.KIND_ANON
    if name.startswith("[stack"):
        return "[stack]", schema.KIND_STACK
    kinds = (
        ("[heap]", schema.KIND_HEAP),
        ("[vdso]", schema.KIND_VDSO),
        ("[vvar", schema.KIND_VDSO),
        ("[vsyscall]", schema.KIND_VDSO),
        ("[anon_shmem:", schema.KIND_SHARED),
    )
    return name, next((kind for prefix, kind in kinds if name.startswith(prefix)), schema.KIND_OTHER)


def device(major: Any, minor: Any) -> Any:
    """st_dev for a major and minor device number, as glibc's makedev() combines them. Takes ints or i64 arrays."""
    return ((major & 0xFFF) << 8) | (minor & 0xFF) | ((minor & ~0xFF) << 12) | ((major & ~0xFFF) << 32)


def read_maps(pid: int) -> Maps:
    """The current mappings of a process (a listing of a running process is not atomic: it may overlap or have gaps).

    Raises TargetExited: there is no such process; Unavailable: it belongs to another user.
    """
    path = f"/proc/{pid}/maps"
    try:
        with open(path, "rb", buffering=0) as opened:
            return parse_maps(pieces(opened.fileno()))
    except OSError as error:
        raise refused(pid, path, error) from None


def pieces(fd: int, *, lines: int = 1) -> Iterator[bytes]:
    """The whole lines of an open maps or smaps file, in pieces: the path of each mapping may have 4 KiB.

    fd: the open file. lines: the most lines that a mapping has in it. Raises OSError: the process has ended;
    Unavailable: it lists more mappings than a process may have, as one that maps while it is listed can.
    """
    most = max(setting("vm/max_map_count") or 0, _MAPPINGS) + _OWN_MAPPINGS
    rest, found = b"", 0
    os.lseek(fd, 0, os.SEEK_SET)
    while piece := os.read(fd, 1 << 16):
        whole, end, rest = (rest + piece).rpartition(b"\n")
        found += whole.count(b"\n") + len(end)
        if found > most * lines:
            raise Unavailable(f"a process lists more than {most} mappings (vm.max_map_count): they are not read")
        yield whole + end


def parse_maps(text: Iterable[bytes]) -> Maps:
    """The content of a maps file, in pieces of whole lines, as columns; malformed lines are left out.

    20,000 mappings take about 30 ms.
    """
    import numpy as np

    files: dict[bytes, int] = {}
    rows = [(*row, files.setdefault(name, len(files))) for piece in text for *row, name in re.findall(_LINE, piece)]
    starts, ends, permissions, offsets, devices, inodes, codes = zip(*rows, strict=True) if rows else ((),) * 7
    file = np.array(codes, "<u4")
    labels = [label(os.fsdecode(name).replace("\\012", "\n")) for name in files]
    flags_of = {p: sum(bit for i, c, bit in _PERMISSIONS if p[i : i + 1] == c.encode()) for p in set(permissions)}
    dev_of = {d: device(*(int(part, 16) for part in d.split(b":"))) for d in set(devices)}
    kinds = np.array([kind << schema.KIND_SHIFT for _, kind in labels], "<u2")[file]
    columns: Columns = {
        "start": _hex(starts),
        "end": _hex(ends),
        "offset": _hex(offsets),
        "file": file,
        "dev": np.array([dev_of[d] for d in devices], "<u8"),
        "ino": np.array([int(i) & 0xFFFFFFFFFFFFFFFF for i in inodes], "<u8"),
        "flags": np.array([flags_of[p] for p in permissions], "<u2") | kinds,
    }
    return Maps(columns, [name for name, _ in labels])


def _hex(words: tuple[bytes, ...]) -> NDArray[Any]:
    """Hexadecimal words as u64, in one conversion for all of them."""
    import numpy as np

    joined = b"".join(word[-16:].zfill(16) for word in words)
    return np.frombuffer(bytes.fromhex(joined.decode()), ">u8").astype("<u8")


def stat(pid: int) -> Stat:
    """The counters of a process. Raises TargetExited when there is none."""
    text = os.fsdecode(read(pid, "stat"))
    head, _, tail = text.rpartition(")")  # The name itself may contain blanks and brackets.
    f = tail.split()
    return Stat(
        pid=pid, name=head.partition("(")[2], state=f[0], ppid=int(f[1]), kernel_thread=bool(int(f[6]) & _PF_KTHREAD),
        minor=int(f[7]), minor_children=int(f[8]), major=int(f[9]), major_children=int(f[10]),
        cpu_seconds=(int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK"), terminal=int(f[4]) & 0xFFFF_FFFF,
        started_ticks=int(f[19]),
        mapped_bytes=int(f[20]), resident_bytes=int(f[21]) * mmap.PAGESIZE, image=(int(f[23]), int(f[24]), int(f[25])),
    )  # fmt: skip


def stat_with_memory(pid: int) -> Stat:
    """The counters of a process that has memory.

    Raises TargetExited: there is no such process, or it has ended; Unavailable: it is a kernel thread.
    """
    found = stat(pid)
    if found.kernel_thread:
        raise Unavailable(f"process {pid} ({found.name}) is a kernel thread: it has no address space")
    if found.gone:
        raise TargetExited(f"process {pid} ({found.name}) has ended: it is a zombie and has no memory")
    return found


def exit_code(pid: int, unknown: int) -> int:
    """The exit code (128 + N for a signal) of a process that its parent has not waited for yet, else `unknown`."""
    try:
        fields = read(pid, "stat").rpartition(b")")[2].split()
    except Unavailable:
        return unknown
    if fields[0] not in b"ZX":
        return unknown
    status = int(fields[49])  # In the encoding of waitpid().
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8


def name(pid: int | str) -> str:
    """The name of a process, or of a thread `PID/task/TID` (comm, 15 bytes at most), "" when it has ended."""
    try:
        return os.fsdecode(read(pid, "comm").removesuffix(b"\n"))
    except Unavailable:
        return ""


def program_name(found: Stat) -> str:
    """The name of a process's program: that of its command line, where the kernel has cut it after 15 bytes."""
    if len(os.fsencode(found.name)) < _COMM_BYTES or not (words := arguments(found.pid)):
        return found.name
    whole = os.path.basename(words[0])
    return whole if whole.startswith(found.name) else found.name


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status. Raises TargetExited."""
    # Not splitlines(): the process's own name is among the fields, and may contain any line separator that Python
    # knows.
    lines = os.fsdecode(read(pid, "status")).split("\n")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _field(text: bytes, name: bytes) -> bytes:
    """A field of a status file, b"" if it has none. The process's name, which stands first, has no line end in it."""
    return text.partition(b"\n%b:\t" % name)[2].partition(b"\n")[0]


def resident(pid: int) -> tuple[int, int]:
    """Its resident bytes: the peak since its program began (VmHWM), and now (VmRSS); 0 for a process without memory.

    Raises TargetExited: there is none.
    """
    text = read(pid, "status")
    peak, now = (int(_field(text, key).removesuffix(b"kB") or 0) * 1024 for key in (b"VmHWM", b"VmRSS"))
    return peak, now


def exists(pid: int) -> bool:
    """True when a process (a zombie counts) has this pid."""
    return os.path.exists(f"/proc/{pid}/stat")


def threads(pid: int) -> list[int]:
    """The ids of its current threads. Raises TargetExited."""
    return list(_numbers(pid, f"/proc/{pid}/task"))


def processes() -> list[int]:
    """The pids of all processes in /proc."""
    return list(_numbers(0, "/proc"))


def arguments(pid: int) -> tuple[str, ...]:
    """Its command line (4 KiB of it), or its title in that place; () when it has ended or has none."""
    try:
        text = os.fsdecode(read(pid, "cmdline", COMMAND_BYTES)).rstrip("\0")
    except Unavailable:
        return ()
    return tuple(text.split("\0")) if text else ()


def title(pid: int) -> bytes:
    """The title that it gave itself in place of its command line, as `postgres: checkpointer`; b"" = none.

    A title is proven by its place: it is longer or shorter than the arguments of execve() that it was written over. A
    command line as it was executed is none, nor is one that was written anew (by Chromium): arguments may be secret.
    """
    try:
        text = read(pid, "cmdline", COMMAND_BYTES)
        words, _, rest = text.partition(b"\0")
        if rest.strip(b"\0"):  # arguments
            return b""
        fields = read(pid, "stat").rpartition(b")")[2].split()
    except Unavailable:
        return b""
    arguments = int(fields[46]) - int(fields[45])  # arg_end - arg_start; 0 without the right to read its memory
    longer = not rest and 0 < arguments < len(text)
    shorter = bool(rest)
    found = words.strip()
    return found[:TITLE_BYTES] if (longer or shorter) and not found.startswith(b"/") else b""


def descendants(*pids: int) -> list[int]:
    """Their current children, the children of these and so on, each once; parents before children.

    Orphans no longer belong to them. One reading of all processes takes a tenth of a millisecond for each.
    """
    children: dict[int, list[int]] = {}
    for pid in processes():
        with contextlib.suppress(Unavailable):
            children.setdefault(stat(pid).ppid, []).append(pid)
    return _below(pids, lambda pid: children.get(pid, ()))


def living_descendants(pid: int) -> list[int]:
    """Those of descendants() with memory of their own; what it costs goes by the size of the family, where it can.

    A child may be left out while a sibling of it ends (Documentation/filesystems/proc.rst: `children` is not reliable
    unless all are frozen): for what is read again soon. A child of vfork() or posix_spawn() has its parent's memory
    until its exec: it is none of them, nor is what it starts.
    """
    if not os.path.exists("/proc/thread-self/children"):  # CONFIG_PROC_CHILDREN
        return descendants(pid)

    def children(parent: int) -> Iterator[int]:
        with contextlib.suppress(Unavailable):
            for thread in threads(parent):
                with contextlib.suppress(Unavailable):
                    listed = map(int, read(f"{parent}/task/{thread}", "children").split())
                    yield from (child for child in listed if not libc.same_memory(parent, child))

    return _below((pid,), children)


def _below(pids: Iterable[int], children: Callable[[int], Iterable[int]]) -> list[int]:
    """What descends from these, without themselves."""
    found = dict.fromkeys(pids)
    going, n = list(found), len(found)
    for parent in going:
        going += (new := [child for child in children(parent) if child not in found])
        found |= dict.fromkeys(new)
    return going[n:]


def setting(path: str) -> int | None:
    """A number below /proc/sys; None if it is missing or not a number."""
    try:
        return int(content(f"/proc/sys/{path}"))
    except (OSError, ValueError):
        return None


def content(path: str, most: int = _FILE_BYTES) -> bytes:
    """The first bytes of a file of the system, `most` of them. Raises OSError."""
    found = b""
    with open(path, "rb", buffering=0) as opened:
        while part := opened.read(min(most - len(found), _PIECE)):
            found += part
    return found


def _numbers(pid: int, folder: str) -> Iterator[int]:
    """The names of a folder that are numbers. Raises TargetExited, Unavailable."""
    try:
        yield from (int(name) for name in os.listdir(folder) if name.isdecimal())
    except OSError as error:
        raise refused(pid, folder, error) from None


def read(pid: int | str, file: str, most: int = _FILE_BYTES) -> bytes:
    """The first bytes of a file of a process. Raises TargetExited, Unavailable."""
    path = f"/proc/{pid}/{file}"
    try:
        return content(path, most)
    except OSError as error:  # ESRCH: the process exited between open and read.
        raise refused(pid, path, error) from None


def right_to_read() -> str:
    """What lets us read another process."""
    if os.geteuid():
        return "run wstrace as that process's user or as root"
    return "root of a container needs CAP_SYS_PTRACE"


def refused(pid: int | str, path: str, error: OSError) -> Unavailable:
    """The error for a file of a process that cannot be read."""
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return TargetExited(f"there is no process {pid}")
    full = error.errno in (errno.EMFILE, errno.ENFILE)
    remedy = "allow more open files: ulimit -n" if full else right_to_read()
    return Unavailable(f"cannot read {path}: {error.strerror}", remedy)


@functools.cache
def own_vdso() -> bytes:
    """The vdso, the kernel's own image in every process of this boot; b"" where there is none.

    It is read from our own memory, as no file has it.
    """
    maps = read_maps(os.getpid())
    kinds = maps.columns["flags"] >> schema.KIND_SHIFT & 15
    for row in (kinds == schema.KIND_VDSO).nonzero()[0].tolist():
        start, end = int(maps.columns["start"][row]), int(maps.columns["end"][row])
        try:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                image = memory.read(end - start)
        except (OSError, OverflowError):  # [vvar] and [vsyscall] are of this kind, too
            continue
        if image.startswith(b"\x7fELF"):
            return image
    return b""


def node_faults() -> Usage:
    """Those of all processes since boot; Usage() = the system does not tell them."""
    counts = _counts()
    return usage(counts.get("pgfault"), counts.get("pgmajfault"))


def balancing_hints() -> int | None:
    """The hint faults of all processes since boot, on pages that were there: the kernel takes access to them away to
    learn which memory node uses them (NUMA balancing). None = it does not do that now.
    """
    return _counts().get("numa_hint_faults") if setting("kernel/numa_balancing") else None


def _counts() -> dict[str, int]:
    try:
        lines = content("/proc/vmstat").decode("ascii").splitlines()
    except OSError:
        return {}
    return {name: int(n) for name, _, n in (line.partition(" ") for line in lines)}


def usage(pgfault: int | None, pgmajfault: int | None) -> Usage:
    """The two counts as minor and major faults: pgfault counts all faults, those from disk too."""
    return Usage() if pgfault is None else Usage(max(pgfault - (pgmajfault or 0), 0), pgmajfault or 0)
