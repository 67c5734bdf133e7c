"""Comparison: what grew or shrank between two runs, or two moments of one, and which line did it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from wstrace.analysis.alignment import paired, shift_between, unversioned
from wstrace.analysis.composition import Composition, Past
from wstrace.analysis.dimensions import (
    FIRST_TOUCH,
    NAME_LIMIT,
    Label,
    Row,
    dimensions_of,
    first_touched,
    most_of,
    name_of,
)
from wstrace.analysis.filter import Filter
from wstrace.analysis.moments import Snapshot, Snapshots
from wstrace.analysis.own import short_path
from wstrace.analysis.report import Report, completeness, notes_of, report
from wstrace.errors import TraceFileError, UsageError
from wstrace.schema import PAGE_FAULT
from wstrace.table import Recorded
from wstrace.text import base_name, duration, printable, signed, size, unit_of

#: The least share of all changes of a row that the first line names.
_SHARE = 0.05
#: From this share of all that grew on, one row is the answer over time.
_MOSTLY = 0.8
#: The moments over time that are shown; the step between them is widened for more.
MOST = 30


class Change(Row):
    """A row of two runs: `first` and `second`, and what the second run has more: `change`, of that `private`, `shared`.

    was: its file, package or label in the first run, where that is another one.
    """

    __slots__ = ("was",)

    def __init__(self, label: Label, first: Sequence[Row], second: Sequence[Row], was: str = "") -> None:
        one, other = (sum(row["resident"] for row in rows) for rows in (first, second))
        private = sum(row["private"] for row in second) - sum(row["private"] for row in first)
        super().__init__((label,), {"change": other - one, "first": one, "second": other, "private": private,
                                    "shared": other - one - private,
                                    "estimated": sum(row["estimated"] for row in (*first, *second))})  # fmt: skip
        self.was = was

    @property
    def imports(self) -> bool:
        """Whether it is a line that imports its package."""
        return self.label.startswith("import ")

    def as_dict(self, by: Sequence[str], names: Iterable[str]) -> dict[str, object]:
        """The keys of a row in JSON."""
        return super().as_dict(by, names) | {"estimated": self["estimated"], "was": self.was}


def changes_between(first: Iterable[Row], second: Iterable[Row], by: str) -> list[Change]:
    """The rows of both runs by a dimension, each with the one that is the same, the largest change first."""
    one, other = _grouped(first, by), _grouped(second, by)
    found = [
        _change(*rows)
        for before, after in paired(list(one), list(other), _NAMES)
        for rows in _alike(one[before] if before else [], other[after] if after else [], by)
    ]
    found = [row for row in found if row["first"] or row["second"]]
    same = Counter(row.label for row in found)
    for row in found:
        if same[row.label] > 1:
            twin = f"{row.label} (of {row.was or row.of('file') or 'both'})"
            row.label = row.whole if row.whole != row.label else twin
    return sorted(found, key=lambda row: (-abs(row["change"]), -row["second"], row.whole))


#: What two functions, packages or files (place, name) have in common that are the same, the surest first.
_NAMES = (
    lambda group: group,
    lambda group: (short_path(group[0]), group[1]),
    lambda group: (unversioned(short_path(group[0])), unversioned(group[1])),
    lambda group: (unversioned(base_name(group[0])), unversioned(group[1])),
)


def _grouped(rows: Iterable[Row], by: str) -> dict[tuple[str, str], list[Row]]:
    """The rows by the place and the name of their function, which has several of a view of lines."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        place = row.of("file") or row.of("package") or row.whole
        imported = by == "line" and row.label.startswith("import ")
        name = f"import {row.of('package')}" if imported else row.of("function") or row.whole * (row.whole != place)
        groups.setdefault((place, name), []).append(row)
    return groups


def _alike(first: list[Row], second: list[Row], by: str) -> Iterable[tuple[list[Row], list[Row]]]:
    """The rows of a function that are the same in both runs; all of them together where that is not known."""
    if by not in ("line", "owner"):
        return [(first, second)]
    if not first or not second:
        return [*(([row], []) for row in first), *(([], [row]) for row in second)]
    shift = shift_between([row.line for row in first], [row.line for row in second])
    if shift is None:
        return [(first, second)]
    lines: dict[int, tuple[list[Row], list[Row]]] = {}
    for which, rows in enumerate((first, second)):
        for row in rows:
            lines.setdefault(row.line + shift * (not which), ([], []))[which].append(row)
    return lines.values()


def _change(first: Sequence[Row], second: Sequence[Row]) -> Change:
    (label,), (before,) = (second or first)[0].labels, (first or second)[0].labels
    was = next((one for one, other in ((before.file, label.file), (before.package, label.package),
                                       (before.unique, label.unique)) if one != other), "")  # fmt: skip
    lines = [sorted({row.line for row in rows}) for rows in (first, second)]
    if max(map(len, lines)) > 1:
        one, other = (", ".join(map(str, some[:9])) for some in lines)
        text = f"{label.text.rpartition(':')[0]} (lines {one}; now {other})"
        label = label._replace(text=text, whole=f"{label.file} {label.function}", line=0)
    return Change(label, first, second, was)


class Run:
    """One of the two runs: its resident pages at a moment.

    at: see Snapshots.at(). Raises TraceFileError: it has no whole snapshot.
    """

    def __init__(self, trace: Recorded, at: str | int) -> None:
        self.trace, self.report = trace, report(trace, at=at)
        self._at = at
        self.name = printable(base_name(trace.name), NAME_LIMIT)
        if self.report.of is None:
            raise TraceFileError(
                f"{printable(trace.name)} holds no whole snapshot",
                "record one: wstrace report -o FILE -- COMMAND, wstrace snapshot PID -o FILE, or -s working_set",
            )
        self.of = self.report.of
        #: whether any fault has a Python stack
        self.stacked = bool(self.of.inputs.faults["stack"].any())

    def rows(self, by: str) -> list[Row]:
        """Its rows by a dimension; one that needs more than the usual keys of a cube has the trace read again."""
        if set(dimensions_of((by,))[by].keys) <= self.of.past.cube.keys.keys():
            return self.of.rows(by)
        again = report(self.trace, (by,), at=self._at).of
        return [] if again is None else again.rows(by)

    @property
    def total(self) -> int:
        """Resident bytes."""
        return sum(row["resident"] for row in self.rows("kind"))

    @property
    def short(self) -> str:
        """That a part of its peak is all that was seen; "" = it was seen whole, or is not what is compared."""
        peak = self.of.inputs.of_peak
        if not peak or self.of.rss >= 0.95 * peak:
            return ""
        return f"{self.name} shows {self.of.rss / peak:.0%} of its peak, which was too short to be seen whole"

    @property
    def doubts(self) -> list[str]:
        """Why its numbers may be others than they seem."""
        found = []
        if (state := self.trace.state) in ("cut", "damaged", "incomplete"):
            found.append(f"{self.name} is {state}: what it lacks is not known here")
        found += [self.short] * bool(self.short)
        if self.trace.rows.get(PAGE_FAULT.name) and not self.of.complete:
            found.append(f"{self.name}: {self.report.completeness}")
        return found


class Comparison:
    """What the second of two runs has more or less in memory.

    at: the moment, as of Snapshots.at(); None = the peak if both have seen it whole (`-s peak_snapshot`), else the last
    snapshot of each process. first, second: the runs. Raises TraceFileError: a trace has no whole snapshot; UsageError:
    there is no such mark.
    """

    def __init__(self, first: Recorded, second: Recorded, at: str | int | None) -> None:
        seen = all("peak_snapshot" in trace.info.extra for trace in (first, second))
        self.first, self.second = (Run(trace, at or ("peak" if seen else "exit")) for trace in (first, second))
        #: why the exits are compared
        self.instead = [run.short for run in (self.first, self.second) if at is None and run.short]
        if self.instead:
            self.first, self.second = Run(first, "exit"), Run(second, "exit")

    @property
    def change(self) -> int:
        """Resident bytes that the second run has more: the difference of both totals."""
        return self.second.total - self.first.total

    @property
    def moment(self) -> str:
        """The moment in words; where the runs differ, that of each."""
        one, other = self.first.report.moment, self.second.report.moment
        both = one if one == other else f"{self.first.name} {one}, {self.second.name} {other}"
        return printable(both, 3 * NAME_LIMIT)

    @property
    def doubts(self) -> list[str]:
        """Why numbers may be others than they seem; [] = nothing is known to be missing."""
        return [doubt for run in (self.first, self.second) for doubt in run.doubts]

    def why_not(self, by: str) -> str:
        """Why the runs cannot be compared by a dimension; "" = they can. Raises UsageError: there is no such one."""
        if not dimensions_of((by,))[by].owner:
            return ""
        for run, other in ((self.first, self.second), (self.second, self.first)):
            if not run.trace.rows.get(PAGE_FAULT.name):
                return f"{run.name} has no faults, so who touched its pages is not known"
            if other.stacked and not run.stacked:
                return f"{run.name} has no Python stacks, {other.name} has: their owners have different names"
        return ""

    def rows(self, by: str) -> list[Change]:
        """All rows by a dimension, the largest change first. Each column sums to that of the totals.

        Raises UsageError: the runs cannot be compared so.
        """
        if why := self.why_not(by):
            raise UsageError(f"not compared by {by}: {why}", "use --by file")
        return changes_between(self.first.rows(by), self.second.rows(by), by)

    def report(self, by: str = "", *, everything: bool = False) -> Report:
        """The comparison as a report by a dimension; "" = package, or file where owners cannot be compared.

        everything: also the rows that did not change: these sum to the totals.
        """
        why = self.why_not("package")
        by = by or ("file" if why else "owner")
        rows = self.rows(by)
        total = Change(Label("Total"), self.first.rows("kind"), self.second.rows("kind"))
        return Report(
            (by,),
            "change",
            self._answer(rows),
            "; ".join(self.doubts) or "complete",
            [*(f"compared at the exit: {short}" for short in self.instead), *[why] * bool(why)],
            {name: n for name, n in total.values.items() if name != "estimated"},
            [row for row in rows if everything or row["change"] or row["private"]],
            self.moment,
        )

    def _answer(self, rows: list[Change]) -> str:
        """`+12.1 MiB resident at the peak (29.6 -> 41.7 MiB): +9.8 pandas, ...`, of the rows of the table."""
        changed = sum(abs(row["change"]) for row in rows)
        if not self.change and not changed:
            return f"no change: {size(self.second.total)} resident {self.moment}"
        from_to = f"{size(self.first.total)} -> {size(self.second.total)}"
        head = f"{signed(self.change)} resident {self.moment} ({from_to})"
        _, divisor = unit_of(abs(self.change) or abs(rows[0]["change"]))
        parts = ((name_of(row.label), row["change"], row["estimated"]) for row in rows)
        return f"{head}: {most_of(parts, changed, lambda n: f'{n / divisor:+,.1f}', _SHARE)}"


class Sizes(NamedTuple):
    """The resident pages at one moment. rows: by the view of the table; resident, private: bytes."""

    time_ns: int
    resident: int
    private: int
    rows: list[Row]
    complete: bool


class OverTime:
    """Who held how much at each moment of a trace.

    step: seconds between two moments; snapshots that are nearer to each other are one moment, of which the last one of
    each process counts. The snapshot of a command at its exit is none of them. by: the dimension of the rows. pids: the
    processes that are wanted; () = all. moments: by time. step: seconds, wider than given where there would be more
    than MOST moments. Raises UsageError: step is not positive.
    """

    def __init__(self, trace: Recorded, step: float, by: str = "line", pids: Sequence[int] = ()) -> None:
        if step <= 0:
            raise UsageError(f"a step of {step} s", "give seconds above 0")
        taken = [one for one in Snapshots(trace).taken if not pids or one.process[1] in pids]
        taken = _before_the_exit(trace, taken)
        times = np.array([one.time_ns for one in taken], np.float64)
        span = (times[-1] - times[0]) / 1e9 if len(times) else 0.0
        self.step, self.by = max(step, span / (MOST - 1)), by
        # one moment is what was read until a quarter of a step after it, so that the first one is the beginning
        number = np.ceil((times - times[:1]) / (self.step * 1e9) - 0.25).astype(np.int64)
        last = np.flatnonzero(np.append(number[1:] != number[:-1], np.ones(min(len(times), 1), np.bool_)))
        ends = [taken[at].time_ns for at in last.tolist()]
        past = Past(trace, [(time, pids) for time in ends], by=(by,), chosen=Filter(pids=pids)) if ends else None
        parts = [Composition(trace, time, past=past, number=at) for at, time in enumerate(ends)]
        self.moments = [_moment(of, of.rows(by)) for of in parts]
        self._complete = completeness(trace, past, parts[-1], parts[-1].sums) if past else ""
        self._notes = notes_of(trace)

    def growth(self, first: int = 0, last: int = -1) -> list[Change]:
        """What the rows of one moment have more at another, the largest change first; sizes in bytes."""
        return changes_between(self.moments[first].rows, self.moments[last].rows, self.by)

    def seconds(self, moment: int = -1) -> float:
        """The time of a moment after the first one."""
        return (self.moments[moment].time_ns - self.moments[0].time_ns) / 1e9

    def report(self) -> Report:
        """What grew from the first moment to the last one, and all `moments`; no rows = there are not two."""
        rows = [row for row in self.growth() if row["change"]] if len(self.moments) > 1 else []
        moments = [
            {"time_ns": moment.time_ns, "seconds": self.seconds(at), "resident": moment.resident,
             "private": moment.private, "complete": moment.complete,
             "rows": [row.as_dict((self.by,), row.values) for row in moment.rows if row["resident"]]}
            for at, moment in enumerate(self.moments)
        ]  # fmt: skip
        more = {"step_seconds": self.step, "moments": moments}
        if len(self.moments) < 2:
            none = "the trace has fewer than two snapshots of resident pages: record with -s working_set:interval=1"
            return Report((self.by,), "change", none, self._complete, self._notes, more=more)
        first, last = self.moments[0], self.moments[-1]
        doubt = "" if all(moment.complete for moment in self.moments) else "; rows may hold bytes of an older owner"
        total = Change(Label("Total"), first.rows, last.rows).values
        del total["estimated"]
        return Report((self.by,), "change", self._answer(rows), f"{self._complete}{doubt}", self._notes, total, rows,
                      more=more)  # fmt: skip

    def _answer(self, rows: list[Change]) -> str:
        """`+9.4 MiB in 10.0 s (1.0 MiB/s), by first touch: parse_record leak.py:12`, or the rows with most of that."""
        seconds, change = self.seconds(), self.moments[-1].resident - self.moments[0].resident
        whole = f"{signed(change)} in {duration(seconds)}"
        whole += f" ({size(abs(change) / seconds)}/s)" if change else ""
        same = [row for row in rows if row["change"] * change > 0]
        if not same:
            return whole
        again = next((row["again"] for row in self.moments[-1].rows if row.whole == same[0].whole), 0)
        if freed := first_touched(name_of(same[0].label), again, same[0]["change"]):
            return f"{whole}, {freed}"
        whole += FIRST_TOUCH * (change > 0)
        if abs(same[0]["change"]) >= _MOSTLY * sum(abs(row["change"]) for row in same):
            return f"{whole}: {name_of(same[0].label)}"
        parts = ((name_of(row.label), row["change"], 0) for row in same)
        return f"{whole}: {most_of(parts, sum(row['change'] for row in same), signed)}"


def _before_the_exit(trace: Recorded, taken: list[Snapshot]) -> list[Snapshot]:
    """Without the snapshot of a command that was taken after it had ended: it has freed what it held."""
    info = trace.info
    at_exit = [at for at, one in enumerate(taken) if one.process[1] == info.final_snapshot]
    if info.exit_code is None or len(at_exit) < 2:
        return taken
    return [*taken[: at_exit[-1]], *taken[at_exit[-1] + 1 :]]


def _moment(of: Composition, rows: list[Row]) -> Sizes:
    resident, private = (sum(row[name] for row in rows) for name in ("resident", "private"))
    return Sizes(of.inputs.time_ns, resident, private, rows, of.complete)
