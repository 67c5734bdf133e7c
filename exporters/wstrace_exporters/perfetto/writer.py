"""Writes a trace for Perfetto: resident bytes by owner as counters, faults as instants, stacks, marks and spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import Frame, to_the_root
from wstrace.analysis.losses import page_of
from wstrace.analysis.moments import marks_of
from wstrace.analysis.report import Report, sentences
from wstrace.analysis.report import report as report_of
from wstrace.analysis.tally import combinations
from wstrace.analysis.timeline import Span, drawn, spans_of
from wstrace.formats import Rows
from wstrace.protobuf import number as field
from wstrace.schema import FAULT_MAJOR
from wstrace.text import base_name, number
from wstrace.trace import Trace
from wstrace_exporters.perfetto.packets import FRAMES, FUNCTIONS, MAPPINGS, PATHS, Packets

#: Frames of a stack, from the innermost one: what Perfetto draws of a deeper one is cut there.
DEEPEST = 512


class Stacks:
    """Gives the frames of stacks out as rows. packets: has their tables."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._stacks: dict[Label, list[int]] = {}

    def of(self, label: Label) -> list[int]:
        """The frames of a stack, outermost first, by its label."""
        if label not in self._stacks:
            frames = to_the_root(label.frames)[:DEEPEST]
            self._stacks[label] = [self._row(frame) for frame in reversed(frames)]
        return self._stacks[label]

    def _row(self, frame: Frame) -> int:
        name, module = str(frame), frame.module if frame.kind == "native" else f"[{frame.kind or 'unknown'}]"

        def content() -> bytes:
            path = self._packets.name(PATHS, module)
            mapping = self._packets.row(MAPPINGS, module, lambda: field(7, path))
            return field(2, self._packets.name(FUNCTIONS, name)) + field(3, mapping) + field(4, frame.offset)

        return self._packets.row(FRAMES, (name, module, frame.offset), content)


#: The most marks that are shown, and the most spans, the longest ones.
MARKS = 10_000
SPANS = 20_000


def write(trace: Trace, file: IO[bytes], *, at: str = "peak", most: int = 20_000) -> Rows:
    """Writes a trace for Perfetto; returns the number of faults that it shows.

    file: the output. at: the moment of the resident pages that the counters show: peak, exit, start or the text of a
    mark. most: the faults that are shown at most; of more, all from disk and a sample of the others. Raises UsageError:
    there is no such mark.
    """
    report = report_of(trace, at=at)
    of = report.of or Composition(trace, at)  # without pages: the faults alone
    times = of.inputs.faults["time_ns"]
    spans = spans_of(trace)
    begin = min(trace.begin_ns, int(times.min(initial=trace.begin_ns)), *(one.begin_ns for one in spans[:1]))
    packets = Packets(file, begin, trace.info.clock.wall(begin))
    shown = chosen(of.inputs.faults["flags"], max(most, 0))
    about = packets.track("wstrace")
    for sentence in _about(of, report, len(shown)):
        packets.instant(begin, about, sentence)
    _marks(trace, packets, max(trace.info.ended_ns, int(times.max(initial=0))))
    tracks, names = {}, of.inputs.names
    roles = names.of_processes.roles(names.processes.pid)
    for space in np.unique(np.concatenate((of.inputs.faults["space"], of.column("space")))).tolist():
        role = roles.get(int(of.inputs.processes[space]))
        name = of.program_of(space) + (f", {role}" if role else "")
        tracks[space] = packets.process(int(of.inputs.pids[space]), name)
    _spans(spans, packets, {int(of.inputs.pids[space]): track for space, track in tracks.items()})
    for space, name, moments, values in counters(of):
        track = packets.counter(name, tracks.get(space, 0))
        packets.count(begin, track, 0)
        for time, value in zip(moments.tolist(), values.tolist(), strict=True):
            packets.count(time, track, value)
    _faults(of, packets, tracks, shown)
    faults = len(of.fault_cells)
    left_out = f"{_shown(len(shown), of)}, those from disk first; --option most={faults} shows all"
    return Rows(len(shown), left_out if len(shown) < faults else "")


def chosen(flags: NDArray[np.uint8], most: int) -> NDArray[np.intp]:
    """The faults that are shown: those from disk first, and then evenly many of the others."""
    from_disk = (flags & FAULT_MAJOR) != 0
    found = np.zeros(0, np.intp)
    for rows in (np.flatnonzero(from_disk), np.flatnonzero(~from_disk)):
        n = min(len(rows), most - len(found))
        found = np.append(found, rows[np.linspace(0, len(rows) - 1, n).astype(np.intp)] if n else rows[:0])
    return np.sort(found)


def _about(of: Composition, report: Report, shown: int) -> list[str]:
    """What the picture shows, and what it cannot."""
    found = [*sentences(of, report), _shown(shown, of)]
    if not of.rss:
        found.append("the counters are of what was brought")
    if "until" in of.inputs.faults:
        found.append("faults have no times of their own: each stands at the begin of the window in which it was read")
    return found


def _shown(shown: int, of: Composition) -> str:
    recorded = " recorded" * (of.past.sampled > 1)
    return f"{number(shown)} of {number(len(of.fault_cells))}{recorded} faults are shown"


def _marks(trace: Trace, packets: Packets, end_ns: int) -> None:
    """Each mark as a slice up to the next one."""
    found = marks_of(trace)
    track = packets.track("marks") if found else 0
    for at, (time, text) in enumerate(found[:MARKS]):
        until = found[at + 1][0] if at + 1 < len(found) else max(end_ns, time)
        packets.slice(time, until, track, text, "mark")


def _spans(every: list[Span], packets: Packets, tracks: dict[int, int]) -> None:
    """The spans as slices: a track for each thread, and more where they overlap; tracks: by process."""
    if len(every) > SPANS:
        packets.instant(every[0].begin_ns, packets.track("spans"),
                        f"the longest {number(SPANS)} of {number(len(every))} spans are shown")  # fmt: skip
    tracks_of: dict[tuple[int, int, int], int] = {}
    for one, row, _ in drawn(every, SPANS):
        key = one.pid, one.tid, row
        if key not in tracks_of:
            tracks_of[key] = packets.track(f"spans of thread {one.tid}", parent=tracks.get(one.pid, 0))
        packets.slice(one.begin_ns, one.end_ns, tracks_of[key], one.name + " (still open)" * one.open, "span")


def _faults(of: Composition, packets: Packets, tracks: dict[int, int], shown: NDArray[np.intp]) -> None:
    """The faults as instants of their threads, and their stacks."""
    inputs = of.inputs
    page = page_of(inputs.faults["key"]) * np.uint64(of.page_size)
    (file, files), (line, lines), (stack, stacks) = map(of.past.labels, ("file", "line", "stack"))
    cells = of.fault_cells
    frames = Stacks(packets) if inputs.names.tree.ids().size else None
    threads: dict[tuple[int, int], int] = {}
    given = (inputs.faults["time_ns"], inputs.faults["space"], inputs.faults["tid"], inputs.faults["flags"], page,
             file[cells], line[cells], stack[cells])  # fmt: skip
    each = inputs.faults.get("sampled")
    so_far = shown + 1 if each is None else np.cumsum(each, dtype=np.int64)[shown]
    columns = (so_far.tolist(), *(column[shown].tolist() for column in given))
    for count, time, space, tid, flags, address, page_file, by, leaf in zip(*columns, strict=True):
        pid = int(inputs.pids[space])
        if (space, tid) not in threads:
            name = inputs.names.name(int(inputs.processes[space]), tid)
            threads[space, tid] = packets.thread(pid, tid, name, tracks[space])
        arguments = packets.address("page", address) + packets.text("by", lines[by][0].text)
        category = "from disk" if flags & FAULT_MAJOR else "fault"
        packets.instant(time, threads[space, tid], base_name(files[page_file][0].text), category, arguments)
        if frames is not None:
            packets.sample(time, pid, tid, frames.of(stacks[leaf][0]), count)


#: The owners with counters of their own, over all processes, and the most steps of a counter.
OWNERS, STEPS = 20, 1000


def counters(of: Composition) -> Iterator[tuple[int, str, NDArray[np.uint64], NDArray[np.int64]]]:
    """(space, name, times, bytes) of the largest owners, and of all others with the space -1.

    A page of the counted snapshot counts from the fault that brought it; one without a known fault, from the snapshot:
    the last values sum to what is resident. Without a snapshot it is what was brought.
    """
    faults = of.history.faults
    each = None
    cells = of.page_cells if of.rss else of.fault_cells
    labels = of.past.labels("line")
    label, rows = labels.of[cells], labels.labels
    if of.rss:
        verb = "resident"
        space, first = of.column("space"), of.found.fault
        time = np.where(first >= 0, faults.time[first] if len(faults) else np.uint64(0), of.column("time"))
    else:
        verb = "brought"
        brought = faults.order[np.flatnonzero(faults.brings)]
        label, space, time = (column[brought] for column in (label, of.inputs.faults["space"],
                                                             of.inputs.faults["time_ns"]))  # fmt: skip
        each = None if of.past.sampled == 1 else of.inputs.faults["sampled"][brought]
    some, which = combinations(space, label)
    largest = np.argsort(-np.bincount(which, minlength=len(some)), kind="stable")[:OWNERS]
    number = np.full(len(some), len(largest))
    number[largest] = np.arange(len(largest))
    owner = number[which]
    order = np.lexsort((time, owner))
    bounds = owner[order].searchsorted(np.arange(len(largest) + 2))
    for at, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if begin == end:
            continue
        mine = order[begin:end]
        times, values = steps(time[mine], of.page_size, None if each is None else each[mine])
        if at < len(largest):
            row = some[largest[at]]
            yield int(space[row]), f"{verb}: {rows[label[row]][0].text}", times, values
        else:
            yield -1, f"{verb}: (all others)", times, values


def steps(
    times: NDArray[np.uint64], size: int, each: NDArray[np.uint32] | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The times, ascending, at which a sum grows by `size` each, as at most STEPS times, and the sum at each.

    each: by how many times the size it grows, where that is not one.
    """
    width = max(int(times[-1] - times[0]) // (STEPS - 1), 1)
    bins = (times - times[0]) // np.uint64(width)
    last = np.flatnonzero(np.append(bins[1:] != bins[:-1], np.True_))
    return times[last], (last + 1 if each is None else np.cumsum(each, dtype=np.int64)[last]) * size
