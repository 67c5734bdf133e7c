"""What a plugin implements: Source, Enricher, Resolver, Exporter, Target, Platform; and the Context that they get.

Options of a Source, Enricher or Exporter are the keyword-only, annotated arguments of its `__init__`
(`def __init__(self, *, ring_bytes: int = 0)`). The command line, the configuration and `doctor` read them from the
signature; the `Args:` of the class docstring describes them.
"""

from __future__ import annotations

import abc
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from wstrace.batch import Batch, Dictionary, StackIds
from wstrace.errors import Unavailable
from wstrace.ledger import Ledger
from wstrace.schema import OFFSET_UNKNOWN, Schema
from wstrace.trace_info import Level as Level
from wstrace.trace_info import TraceInfo as TraceInfo
from wstrace.trace_info import Usage as Usage


class Target(abc.ABC):
    """A traced process, made by a platform: launched (and still stopped before its first instruction) or attached."""

    pid: int
    name: str
    launched: bool
    #: called in resume() between its execve() and its first instruction, where the system can hold it there
    on_start: Callable[[], None] | None = None
    #: what wait() returned, once it has ended
    exit_code: int | None = None
    #: the name of the signal that ended it, `SIGSEGV`; "" = none, or not known
    exit_signal: str = ""

    @abc.abstractmethod
    def resume(self) -> None:
        """Lets a launched target run. Raises CommandNotFound or CannotExecute when the system refuses its command."""

    @abc.abstractmethod
    def wait(self, timeout: float) -> int | None:
        """Its exit code (128 + N for signal N; 0 when an attached one has ended), or None after timeout seconds."""

    @abc.abstractmethod
    def usage(self) -> Usage:
        """What the system accounts to it; exact for a launched target after wait() has returned its exit code."""

    def own_usage(self) -> Usage:
        """The same without its children, for a trace that leaves them out; usage() if the system cannot tell."""
        return self.usage()

    @abc.abstractmethod
    def signal(self, number: int) -> None:
        """Sends it a signal; does nothing when it has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the handle. A launched target that never ran is ended; any other continues."""


class Group(abc.ABC):
    """Processes that come and go and are traced as one: those of control groups, or all. A platform makes it."""

    #: what it was chosen by, for people
    name: str

    @abc.abstractmethod
    def processes(self) -> Sequence[int]:
        """The pids of its present processes."""

    @abc.abstractmethod
    def usage(self) -> Usage:
        """What the system accounts to it: faults since the trace began, until end()."""

    def end(self) -> None:
        """The trace ends: what the system accounts to it from now on is not part of usage()."""
        return

    def close(self) -> None:
        """Closes what it holds open."""
        return


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


if TYPE_CHECKING:  # numpy is not imported for `--help`
    from numpy.typing import NDArray

    from wstrace.firing import Firing

    #: (pids, addresses, times) -> the ids of the mappings there
    MappingsAt = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]
#: later than every time
NEVER = (1 << 64) - 1
#: Of several triggers that fire at once so many are kept by flight recorders; of more the last ones.
MOST_FIRINGS = 256


@dataclass(slots=True, eq=False, repr=False)
class Progress:
    """How far the parts of a session are; each field is written by one part, and read by those on other threads.

    waiting: batches that wait for the enrichers: what costs less for several at once may wait, too.
    essential_bytes: of those that must not be dropped: a source gives no more while these are many.
    held_since: the time of the oldest record, in ns, that an enricher still looks up by mappings_at().
    parents: the traced processes that have not ended -> their parents, where a source records births.
    """

    waiting: int = 0
    essential_bytes: int = 0
    held_since: int = NEVER
    parents: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Context:
    """What the session shares with all parts. There is one per session; none of its fields is ever replaced.

    targets, groups: the processes that are traced, and those that come and go; both () where records are replayed.
    stack_ids: where ids of `call_site` rows are taken from, by every part that makes such rows (call_sites.CallSites).
    info: what is known of the trace beside its records; plugins fill in what they find out.
    children: also trace processes that the targets start.
    require: "full" = a source must not fall back to a lower level. streams: that any exporter wants; None = all.
    wait_children: the trace goes on until no traced process is left, not only until the target itself ends.
    last_mark: the time of the user's last mark in ns, for sources that take snapshots; [] = there was none.
    firings: the last ones of triggers, each there before the mark that has its time.
    """

    targets: tuple[Target, ...] = ()
    groups: tuple[Group, ...] = ()
    strings: Dictionary = field(default_factory=Dictionary)
    ledger: Ledger = field(default_factory=Ledger)
    stack_ids: StackIds = field(default_factory=StackIds)
    info: TraceInfo = field(default_factory=TraceInfo)
    resolvers: Mapping[str, Resolver] = field(default_factory=dict)
    children: bool = True
    require: str = ""
    wait_children: bool = False
    streams: frozenset[str] | None = None
    last_mark: list[int] = field(default_factory=list)
    firings: deque[Firing] = field(default_factory=lambda: deque(maxlen=MOST_FIRINGS))
    progress: Progress = field(default_factory=Progress)
    _own_threads: set[int] = field(default_factory=set)
    _mappings_at: list[MappingsAt] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether processes of this machine are traced now; their pids in a recorded trace may be others' by now."""
        return bool(self.traced)

    @property
    def traced(self) -> tuple[Target | Group, ...]:
        """The targets, then the groups."""
        return (*self.targets, *self.groups)

    def usage(self) -> Usage:
        """What the system accounts to all that is traced, together; without children, to the targets alone."""
        each = [target.usage() if self.children else target.own_usage() for target in self.targets]
        of_groups = [group.usage() for group in self.groups]
        if any(one.faults is None for one in of_groups):  # the sum of the others is not that of all
            of_groups = []
        return sum((*each, *of_groups), Usage())

    def processes(self) -> list[int]:
        """The pids of the targets, and of what is in the groups now, each once."""
        inside = (pid for group in self.groups for pid in group.processes())
        return list(dict.fromkeys([*(target.pid for target in self.targets), *inside]))

    def wants(self, schema: Schema) -> bool:
        """Whether any exporter takes rows of a stream: what is dear to record need not be recorded for nobody."""
        return self.streams is None or schema.name in self.streams

    def provide_mappings_at(self, mappings_at: MappingsAt) -> None:
        """Registers who answers mappings_at() from now on: the enricher that gives out rows of `mapping`."""
        self._mappings_at[:] = [mappings_at]

    def mappings_at(self, pids: NDArray[Any], addresses: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """The ids of the mappings at addresses of processes at times, u32, shape (n,); 0 = not known.

        For enrichers that run behind the one that answers, on the same thread.

        Args:
            pids: u32, shape (n,). addresses: u64, shape (n,). times: ns, u64, shape (n,).
        """
        if self._mappings_at:
            return self._mappings_at[0](pids, addresses, times)
        return (addresses & 0).astype("<u4")

    def register_own_thread(self, native_id: int | None) -> None:
        """Registers a thread of wstrace itself by its system id, before the sources arm, so that it is not traced."""
        if native_id is not None:
            self._own_threads.add(native_id)

    def own_threads(self) -> frozenset[int]:
        """The system ids of wstrace's own threads, which are not traced."""
        return frozenset(self._own_threads)


class Source(abc.ABC):
    """Takes records from the system. One thread of the session calls all its methods but wake(); it has none itself."""

    name: ClassVar[str]
    streams: ClassVar[tuple[Schema, ...]]
    #: part of every session that names no sources
    default: ClassVar[bool] = False
    #: its records can wait (those of a file): it is read no faster than the exporters export, so none is dropped
    patient: ClassVar[bool] = False
    #: without a target it has nothing to trace: a session without targets is refused
    needs_target: ClassVar[bool] = False
    #: it watches what others trace, for as long as they do: the trace does not go on for it alone
    follows: ClassVar[bool] = False
    #: the seconds for which one call of drain() may wait; where they are more, wake() ends the wait
    drain_seconds: ClassVar[float] = 0.1

    @classmethod
    def probe(cls) -> Level:
        """The level that this machine and privilege permit, found by trying it on the calling process.

        Raises Unavailable: there is none, for that reason.
        """
        return Level("full")

    @classmethod
    def abilities(cls) -> Mapping[str, Level]:
        """What it can do beyond its level, by the option that asks for it: the level of each, tried as by probe()."""
        return {}

    def open(self, context: Context) -> None:
        """Called before the exporters start: opens its input, and describes it in `context.info`.

        Only a source of recorded traces needs this, as the exporters must know which records they are about to get.
        """

    @abc.abstractmethod
    def start(self, context: Context) -> None:
        """Starts recording, after the exporters have started. A launched target has not run yet.

        Raises:
            Unavailable: it cannot work here; the message says why and what lifts it.
        """

    @abc.abstractmethod
    def drain(self, timeout: float) -> Iterable[Batch]:
        """Waits at most timeout seconds for records, then yields what is complete by now, in order of time."""

    @abc.abstractmethod
    def stop(self) -> Iterable[Batch]:
        """Stops recording, yields the rest, enters its loss into the ledger and closes its handles. Called once."""

    def wake(self) -> None:
        """Ends a wait in drain(), as the session stops. Called by another thread, before stop() and more than once."""

    def record_one_in(self, every: int) -> bool:
        """Records one out of so many faults from now on, each row with that number (`sampled`); False = it cannot."""
        return False

    @property
    def finished(self) -> bool:
        """True when no more records will come: a replay at its end, a capture with no traced process left."""
        return False

    def cancel(self) -> None:
        """Called instead of start() and stop() when the session could not start: closes what open() opened."""

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied handles and takes no lock. Nothing is emitted."""


class Enricher(abc.ABC):
    """Adds columns to batches, on the bus's thread, in order. It may emit further batches before the one it got."""

    name: ClassVar[str]
    held: int = 0  # rows that it emits later: they are counted as lost where it hangs before

    def start(self, context: Context) -> None:
        """Called before the first batch."""

    @abc.abstractmethod
    def enrich(self, batch: Batch) -> Iterable[Batch]:
        """Yields the batch, usually as `batch.with_columns(...)`; a batch of another stream is yielded unchanged."""

    def close(self) -> Iterable[Batch]:
        """Called after the last batch: yields what is still held back."""
        return ()


class Resolver(abc.ABC):
    """Answers slow queries (sections, symbols) of exporters and reports; batches never pass through it."""

    name: ClassVar[str]

    @abc.abstractmethod
    def resolve(self, file: MappedFile, offsets: NDArray[Any]) -> Sequence[Place]:
        """A Place for each offset.

        Args:
            file: the file to look into. offsets: distinct byte offsets into that file, u64, shape (n,).
        """

    def lines(self, file: MappedFile, offsets: NDArray[Any]) -> Sequence[tuple[SourceLine, ...]]:
        """For each offset its source lines, of the innermost inlined function first; () = not known.

        The arguments are those of resolve(). It is called for the frames of stacks only, as it may take seconds.
        """
        return [()] * len(offsets)

    def parts(self, file: MappedFile) -> Sequence[Part]:
        """The named parts of a file by their start, which may overlap; () of an unknown format."""
        return ()


class Exporter(abc.ABC):
    """Writes batches to an output, on its own thread behind a bounded queue: it may be slow, raise or hang."""

    name: ClassVar[str]
    #: names of the streams it wants; None = all
    streams: ClassVar[frozenset[str] | None] = None
    #: part of every `run` and `attach`
    default: ClassVar[bool] = False
    #: takes the command line's `-o FILE` as its option `path`, and `-f` as `force`
    takes_output: ClassVar[bool] = False
    #: closed after the others, because it reports what became of them
    ends_last: ClassVar[bool] = False
    #: tells at the end of the trace that was kept: where nobody wants one, it is kept until then
    reports: ClassVar[bool] = False
    #: seconds that flush() and close() may take even where the session waits for less: of what is made at the end
    close_seconds: float = 0.0
    #: takes its batches up to half a second later, in bulk: nobody reads what it writes in the meantime
    may_wait: bool = False

    def start(self, context: Context) -> None:
        """Opens the output. Raises OutputError when it cannot; the session then ends before the target runs.

        `context.info` says which records will come: the sources are open, and start recording after this.
        """

    @abc.abstractmethod
    def export(self, batch: Batch) -> None:
        """Takes one batch. A raise counts the batch as failed; after several in a row the exporter is detached."""

    def tick(self) -> None:
        """Called about once a second between batches, busy or idle, for work that is due by time."""

    def flush(self, timeout: float) -> None:
        """Writes out what it holds, within timeout seconds."""

    def close(self) -> None:
        """Called after the last batch; ledger and info are complete. Prints the summary, ends the file."""

    def cancel(self) -> None:
        """Called instead of close() when the session could not start: prints nothing, leaves no file behind."""

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors, writes nothing and takes no lock."""

    @property
    def stalled(self) -> str:
        """Why its output takes nothing now, so that records wait or are dropped; "" = it takes them. On any thread."""
        return ""


class ProcessNow(NamedTuple):
    """What the system says of a process now.

    name: of its program. resident, virtual: bytes. started: wall time, seconds. faults: minor and major of its life.
    terminal: the device number of the terminal that controls it; 0 = it has none, or the system does not say.
    """

    name: str
    resident: int
    virtual: int
    started: float
    faults: int
    terminal: int = 0


class Platform(abc.ABC):
    """Launches and attaches processes on one operating system."""

    name: ClassVar[str]
    #: bytes per page in the processes that it launches and attaches
    page_size: ClassVar[int]

    @abc.abstractmethod
    def launch(self, command: Sequence[str], *, user: str | None = None) -> Target:
        """A target stopped before its first instruction. Raises CommandNotFound or CannotExecute where known early."""

    @abc.abstractmethod
    def attach(self, pid: int) -> Target:
        """A handle on a running process. Raises TargetExited or Unavailable."""

    @abc.abstractmethod
    def process(self, pid: int) -> ProcessNow | None:
        """A process that runs now; None = it has ended, or is no concern of ours."""

    @abc.abstractmethod
    def process_names(self) -> Mapping[int, str]:
        """The pid of each process that runs now -> its name. Raises Unavailable."""

    @abc.abstractmethod
    def descendants(self, pid: int) -> list[int]:
        """The pids of its present children, of theirs and so on. Raises TargetExited, Unavailable."""

    def group(self, kind: str, name: str = "") -> Group:
        """The processes of control groups: those of now, and those that come while they are traced.

        Args:
            kind: `cgroup` (its path, or a glob), `container` (the beginning of its id), `unit`, or `all` processes.
            name: of what there is none for `all`.

        Raises:
            TargetExited: there is no such group. UsageError: that is no name of one, or of several.
            Unavailable: the system has none, or does not show them.
        """
        raise Unavailable(f"{self.name} has no control groups", "give the pids of processes instead")

    @abc.abstractmethod
    def environment(self) -> Mapping[str, str]:
        """What `doctor` shows of this machine: system, kernel, machine, privilege; name -> text."""

    def versions(self) -> Mapping[str, str]:
        """What the page faults of a program depend on besides itself, for baselines: kernel, libc ...; name -> text."""
        return {}

    def open_named(self, path: str, root: str = "", inode: int = 0) -> int:
        """A descriptor, for reading, of a regular file that a trace, a mapping or a process names; else OSError.

        Args:
            path: its name. ValueError: it has a null byte.
            root: the folder that is `/` for the path; "" = ours.
            inode: the number that it must have; 0 = any.
        """
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise OSError(f"{path} is no regular file")

    def remedies(self) -> Mapping[str, str]:
        """Ready lines that lift missing privilege, for `doctor`: where they belong (Docker, systemd ...) -> line."""
        return {}

    def keep_freed_memory(self) -> None:
        """Lets this process, which exists to trace, keep the memory that it frees, where that saves time."""

    def room(self, least: int, what: str) -> int | None:
        """The bytes that a limit lets this process map yet; None = it has none. Raises Unavailable below `least`."""
        return None

    def debug_privilege(self) -> None:
        """Requests the right to open other users' processes. Raises Unavailable where this cannot give it."""
        raise Unavailable(f"{self.name} has no such privilege to switch on", "run wstrace as root instead")

    def is_administrator(self) -> bool:
        """Whether this process has an administrator's rights: then nothing is read from the working directory."""
        return bool(getattr(os, "geteuid", lambda: -1)() == 0)

    @abc.abstractmethod
    def output_owner(self) -> tuple[int, int] | None:
        """(uid, gid) of the user on whose behalf we run with more rights than his own (sudo's caller), else None."""

    def as_output_owner(self) -> AbstractContextManager[None]:
        """Inside, this thread alone opens and removes files with the output owner's rights. Raises OutputError."""
        return nullcontext()
