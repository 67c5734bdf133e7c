"""Reports: the rows of a trace by dimensions, one first line, and how complete they are; for every output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wstrace.analysis.arrival import REASONS
from wstrace.analysis.composition import Composition, Past
from wstrace.analysis.cube import ALWAYS, COUNTS, MEASURES, Cube
from wstrace.analysis.cube import shown as written
from wstrace.analysis.dimensions import FIRST_TOUCH, NAME_LIMIT, REUSED, Row, first_touched, most_of, name_of, rows_of
from wstrace.analysis.filter import Filter
from wstrace.analysis.inputs import Wanted
from wstrace.errors import UsageError
from wstrace.table import Recorded
from wstrace.text import estimates_note, json_safe, number, plural, printable, printable_words, size, unit_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.own import OwnRule
    from wstrace.notebook import Picture

_SENTENCE = 240
_FOLLOWS_OBJECTS = "what keeps memory, object by object: memray attach PID"
#: Fewer faults without a Python line are not worth a word: before its first frame, a process has 400.
_FEW_FAULTS = 500


@dataclass(slots=True)
class Report:
    """What a trace says at a moment.

    Attributes:
        by: the dimensions of the rows. lead: the measure of the first line.
        answer: the first line. completeness: the second one. notes: what the records lack, with what lifts that.
        total: measure -> its sum. rows: those with most of `lead` first.
        moment: in words, as `at the peak`; "" = no page is known.
        facts, ledger: those of the trace, for JSON. of: the pages; None = none is known.
        cube: has its cells; sums: measure -> its sum of each cell. more: further keys in JSON.
    """

    by: tuple[str, ...]
    lead: str
    answer: str
    completeness: str
    notes: list[str] = field(default_factory=list)
    total: dict[str, int] = field(default_factory=dict)
    rows: Sequence[Row] = field(default_factory=list)
    moment: str = ""
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    ledger: dict[str, Any] = field(default_factory=dict, repr=False)
    cube: Cube = field(default_factory=Cube, repr=False)
    of: Composition | None = field(default=None, repr=False)
    sums: dict[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    more: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def measures(self) -> list[str]:
        """The measures that have a column: those that any row has, and those that always have one."""
        return [
            name
            for name in MEASURES
            if name in self.total
            and name != "estimated"
            and (name in ALWAYS or self.total[name] or any(row[name] for row in self.rows))
        ]

    def picture(self) -> Picture:
        """The first two lines and the rows, for a notebook."""
        names, whole = self.measures, max(self.total.get(self.lead, 0), 1)
        rows = [(*(written(name, row[name]) for name in names), f"{row[self.lead] / whole:.1%}", row.label)
                for row in self.rows]  # fmt: skip
        return (
            [self.answer, self.completeness],
            [*(MEASURES[name] for name in names), "share", ", ".join(self.by)],
            rows,
        )

    def _repr_html_(self) -> str:
        from wstrace.notebook import shown

        return shown(self.picture)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        found = {
            "schema": 2,
            "answer": self.answer,
            "completeness": self.completeness,
            "notes": self.notes,
            "by": list(self.by),
            "at": self.moment,
            "total": self.total,
            "rows": [row.as_dict(self.by, self.total) for row in self.rows],
            "facts": self.facts,
            "ledger": self.ledger,
            **self.more,
        }
        return cast("dict[str, Any]", json_safe(found))


def report(
    trace: Recorded,
    by: Sequence[str] = ("line",),
    at: str | int = "",
    *,
    lead: str = "",
    chosen: Filter | None = None,
    rule: OwnRule | None = None,
) -> Report:
    """The report of a trace.

    Args:
        by: names of dimensions.
        at: `peak`, `exit`, `start`, the text of a mark, or a time in ns; "" = the peak of a launched command, else the
            last snapshot.
        lead: the measure that the first line and the order of rows are in; "" = resident bytes where pages are known,
            for a process that was attached to the growth, else faults.
        chosen: which faults and pages count; None = all.
        rule: decides which source files are the program's own.

    Raises:
        UsageError: there is no such dimension, measure, mark or kind of memory.
    """
    if lead and lead not in MEASURES:
        raise UsageError(f"--sort {lead}", f"known: {', '.join(MEASURES)}")
    chosen = chosen or Filter()
    moments: list[Wanted] = []
    fired = None
    if "recording" in trace.info.extra and not at and not chosen:  # a flight recorder's says first what happened
        from wstrace.analysis import recording  # which other traces need not import
        from wstrace.firing import Recording

        if fired := Recording.of(trace.info.extra):
            at = recording.moment_of(fired)
            moments.append((at, fired.pids))
    first = len(moments)
    attached = bool(trace.info.targets or trace.info.extra.get("cgroups")) and trace.info.exit_code is None
    moments.append((at or ("exit" if attached else "peak"), chosen.pids))
    if attached and not at:
        moments.append(("start", chosen.pids))
    past = Past(trace, moments, by=by, chosen=chosen, rule=rule)
    happened = recording.first_lines(Composition(trace, past=past), fired) if fired else []
    of, cube = None, past.cube
    sums = {name: cube.measure(name) for name in cube.sums}
    if len(past.inputs[first].runs["pages"]):
        of = Composition(trace, past=past, number=first)
        sums = of.sums
        if len(moments) > first + 1 and past.inputs[-1].time_ns < of.inputs.time_ns:
            before = Composition(trace, past=past, number=first + 1)
            now = np.append(sums["resident"], np.zeros(len(past.cube) - len(sums["resident"]), np.int64))
            sums = {**sums, "grown": now - before.sums["resident"]}
    if not lead:
        lead = "faults" if of is None else "grown" if "grown" in sums else "resident"
    lines = rows_of(past.labels("line"), sums, lead)
    total = {name: int(sums[name].sum()) for name in MEASURES if name in sums}
    answer, *further = [*happened, _answer(lead, total, lines, trace, of, chosen, past.seen)]
    return Report(
        tuple(by),
        lead,
        answer,
        completeness(trace, past, of, sums),
        [
            *further,
            *[_FOLLOWS_OBJECTS] * (REUSED in answer),
            *_nothing(chosen, total),
            *notes_of(trace),
        ],
        total,
        lines if tuple(by) == ("line",) else rows_of(past.labels(*by), sums, lead),
        "" if of is None else moment_words(of.inputs.moment),
        trace.info.to_dict(),
        trace.ledger.as_dict(),
        cube,
        of,
        sums,
    )


def moment_words(moment: str) -> str:
    """A moment, as a sentence has it."""
    return {"exit": "at the exit", "peak": "at the peak", "start": "at the first snapshot", "now": "now",
            "last snapshot": "at the last snapshot", "end": "at the end", "time": "at that time"}.get(
                moment, f"at {moment}")  # fmt: skip


def _answer(
    lead: str, total: dict[str, int], lines: list[Row], trace: Recorded, of: Composition | None, chosen: Filter,
    seen: int,
) -> str:  # fmt: skip
    """`249.2 MiB at the peak: 92.8 import pandas app.py:2, 61.3 load app.py:4, ...`; seen: faults before the filter."""
    whole = total.get(lead, 0)
    # growth and shrinking may cancel each other out
    largest = max(abs(whole), lines[0][lead] if lines else 0)
    unit, divisor = unit_of(largest) if lead not in COUNTS and largest >= 1024 else ("", 1.0)

    def amount(n: float) -> str:
        return f"{n / divisor:,.1f}" if unit else written(lead, n)

    head = f"{amount(whole)} {unit}".rstrip()
    if lead == "grown":
        seconds = (trace.info.ended_ns - trace.info.started_ns) / 1e9
        head = f"{'+' if whole > 0 else ''}{head}" + (f" in {seconds:,.1f} s" if seconds > 0 else "")
    elif lead == "resident" and of is not None:
        peak = of.inputs.of_peak if of.inputs.moment != "exit" and not chosen else None
        most = len(of.run) * of.page_size if chosen else peak
        if most and whole < 0.995 * most and of.processes == 1:
            head = (
                f"{amount(whole)} of {amount(most)} {unit}"
                if unit_of(most)[0] == unit
                else f"{size(whole)} of {size(most)}"
            )
        elif of.processes > 1 and (_unseen(of) or of.rss < 0.995 * (peak or 0)):
            head = f"at least {head}"
        head += f" {printable(moment_words(of.inputs.moment), NAME_LIMIT)}"
    elif lead == "faults":
        of_all = f"{number(whole)} of {plural(seen, 'fault')}" if chosen else plural(whole, "fault")
        head = f"{_peak(trace) if of is None and not chosen else ''}{of_all}"
    else:
        head += f" {MEASURES[lead]}"
    if of is not None and lead in ("resident", "grown") and of.processes > 1:
        head += f" in {number(of.processes)} processes, shared memory divided"
    if chosen:
        head += f" ({printable(str(chosen), NAME_LIMIT)})"
    if lead == "faults":
        head += f", {number(total.get('from_disk', 0))} from disk"
    known = [row for row in lines if not row.of("reason")] or lines
    parts = ((name_of(row.label), row[lead], row["estimated"] * (lead == "resident")) for row in known)
    named = most_of(parts, largest, amount)
    ended = f"; killed by {printable(trace.info.exit_signal, NAME_LIMIT)}" if trace.info.exit_signal else ""
    if (
        lead == "grown"
        and named
        and (freed := first_touched(name_of(known[0].label), known[0]["again"], known[0][lead]))
    ):
        return f"{head}, {freed}{ended}"
    touched = FIRST_TOUCH * (lead == "grown" and whole > 0)
    return f"{head}{touched}: {named}{ended}" if named else head


def why_no_pages(trace: Recorded) -> str:
    """Why no page is known to be there, and what lifts it."""
    if trace.info.incomplete:
        return "no resident pages are in what is left of the trace"
    return "no resident pages are in the trace: record with -s peak_snapshot, which reads them while it runs"


def sentences(of: Composition, report: Report) -> list[str]:
    """What a picture or profile of these pages and faults shows, and what it cannot, for files that hold no report."""
    lines = [report.answer, report.completeness, *report.notes]
    lines += [note] if (note := estimates_note(of.past.sampled)) else []
    lines += [] if of.rss else [why_no_pages(of.trace)]
    if not of.inputs.names.tree.ids().size:
        lines.append("no stacks are in the trace (-s page_faults:stacks=python)")
    return lines


def _peak(trace: Recorded) -> str:
    """`peak at least 64.0 MiB resident; `, of the largest process, as the system says it; "" = it does not."""
    usage = trace.info.usage
    if not usage.peak_resident_bytes:
        return ""
    return f"peak {'at least ' * usage.peak_sampled}{size(usage.peak_resident_bytes)} resident; "


def _unseen(of: Composition) -> int:
    """How many processes have no snapshot at the moment.

    The peak of many processes may have come after the last snapshot, as those of hundreds cannot be taken often: then
    it was of more than twice as many.
    """
    snapshot = of.info.extra.get("peak_snapshot")
    most = snapshot.get("processes") if isinstance(snapshot, dict) and of.inputs.of_peak else None
    crowd = most - of.processes if isinstance(most, int) and most > 2 * of.processes else 0
    return max(len(of.inputs.unseen), crowd)


def _nothing(chosen: Filter, total: dict[str, int]) -> list[str]:
    """Why a filter has left nothing; [] = it has left something, or nothing more is known of it."""
    hint = "" if any(total.values()) else chosen.nearest_file
    return [f"no page lies in {printable(chosen.file, NAME_LIMIT)}: {printable(hint)}"] * bool(hint)


def notes_of(trace: Recorded) -> list[str]:
    """What the records lack, with what lifts that; and what was lost."""
    return [*trace.info.obstacles, *(text for text, _ in trace.ledger.sentences())]


def completeness(trace: Recorded, past: Past, of: Composition | None, sums: dict[str, NDArray[np.int64]]) -> str:
    """`complete: 27,490 faults, 0 lost`, or what is missing."""
    lost, more = trace.ledger.lost, " known to be" * bool(trace.ledger.get("file_cut"))
    usage = trace.info.usage.faults
    hidden = (
        f"{number(max(usage - trace.ledger.get('counted'), 0))} " if usage else " "
    )  # a fact of every exec, no lack
    words = [printable_words(note, _SENTENCE) for note in trace.info.notes if not note.startswith(hidden)]
    if trace.info.incomplete:
        words.append(printable_words(trace.info.incomplete, _SENTENCE))
    if trace.info.sampled > 1:
        words.append(f"one of {trace.info.sampled} faults was recorded")
    faults, samples = (int(sums[name].sum()) if name in sums else 0 for name in ("faults", "samples"))
    if samples:
        words.append(f"partly estimated from {plural(samples, 'sample')}")
    few = max(_FEW_FAULTS, trace.ledger.get("recorded", "page_fault") // 20)
    for stage, reason, n in trace.ledger.rows():
        if stage == "without_stack" and n > few:
            words.append(f"{number(n)} without their Python line ({reason})")
    if of is not None:
        if past.assumed:
            words.append(f"not recorded: what was {', '.join(past.assumed)}")
        if unseen := _unseen(of):
            words.append(f"{number(unseen)} process{'es' * (unseen > 1)} without a snapshot")
        if swapped := of.inputs.swapped:
            words.append(f"{size(swapped * of.page_size)} swapped out")
    head = "; ".join([f"{plural(faults, 'fault')}, {number(lost)}{more} lost", *words])
    head = head if words or lost else f"complete: {head}"
    if of is None:
        return head
    reasons, resident = past.cube.key("reason"), sums.get("resident", np.zeros(0, np.int64))
    unknown = {REASONS[n]: int(resident[reasons[: len(resident)] == n].sum()) for n in (1, 2, 3)}
    parts = [f"{size(n)} {why}" for why, n in unknown.items() if n]
    return f"{head}; owner not known: {', '.join(parts)}" if parts else head
