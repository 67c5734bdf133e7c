"""Reports: the rows of a trace by what was asked for, one first line, and how complete they are; for every output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from wstrace.analysis.arrival import REASONS
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.inputs import Asked
from wstrace.analysis.blame.past import Past
from wstrace.analysis.blame.recording import first_lines, moment_of, pids_of
from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.sums import Sums, sums_at
from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import Label, dimensions_of, labels_of
from wstrace.analysis.filter import Filter, kind_numbers
from wstrace.analysis.measures import measures, shown
from wstrace.analysis.moments import Recorded
from wstrace.analysis.names import names_of
from wstrace.analysis.segments import distinct
from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.firing import Recording
from wstrace.schema import CALL_SITE, MAPPING, PAGE_FAULT, PROCESS, RESIDENT_PAGES
from wstrace.text import json_safe, number, plural, printable, printable_words, size, unit_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.own import OwnRule

#: Rows that the first line names, the least share of one, and the most characters of its label.
_NAMED, _SHARE, NAME_LIMIT = 3, 0.03, 60
#: The columns of faults that every cube reads.
_FAULT = ("time_ns", "pid", "host", "tid", "pc", "flags", "mapping", "pc_mapping", "file", "pc_file", "kind", "stack",
          "stack_how", "native_stack", "native_how", "weight", "sampled", "cgroup")  # fmt: skip
#: The key of a row that a filter left out.
_LEFT_OUT = np.uint32(0xFFFF_FFFF)
_SENTENCE = 240
#: Fewer faults without a Python line are not worth a word: before its first frame, a process has 400.
_FEW_FAULTS = 500


class Row(NamedTuple):
    """A row of a report.

    Attributes:
        labels: one for each dimension that rows are by.
        values: measure -> its sum.
    """

    labels: tuple[Label, ...]
    values: dict[str, int]

    @property
    def label(self) -> str:
        """The texts of its labels."""
        return "  ".join(one.text for one in self.labels)

    def of(self, name: str) -> str:
        """Where its labels tell one: the file, function or package."""
        return next((found for one in self.labels if (found := getattr(one, name))), "")

    @property
    def line(self) -> int:
        """The line in its file, from 1; 0 = not known."""
        return next((one.line for one in self.labels if one.line), 0)

    @property
    def known(self) -> bool:
        """Whether the owner is known."""
        return not any(one.reason for one in self.labels)


def rows(cube: Cube, by: Sequence[str], *, sort: str = "faults", cells: NDArray[np.bool_] | None = None) -> list[Row]:
    """The rows by these dimensions, those with most of a measure first, equal ones by label.

    Args:
        cube: what is summed. by: names of dimensions. sort: the measure. cells: those that count; None = all.
    """
    named = [labels_of(one, cube) for one in dimensions_of(by).values()]
    chosen = np.flatnonzero(np.ones(len(cube), np.bool_) if cells is None else cells)
    first, of = distinct(*(one.of[chosen] for one in named))
    sums = {name: np.bincount(of, cube.measure(name)[chosen], len(first)).tolist() for name in cube.sums}
    keys = [one.of[chosen[first]].tolist() for one in named]
    found = []
    for at in range(len(first)):
        values = {name: round(column[at]) for name, column in sums.items()}
        if any(values.values()):
            labels = tuple(one.labels[key[at]] for one, key in zip(named, keys, strict=True))
            found.append(Row(labels, values))
    return sorted(found, key=lambda row: (-row.values.get(sort, 0), -row.values.get("faults", 0), row.label))


@dataclass(slots=True)
class Report:
    """What a trace says at a moment.

    Attributes:
        by: the dimensions of the rows. lead: the measure of the first line.
        answer: the first line. completeness: the second one. notes: what the records lack, with what lifts that.
        total: measure -> its sum. rows: those with most of `lead` first.
        moment: in words, as `at the peak`; "" = no page is known.
        facts, ledger: those of the trace, for JSON. cube: what it is summed from.
    """

    by: tuple[str, ...]
    lead: str
    answer: str
    completeness: str
    notes: list[str] = field(default_factory=list)
    total: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    moment: str = ""
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    ledger: dict[str, Any] = field(default_factory=dict, repr=False)
    cube: Cube = field(default_factory=Cube, repr=False)

    def by_others(self, by: Sequence[str]) -> Report:
        """The same by other dimensions, of those that every cube has the keys for."""
        return replace(self, by=tuple(by), rows=rows(self.cube, by, sort=self.lead))

    @property
    def measures(self) -> list[str]:
        """The measures that have a column: those that any row has, and those that always have one."""
        known = measures()
        return [
            name
            for name in known
            if name in self.total
            and name != "estimated"
            and (known[name].always or self.total[name] or any(row.values.get(name) for row in self.rows))
        ]

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
            "rows": [self._row(row) for row in self.rows],
            "facts": self.facts,
            "ledger": self.ledger,
        }
        return cast("dict[str, Any]", json_safe(found))

    def _row(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"label": row.label}
        found |= {name: row.of(name) for name in ("file", "function", "package", "reason")}
        # `load`, not `load app.py`, is the function of a row by function
        found |= {name: getattr(label, name, "") or label.text for name, label in zip(self.by, row.labels, strict=True)}
        return found | {"line": row.line} | {name: row.values.get(name, 0) for name in self.total}


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
    chosen = chosen or Filter()
    found = dimensions_of(by)
    if lead and lead not in measures():
        raise UsageError(f"--sort {lead}", f"known: {', '.join(measures())}")
    moments: list[Asked] = []
    if not at and Recording.of(trace.info.extra) is not None:
        at = moment_of(trace.info)
        moments.append((at, pids_of(trace.info)))
    noted = len(moments)
    attached = bool(trace.info.targets) and trace.info.exit_code is None
    cube = Cube(found.values(), names=names_of(trace.info, trace.strings, rule), limit=1 << 22)
    cells, seen = _read(trace, cube, chosen)
    if next(iter(trace.batches(RESIDENT_PAGES.name, ("pages",))), None) is not None:
        moments.append((at or ("exit" if attached else "peak"), chosen.pids))
        if attached and not at:
            moments.append(("start", chosen.pids))
    past = Past(trace, moments) if moments else None
    first = first_lines(Blame(Composition(trace, past=past))) if noted else []
    pages: _Pages | None = None
    if len(moments) > noted:
        of = Composition(trace, past=past, number=noted)
        if len(of.run):
            pages = _Pages(of, cube, cells, chosen)
            start = Composition(trace, past=past, number=noted + 1) if len(moments) > noted + 1 else of
            before = _Pages(start, cube, cells, chosen) if start.inputs.time_ns < of.inputs.time_ns else None
            cube.count(pages.keys, pages.amounts)
            _add_arrivals(cube, of, cells)
            if before is not None:
                cube.count(pages.keys, {"grown": pages.resident})
                cube.count(before.keys, {"grown": -before.resident})
    names = [*cube.sums]
    if not lead:
        lead = "faults" if pages is None else "grown" if "grown" in cube.sums else "resident"
    table = rows(cube, by, sort=lead)
    lines = table if tuple(by) == ("line",) else rows(cube, ("line",), sort=lead)
    total = {name: cube.total(name) for name in measures() if name in names}
    # a recording of a flight recorder says first what happened
    answer, *further = [*first, _answer(lead, total, lines, trace, pages, chosen, seen)]
    return Report(
        tuple(by),
        lead,
        answer,
        _completeness(trace, total, cube, pages),
        [*further, *_nothing(chosen, total), *trace.info.obstacles, *(text for text, _ in trace.ledger.sentences())],
        total,
        table,
        "" if pages is None else pages.moment,
        trace.info.to_dict(),
        trace.ledger.as_dict(),
        cube,
    )


def _read(trace: Recorded, cube: Cube, chosen: Filter) -> tuple[NDArray[np.uint32], int]:
    """Fills a cube with the faults of a trace; returns the cell of each, as they were recorded, and how many it has."""
    for stream in (CALL_SITE, MAPPING, PROCESS):
        for batch in trace.batches(stream.name):
            cube.add(batch)
    chosen.origin_ns = chosen.origin_ns or trace.info.started_ns
    more = [key for key in cube.keys if PAGE_FAULT.column(key) is not None]
    va = ["va"] if cube.dimensions and any(one.code is not None for one in cube.dimensions) else []
    cells, seen = [np.zeros(0, np.uint32)], 0
    for batch in trace.batches(PAGE_FAULT.name, tuple(dict.fromkeys((*_FAULT, *more, *va)))):
        if "pid" not in batch or not len(batch):  # of which process these rows are is not known
            continue
        seen += int(np.maximum(each, 1).sum()) if (each := batch.columns.get("sampled")) is not None else len(batch)
        keep = chosen.chosen(batch)
        of = np.full(len(batch), _LEFT_OUT, np.uint32)
        if keep.any():
            of[keep] = cube.faults(cube.names.recoded(batch if keep.all() else batch.take(keep)))
        cells.append(of)
    return np.concatenate(cells), seen


class _Pages:
    """The resident pages of a moment as cells for a cube, with the keys of their owners.

    Attributes:
        moment: in words. in_all: bytes before the filter. sums: what the processes have together.
        divided: whether the bytes of shared pages are divided among the processes.
        keys, amounts: of each cell, for Cube.count(). resident: bytes of each cell.
    """

    def __init__(self, of: Composition, cube: Cube, cells: NDArray[np.uint32], chosen: Filter) -> None:
        self.of = of
        runs, inputs = of.inputs.runs, of.inputs
        owner, reason, estimated = of.owner, of.found.reason, of.found.estimated
        owner_cell = np.zeros(len(owner), np.uint32)
        owner_cell[owner >= 0] = cells[owner[owner >= 0]]
        keep = owner_cell != _LEFT_OUT
        if chosen.of_faults:
            keep &= owner >= 0
        kind = runs["kind"]
        of_runs = np.ones(len(kind), np.bool_)
        if chosen.kinds:
            of_runs &= np.isin(kind, kind_numbers(chosen.kinds))
        if chosen.file:
            of_runs &= chosen.files(runs["file"], of.strings)
        keep &= of_runs[of.run]
        alike, of_run = distinct(runs["space"], kind, runs["file"], of.private, runs["shares"])
        columns: list[NDArray[Any]] = [of_run[of.run], owner_cell, reason, estimated]
        copied = np.zeros(len(owner), np.bool_)
        copied[of.loaded] = True
        columns.append(copied)
        of_pages = [one for one in cube.dimensions if one.code is not None and not one.owner]
        columns += [one.code(_addresses(of), cube.names) for one in of_pages if one.code is not None]
        if not keep.all():
            columns = [column[keep] for column in columns]
        first, which = distinct(*columns)
        run = alike[columns[0][first]]
        pages = np.bincount(which, minlength=len(first)).astype(np.int64) * of.page_size
        cell = columns[1][first]
        keys: dict[str, Any] = {name: cube.key(name)[cell] for name in cube.keys}
        numbers = map(cube.names.processes.number, inputs.hosts, inputs.pids.tolist())
        keys["process"] = np.fromiter(numbers, np.uint64, len(inputs.pids))[runs["space"][run]]
        keys["file"], keys["kind"] = runs["file"][run], kind[run]
        keys["cgroup"] = inputs.cgroups[runs["space"][run]]
        keys["reason"] = columns[2][first]
        keys |= {one.keys[0]: column[first] for one, column in zip(of_pages, columns[5:], strict=True)}
        private = np.where(of.private[run], pages, 0)
        pss = None if of.pss is None else pages * of.pss[run] / of.page_size
        self.moment, self.in_all = moment_words(inputs.moment), len(owner) * of.page_size
        spaces = np.unique(runs["space"])
        rss = int(pages.sum())
        whole = round(float(pss.sum())) if pss is not None else None
        self.sums: Sums = sums_at(of.info, inputs.pids[spaces].tolist(), runs["time"], rss, whole,
                                  all_kinds=not chosen, at_peak=inputs.moment == "peak")  # fmt: skip
        divided = _divided(pages, private, pss, self.sums) if len(spaces) > 1 else None
        self.divided, resident = divided is not None, pages if divided is None else divided
        self.keys, self.resident = keys, resident
        self.amounts: dict[str, Any] = {"resident": resident, "private": private, "shared": pages - private,
                                        "copied": np.where(columns[4][first], pages, 0), "brought": pages,
                                        "estimated": np.where(columns[3][first], resident, 0)}  # fmt: skip
        if len(spaces) > 1:
            self.amounts["rss"] = pages
            if pss is not None:
                self.amounts["pss"] = np.round(pss).astype(np.int64)


def _add_arrivals(cube: Cube, of: Composition, cells: NDArray[np.uint32]) -> None:
    """Adds to the cells of faults the bytes that they brought and that are gone, brought again, or wrote to."""
    faults = of.history.faults
    each = of.inputs.faults.get("sampled")
    for name, found in (
        ("brought", np.flatnonzero(of.gone_faults)),
        ("again", faults.order[faults.again()]),
        ("written", faults.order[faults.written()]),
    ):
        chosen = found[cells[found] != _LEFT_OUT]
        amounts = np.full(len(chosen), of.page_size) if each is None else each[chosen].astype(np.int64) * of.page_size
        cube.add_to(cells[chosen], name, amounts)


def _addresses(of: Composition) -> Batch:
    """The address of each resident page, as the faults on them have it."""
    runs = of.inputs.runs
    number = np.arange(len(of.run)) - of.run.searchsorted(np.arange(len(runs["start"])))[of.run]
    columns = {name: runs[name][of.run] for name in ("mapping", "file")}
    columns["va"] = runs["start"][of.run] + number.astype(np.uint64) * np.uint64(of.page_size)
    return Batch(PAGE_FAULT, columns, strings=of.strings)


def _divided(
    pages: NDArray[np.int64], private: NDArray[np.int64], pss: NDArray[np.float64] | None, sums: Sums
) -> NDArray[np.int64] | None:
    """The bytes of cells of several processes, in which each physical page counts once; None = that is not known.

    Where the distinct pages were counted, the shared ones are divided among these processes alone; else among all
    processes that have them.
    """
    shared = (pages if pss is None else pss) - private
    once = sums.distinct if sums.distinct is not None else sums.pss
    if once is None:
        return None
    factor = max((once - private.sum()) / max(shared.sum(), 1), 0.0)
    found: NDArray[np.int64] = private + np.minimum(np.round(shared * factor), pages - private).astype(np.int64)
    return found


# -- words -------------------------------------------------------------------------------------------------------


def moment_words(moment: str) -> str:
    """A moment, as a sentence has it."""
    return {"exit": "at the exit", "peak": "at the peak", "start": "at the start", "now": "now",
            "last look": "at the last snapshot", "end": "at the end", "time": "at that time"}.get(
                moment, f"at {moment}")  # fmt: skip


def name_of(label: str) -> str:
    """A label as a sentence has it."""
    if label.startswith(("(package ", "(standard ")):
        label = label[1:].removesuffix(")")
    return printable(label, NAME_LIMIT)


def _answer(
    lead: str, total: dict[str, int], lines: list[Row], trace: Recorded, pages: _Pages | None, chosen: Filter, seen: int
) -> str:
    """`249.2 MiB at the peak: 92.8 import pandas app.py:2, 61.3 load app.py:4, ...`; seen: faults before the filter."""
    whole = total.get(lead, 0)
    measure = measures()[lead]
    unit, divisor = unit_of(whole) if measure.unit == "bytes" else ("", 1.0)

    def amount(n: float) -> str:
        return f"{n / divisor:,.1f}" if unit else shown(measure, n)

    head = f"{amount(whole)} {unit}".rstrip()
    if lead == "grown":
        seconds = (trace.info.ended_ns - trace.info.started_ns) / 1e9
        head = f"{'+' if whole >= 0 else ''}{head}" + (f" in {seconds:,.1f} s" if seconds > 0 else "")
    elif lead == "resident" and pages is not None:
        peak = pages.of.inputs.of_peak if pages.of.inputs.moment != "exit" and not chosen else None
        of = pages.in_all if chosen else peak
        if of and whole < 0.995 * of and pages.sums.processes == 1:
            head = f"{amount(whole)} of {amount(of)} {unit}"
        head += f" {printable(pages.moment, NAME_LIMIT)}"
    elif lead == "faults":
        of_all = f"{number(whole)} of {plural(seen, 'fault')}" if chosen else plural(whole, "fault")
        head = f"{_peak(trace) if pages is None and not chosen else ''}{of_all}"
    else:
        head += f" {measure.title}"
    if pages is not None and lead in ("resident", "grown") and pages.sums.processes > 1:
        divided = ", shared memory divided" if pages.divided else ", shared memory counted for each"
        head += f" in {number(pages.sums.processes)} processes{divided}"
    if chosen:
        head += f" ({printable(str(chosen), NAME_LIMIT)})"
    if lead == "faults":
        head += f", {number(total.get('from_disk', 0))} from disk"
    big = [row for row in lines if row.values.get(lead, 0) >= max(_SHARE * whole, 1)]
    named = ([row for row in big if row.known] or big)[:_NAMED]
    if not named:
        return head
    parts = []
    for row in named:
        n = row.values[lead]
        mark = "~" if lead == "resident" and amount(n) != amount(n - row.values.get("estimated", 0)) else ""
        parts.append(f"{mark}{amount(n)} {name_of(row.label)}")
    more = ", ..." if sum(row.values[lead] for row in named) < whole else ""
    ended = f"; killed by {printable(trace.info.exit_signal, NAME_LIMIT)}" if trace.info.exit_signal else ""
    return f"{head}: {', '.join(parts)}{more}{ended}"


def _peak(trace: Recorded) -> str:
    """`peak at least 64.0 MiB resident; `, of the largest process, as the system says it; "" = it does not."""
    usage = trace.info.usage
    if not usage.peak_resident_bytes:
        return ""
    return f"peak {'at least ' * usage.peak_sampled}{size(usage.peak_resident_bytes)} resident; "


def _nothing(chosen: Filter, total: dict[str, int]) -> list[str]:
    """Why a filter has left nothing; [] = it has left something, or nothing more is known of it."""
    if any(total.values()):
        return []
    if hint := chosen.nearest_file:
        return [f"no page lies in {printable(chosen.file, NAME_LIMIT)}: {printable(hint)}"]
    return [chosen.other_numbers] * bool(chosen.other_numbers)


def _completeness(trace: Recorded, total: dict[str, int], cube: Cube, pages: _Pages | None) -> str:
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
    if total.get("samples"):
        words.append(f"{plural(total['samples'], 'sample')} stand for the rest")
    few = max(_FEW_FAULTS, trace.ledger.get("recorded", "page_fault") // 20)
    for stage, reason, n in trace.ledger.rows():
        if stage == "without_stack" and n > few:
            words.append(f"{number(n)} without their Python line ({reason})")
    if pages is not None:
        if pages.of.assumed:
            words.append(f"not recorded: what was {', '.join(pages.of.assumed)}")
        unseen = len(pages.of.inputs.unseen)
        if unseen:
            words.append(f"{number(unseen)} process{'es' * (unseen > 1)} without a snapshot")
        if swapped := pages.of.inputs.swapped:
            words.append(f"{size(swapped * pages.of.page_size)} swapped out")
    head = "; ".join([f"{plural(total.get('faults', 0), 'fault')}, {number(lost)}{more} lost", *words])
    head = head if words or lost else f"complete: {head}"
    if pages is None:
        return head
    reasons = cube.key("reason")
    unknown = {REASONS[n]: int(cube.measure("resident")[reasons == n].sum()) for n in (1, 2, 3)}
    parts = [f"{size(n)} {why}" for why, n in unknown.items() if n]
    return f"{head}; owner not known: {', '.join(parts)}" if parts else head
