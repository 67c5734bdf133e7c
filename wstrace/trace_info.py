"""TraceInfo: the description of a trace, beside its records and its ledger; and the types that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from wstrace.clock import ClockAnchor
from wstrace.text import printable, printable_words

#: A number from a file that lies outside of this range is not a time, count or size that we wrote.
_LARGEST = (1 << 63) - 1
_MOST_SAMPLED = (1 << 32) - 1  # as rows have it (page_fault.sampled)
#: The limit on texts in a list that is read from a file.
_MOST_TEXTS = 1000
#: The key of TraceInfo.extra with the reason for which a live trace that was to be kept is not.
NOT_SAVED = "not_saved"
#: The most notes of a trace.
_MOST_NOTES = 256


class Level(NamedTuple):
    """The level of detail that a source reaches on this machine, which it has tried, not guessed.

    name is "full", a lower level of the source's own ("user", "counters") or "none"; why says what stands in the way,
    and remedy is the exact command that removes it.
    """

    name: str
    why: str = ""
    remedy: str = ""

    @property
    def counts_only(self) -> bool:
        """Whether page faults are counted at most, and none is recorded."""
        return self.name in ("counters", "none")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the system itself accounts to a target; None where it does not say. Children that were waited for count.

    peak_sampled: the peak is the largest value that was sampled; the true one may be higher.
    peak_pid: the process of the peak, where the system says so: rusage's is that of the largest of several.
    """

    minor: int | None = None
    major: int | None = None
    peak_resident_bytes: int | None = None
    cpu_seconds: float | None = None
    peak_sampled: bool = False
    peak_pid: int | None = None

    @property
    def faults(self) -> int | None:
        """Minor and major faults together; None when neither is known."""
        known = [count for count in (self.minor, self.major) if count is not None]
        return sum(known) if known else None

    def __add__(self, other: Usage) -> Usage:
        """The usage of two processes together: counts and seconds are added, the peak is the larger one."""
        larger = max(self, other, key=lambda usage: usage.peak_resident_bytes or 0)
        return Usage(
            _either(self.minor, other.minor, sum),
            _either(self.major, other.major, sum),
            _either(self.peak_resident_bytes, other.peak_resident_bytes, max),
            _either(self.cpu_seconds, other.cpu_seconds, sum),
            self.peak_sampled or other.peak_sampled,
            larger.peak_pid,
        )


@dataclass(slots=True)
class TraceInfo:
    """One trace: what was traced, how, where and when. The session and its plugins fill it in while the trace runs.

    Attributes:
        command: the command line of a launched target, or the name of an attached one.
        targets: the pids that the trace began with.
        exit_code: the target's exit code, once it has ended.
        exit_signal: the signal that ended it, `SIGSEGV`; "" = none, or not known.
        level: the level that the sources reached; None = no source has reported one.
        usage: what the system accounts to all targets together.
        sampled: one out of this many faults was recorded; on average where rows say it themselves (page_fault.sampled).
        notes: what the trace cannot show, each with its reason: why faults that the system counted are not records.
        lacking: what the records themselves lack, such as stacks, each with its reason: no record is missing for it.
        clock: converts the times of records to wall time.
        started_ns, ended_ns: when the trace began and ended, on the records' clock; 0 = not known.
        page_size: bytes in a page on the machine where it was recorded; 0 = not known.
        host: for a recorded trace: system, release, machine and name; {} = this machine.
        hosts: for a trace merged from several hosts or boots: their names; () = it is of one.
        boot_id: for a recorded trace: the boot whose clock its records have; "" = this boot's, or not known.
        created_ns: for a recorded trace: the wall time at which it began, in ns.
        saved: the file that holds the whole trace, once it is written; "-" = it went to standard output.
        incomplete: what a file lacks of the trace, and why, in words; "" = nothing known.
        final_snapshot: the pid whose resident pages were read at its exit.
        snapshot_age_ms: how long before the end the last snapshot of resident pages was taken.
        content_losses: the words of schema.LOSS_EVENTS of which every one is recorded, as far as nothing was lost. What
            depends on others is assumed.
        extra: values that a plugin adds under a name of its own; plain ones, which a trace file can hold.
    """

    command: list[str] = field(default_factory=list)
    targets: tuple[int, ...] = ()
    exit_code: int | None = None
    exit_signal: str = ""
    level: Level | None = None
    usage: Usage = field(default_factory=Usage)
    sampled: int = 1
    notes: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    clock: ClockAnchor = field(default_factory=ClockAnchor)
    started_ns: int = 0
    ended_ns: int = 0
    page_size: int = 0
    host: Mapping[str, object] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    boot_id: str = ""
    created_ns: int = 0
    saved: str = ""
    incomplete: str = ""
    final_snapshot: int | None = None
    snapshot_age_ms: int | None = None
    content_losses: tuple[str, ...] = ()
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The command line that is traced, and the pids."""
        return " ".join([*self.command, *(f"({pid})" for pid in self.targets)]) or "no process"

    @property
    def recorded(self) -> bool:
        """Whether the records were taken earlier and are now read again: their clock is not running here."""
        return not self.clock.live

    @property
    def level_name(self) -> str:
        """The name of the level; "not known" where no source has reported one."""
        return self.level.name if self.level is not None else "not known"

    @property
    def obstacles(self) -> list[str]:
        """`level counters: why; to lift it: command`, and a line per thing that records lack."""
        without = [f"without {printable_words(what, 240)}" for what in self.lacking]
        level = self.level
        if level is None or level.name == "full":
            return without
        why, remedy = printable(level.why), printable(level.remedy)
        text = f"level {printable(level.name, 60)}: {why or 'the system gives no more'}"
        return [f"{text}; to lift it: {remedy}" if remedy else text, *without]

    def note(self, reason: str) -> None:
        """Adds something that the trace cannot show, a few hundred at most; a note that exists is not repeated."""
        if reason not in self.notes and len(self.notes) <= _MOST_NOTES:  # a trace of a node may go on for months
            self.notes.append(reason if len(self.notes) < _MOST_NOTES else "and more")

    def lack(self, what: str) -> None:
        """Adds something that records lack, and why: `Python stacks: they need root`; what is known is not repeated."""
        if what not in self.lacking:
            self.lacking.append(what)

    def become(self, other: TraceInfo) -> None:
        """Copies everything from `other`, because a replay has the description of the trace that it reads."""
        for one in fields(self):
            setattr(self, one.name, getattr(other, one.name))

    @property
    def accounts(self) -> tuple[str, ...]:
        """Where the system accounts the faults of `usage`: `rusage` of processes, `memory.stat` of control groups, or
        `vmstat` of the machine; several of traces that were merged."""
        merged, cgroups = self.extra.get("accounts"), self.extra.get("cgroups")
        if isinstance(merged, list):
            return tuple(map(str, merged))
        return ("rusage" if cgroups is None else "memory.stat" if cgroups else "vmstat",)

    @classmethod
    def of_several(cls, infos: Sequence[TraceInfo]) -> TraceInfo:
        """A description of several sessions together: what the system accounts is added up, the peak is the largest.

        What belongs to only one session (snapshots, the process of the peak, where it was saved) is left out. The
        clock, host and command are those of the first; the exit code is the largest, None where one still ran.
        """
        first, *others = infos
        if not others:
            return first
        usage = first.usage
        for other in others:
            usage += other.usage
        accounts = list(dict.fromkeys(one for info in infos if info.usage.faults is not None for one in info.accounts))
        levels = [info.level for info in infos if info.level is not None]
        codes = [info.exit_code for info in infos if info.exit_code is not None]
        return replace(
            first,
            targets=tuple(dict.fromkeys(pid for info in infos for pid in info.targets)),
            exit_code=max(codes) if len(codes) == len(infos) else None,
            exit_signal="",
            level=next((level for level in levels if level.name != "full"), levels[0] if levels else None),
            usage=replace(usage, peak_pid=None),
            sampled=max(info.sampled for info in infos),
            notes=_added(note for info in infos for note in info.notes),
            lacking=list(dict.fromkeys(what for info in infos for what in info.lacking)),
            started_ns=min((info.started_ns for info in infos if info.started_ns), default=0),
            ended_ns=max(info.ended_ns for info in infos),
            saved="",
            final_snapshot=None,
            snapshot_age_ms=None,
            content_losses=tuple(
                word for word in first.content_losses if all(word in other.content_losses for other in others)
            ),
            extra={key: value for info in reversed(infos) for key, value in info.extra.items()}
            | ({"accounts": accounts} if len(accounts) > 1 else {}),
        )

    def to_dict(self) -> dict[str, object]:
        """Its plain values by name, as in the `facts` of a trace file and in JSON; unknown values are absent.

        clock, host, boot_id and created_ns are not included: a trace file has them in its header and clock marks.
        """
        pids, level = list(self.targets), self.level or Level("")
        found: dict[str, object] = {"pid": pids[0]} if pids else {}
        if len(pids) > 1:
            found["pids"] = pids
        for of, known in ((self, _OWN), (level, _LEVEL), (self.usage, _USAGE)):
            for key, (name, default, _) in known.items():
                if (value := getattr(of, name)) != default:
                    found[key] = list(value) if isinstance(value, tuple) else value
        return {**found, **{key: value for key, value in self.extra.items() if key not in _KEYS}}

    def begun(self) -> dict[str, object]:
        """to_dict() of a trace that goes on; without its processes, as their exit codes are not known yet."""
        return replace(self, targets=()).to_dict()

    @classmethod
    def from_dict(cls, facts: Mapping[str, object]) -> TraceInfo:
        """Restores what to_dict() returned. The file may come from anyone: a wrong type counts as unknown.

        `saved` is left out.
        """
        read: list[dict[str, Any]] = [
            {name: reader(facts.get(key, default)) for key, (name, default, reader) in known.items()}
            for known in (_OWN, _LEVEL, _USAGE)
        ]
        own, level, usage = read
        pids = facts.get("pids")
        targets = pids if isinstance(pids, list) else [facts.get("pid")]
        return cls(
            **{**own, "saved": "", "sampled": min(max(1, own["sampled"]), _MOST_SAMPLED)},
            targets=tuple(one for one in map(_count, targets[:_MOST_TEXTS]) if one is not None),
            level=Level(**level) if level["name"] else None,
            usage=Usage(**usage),
            extra={key: value for key, value in facts.items() if isinstance(key, str) and key not in _KEYS},
        )


def _added(notes: Iterable[str]) -> list[str]:
    """The notes, each once; the numbers that equal ones begin with add up."""
    counts: dict[str, int] = {}
    for note in notes:
        number, _, words = note.partition(" ")
        digits = number.replace(",", "")
        counted = words and digits.isascii() and digits.isdigit()
        key = words if counted else note
        counts[key] = counts.get(key, 0) + (int(digits) if counted else 0)
    return [f"{n:,} {words}" if n else words for words, n in counts.items()]


def _either(one: Any, other: Any, both: Any) -> Any:
    """The value that is known, or both(one, other) if both are."""
    return other if one is None else one if other is None else both((one, other))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _text(value: object) -> str:
    if isinstance(value, bytes):  # A text that is not UTF-8 is stored in a file as bytes.
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    given: Iterable[object] = value if isinstance(value, list | tuple) else ()
    return [_text(one) for one in list(given)[:_MOST_TEXTS] if isinstance(one, str | bytes)]


def _facts(of: TraceInfo | Usage) -> dict[str, tuple[str, Any, Callable[[object], Any]]]:
    """Fact -> (the field that it is, the default, which stands for not known, and what reads it from a file)."""
    found = {}
    for one in fields(of):
        if one.type in _READERS and one.name not in _IN_THE_HEADER:
            found[_NAMES.get(one.name, one.name)] = one.name, getattr(of, one.name), _READERS[one.type]
    return found


#: type of a field -> what reads a value of it
_READERS: dict[Any, Callable[[object], Any]] = {
    "int": lambda value: _count(value) or 0,
    "int | None": _count,
    "bool": lambda value: value is True,
    "str": _text,
    "list[str]": _texts,
    "tuple[str, ...]": lambda value: tuple(_texts(value)),
}
_IN_THE_HEADER = ("hosts", "boot_id", "created_ns")
_NAMES = {"notes": "not_visible", "minor": "usage_minor", "major": "usage_major"}
_OWN, _USAGE = _facts(TraceInfo()), _facts(Usage())
_LEVEL = {f"level_{name}".removesuffix("_name"): (name, "", _text) for name in Level._fields}
_KEYS = frozenset((*_OWN, *_USAGE, *_LEVEL, "pid", "pids"))
