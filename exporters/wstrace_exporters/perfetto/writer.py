"""Writes a trace for Perfetto: resident bytes by owner as counters, faults as instants, stacks, marks and spans."""

from __future__ import annotations

from typing import IO

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.words import first_lines
from wstrace.analysis.losses import page_of
from wstrace.analysis.spans import Span, places, spans_of
from wstrace.formats import Rows
from wstrace.schema import FAULT_MAJOR, MARK
from wstrace.text import base_name, estimates_note, number
from wstrace.trace import Trace
from wstrace_exporters.perfetto.counters import counters
from wstrace_exporters.perfetto.packets import Packets
from wstrace_exporters.perfetto.stacks import Stacks

#: The most marks that are shown, and the most spans, the longest ones.
MARKS = 10_000
SPANS = 20_000


def write(trace: Trace, file: IO[bytes], *, at: str = "peak", most: int = 20_000) -> Rows:
    """Writes a trace for Perfetto; returns the number of faults that it shows.

    Args:
        trace: the trace.
        file: the output.
        at: the moment whose resident pages the counters tell: peak, exit, start or the text of a mark.
        most: the faults that are shown at most; of more, all from disk and a sample of the others.

    Raises:
        UsageError: there is no such mark.
    """
    told = Blame(Composition(trace, at, whole_stacks=True))
    times = told.of.inputs.faults["time_ns"]
    spans = spans_of(trace)
    begin = min(trace.begin_ns, int(times.min(initial=trace.begin_ns)), *(one.begin_ns for one in spans[:1]))
    packets = Packets(file, begin, trace.info.clock.wall(begin))
    shown = chosen(told.of.inputs.faults["flags"], max(most, 0))
    about = packets.track("wstrace")
    for sentence in sentences(told, len(shown)):
        packets.instant(begin, about, sentence)
    _marks(trace, packets, max(trace.info.ended_ns, int(times.max(initial=0))))
    tracks = {}
    for space in np.unique(np.concatenate((told.of.inputs.faults["space"], told.of.column("space")))).tolist():
        role = told.of.inputs.roles.get(space)
        name = told.of.program_of(space) + (f", {role}" if role else "")
        tracks[space] = packets.process(int(told.of.inputs.pids[space]), name)
    _spans(spans, packets, {int(told.of.inputs.pids[space]): track for space, track in tracks.items()})
    for counter in counters(told):
        track = packets.counter(counter.name, tracks.get(counter.space, 0))
        packets.count(begin, track, 0)
        for time, value in zip(counter.times.tolist(), counter.values.tolist(), strict=True):
            packets.count(time, track, value)
    _faults(told, packets, tracks, shown)
    faults = len(told.of.history.faults)
    left_out = f"{_shown(len(shown), told)}, those from disk first; --option most={faults} shows all"
    return Rows(len(shown), left_out if len(shown) < faults else "")


def chosen(flags: NDArray[np.uint8], most: int) -> NDArray[np.intp]:
    """The faults that are shown: those from disk first, and then evenly many of the others."""
    from_disk = (flags & FAULT_MAJOR) != 0
    found = np.zeros(0, np.intp)
    for rows in (np.flatnonzero(from_disk), np.flatnonzero(~from_disk)):
        n = min(len(rows), most - len(found))
        found = np.append(found, rows[np.linspace(0, len(rows) - 1, n).astype(np.intp)] if n else rows[:0])
    return np.sort(found)


def sentences(told: Blame, shown: int) -> list[str]:
    """What the picture tells of, and what it cannot show."""
    of = told.of
    found = [*first_lines(told), _shown(shown, told)]
    found += [note] if (note := estimates_note(of.sampled)) else []
    if not told.total:
        found.append("the counters are of what was brought")
    if not of.inputs.tree.ids().size:
        found.append("no stacks are in the trace (-s page_faults:stacks=python)")
    if "until" in of.inputs.faults:
        found.append("faults have no times of their own: each stands at the begin of the window in which it was read")
    return found


def _shown(shown: int, told: Blame) -> str:
    recorded = " recorded" * (told.of.sampled > 1)
    return f"{number(shown)} of {number(len(told.of.history.faults))}{recorded} faults are shown"


def _marks(trace: Trace, packets: Packets, end_ns: int) -> None:
    """Each mark as a slice up to the next one."""
    found = [(time, trace.strings[text]) for batch in trace.batches(MARK.name)
             for time, text in zip(batch["time_ns"].tolist(), batch["text"].tolist(), strict=True)]  # fmt: skip
    found.sort()
    track = packets.track("marks") if found else 0
    for at, (time, text) in enumerate(found[:MARKS]):
        until = found[at + 1][0] if at + 1 < len(found) else max(end_ns, time)
        packets.slice(time, until, track, text, "mark")


def _spans(every: list[Span], packets: Packets, tracks: dict[int, int]) -> None:
    """The spans as slices: a track for each thread, and more where they overlap; tracks: by process."""
    longest = sorted(every, key=lambda one: one.begin_ns - one.end_ns)[:SPANS]
    spans = sorted(longest, key=lambda one: (one.begin_ns, -one.end_ns))
    if len(spans) < len(every):
        packets.instant(every[0].begin_ns, packets.track("spans"),
                        f"the longest {number(len(spans))} of {number(len(every))} spans are shown")  # fmt: skip
    lanes: dict[tuple[int, int, int], int] = {}
    for one, place in zip(spans, places(spans), strict=True):
        key = one.pid, one.tid, place.lane
        if key not in lanes:
            lanes[key] = packets.track(f"spans of thread {one.tid}", parent=tracks.get(one.pid, 0))
        packets.slice(one.begin_ns, one.end_ns, lanes[key], one.name + " (still open)" * one.open, "span")


def _faults(told: Blame, packets: Packets, tracks: dict[int, int], shown: NDArray[np.intp]) -> None:
    """The faults as instants of their threads, and their stacks."""
    inputs, faults = told.of.inputs, told.of.history.faults
    page = np.zeros(len(faults), np.uint64)
    page[faults.order] = page_of(faults.key) * np.uint64(told.of.page_size)
    file, files = told.labels_of_faults("file")
    line, lines = told.labels_of_faults("line")
    stack, stacks = told.labels_of_faults("stack")
    frames = Stacks(packets, told) if inputs.tree.ids().size else None
    threads: dict[tuple[int, int], int] = {}
    given = (inputs.faults["time_ns"], inputs.faults["space"], inputs.faults["tid"], inputs.faults["flags"], page, file,
             line, stack)  # fmt: skip
    each = inputs.faults.get("sampled")
    so_far = shown + 1 if each is None else np.cumsum(each, dtype=np.int64)[shown]
    columns = (so_far.tolist(), *(column[shown].tolist() for column in given))
    for count, time, space, tid, flags, address, of, by, leaf in zip(*columns, strict=True):
        pid = int(inputs.pids[space])
        if (space, tid) not in threads:
            code = inputs.threads[space, tid]
            name = told.of.strings[code] if code < len(told.of.strings) else ""
            threads[space, tid] = packets.thread(pid, tid, name, tracks[space])
        told_by = packets.address("page", address) + packets.text("by", lines[by].label)
        category = "from disk" if flags & FAULT_MAJOR else "fault"
        packets.instant(time, threads[space, tid], base_name(files[of].whole), category, told_by)
        if frames is not None:
            packets.sample(time, pid, tid, frames.of(stacks[leaf].whole), count)
