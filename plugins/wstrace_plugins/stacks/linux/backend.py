"""What unwinds samples into call sites, and joins them to rows of `page_fault`: loaded when the first samples come.

The kernel samples a fault before it serves it, and records it afterwards; in between, the thread has no other fault. So
a sample belongs to the next row of its thread, if that has the same instruction and address, and to none otherwise: the
fault ended in a signal, or its row was lost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct, rows_of_each
from wstrace.batch import Batch, Columns
from wstrace.call_sites import CallSites
from wstrace.interfaces import Context
from wstrace.schema import FRAME_CUT, FRAME_GUESSED, FRAME_SIGNAL, HOW_NO_ROOM, HOW_OWN, HOW_OWN_CUT
from wstrace_plugins.stacks import rules, unwinder
from wstrace_plugins.stacks.linux.known_code import KnownCode
from wstrace_plugins.stacks.unwinder import Samples, Unwound

#: a file of a JIT compiler's process -> the command that has it write a perf map, and keep frame pointers
MAPS_BY = {
    "node": "node --perf-basic-prof --interpreted-frames-native-stack",
    "libjvm.so": "java -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit",
}
#: samples that wait for their row; threads of which the rows since their last sample are counted
MOST_WAITING = 65_536
MOST_THREADS = 65_536


def _together(batches: Sequence[Batch]) -> Columns:
    """The columns of batches of STACK_DUMP, one behind the other; a shorter dump has words of 0 behind it."""
    words = max(batch["dump"].shape[1] for batch in batches)
    columns = {name: np.concatenate([batch[name] for batch in batches])
               for name in ("time_ns", "pid", "tid", "pc", "va", "registers", "size")}  # fmt: skip
    columns["dump"] = np.zeros((len(columns["pid"]), words), "<u8")
    at = 0
    for batch in batches:
        columns["dump"][at : at + len(batch), : batch["dump"].shape[1]] = batch["dump"]
        at += len(batch)
    return columns


class Worker:
    """Unwinds samples into call sites, and joins them to rows. context: the session's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.code = KnownCode(context.strings)
        self.tree = CallSites(context.stack_ids, context.strings, "native_stacks")
        self.join = Join()

    def unwind(self, batches: Sequence[Batch]) -> None:
        """Unwinds batches of STACK_DUMP, all samples together: the more, the less a step of numpy costs for each.

        Their stacks wait for their rows.
        """
        if not batches:
            return
        batch = _together(batches)
        pid, time, pc = (np.ascontiguousarray(batch[name]) for name in ("pid", "time_ns", "pc"))
        mappings_at = self._context.mappings_at
        self.code.begin(pid, lambda rows, addresses: mappings_at(pid[rows], addresses, time[rows]))
        samples = Samples(batch["registers"], np.ascontiguousarray(batch["dump"]), batch["size"].astype("<u8"))
        stacks = unwinder.unwind(samples, self.code)
        leaf = add_stacks(self.tree, self.code, stacks)
        how = np.where(stacks.whole, np.uint8(HOW_OWN), np.uint8(HOW_OWN_CUT))
        how[leaf == self.tree.cut] = HOW_NO_ROOM
        self.join.add(Stacks(time, batch["tid"], pc, batch["va"], leaf, how))

    def renamed(self) -> Batch:
        """The call sites in code that its process has named since; notes how to get those of one that names none."""
        for program in MAPS_BY.keys() & self.code.grow():
            self._context.info.lack(f"names of compiled functions: start it as {MAPS_BY[program]}")
        return self.tree.renamed(self.code.name_by_now)

    def close(self) -> None:
        """Closes files."""
        self.code.close()


def add_stacks(tree: CallSites, code: KnownCode, stacks: Unwound) -> NDArray[np.uint32]:
    """The call sites of the innermost frames, u32, shape (n,).

    tree: to which they are added. code: what the frame numbers mean. stacks: the frames, all of them the program's own:
    where the kernel faulted for it, the innermost one is what called the kernel.
    """
    first, inverse = _distinct(stacks)
    frames, depth, whole, guessed = (column[first] for column in stacks)
    leaf = np.zeros(len(first), "<u4")
    signal = (code.rules[rules.FLAGS] & rules.SIGNAL) != 0
    for level in range(int(depth.max(initial=0))):
        rows = np.flatnonzero(depth > level)
        place = depth[rows] - 1 - level
        number = frames[rows, place]
        kind, mapping, offset, function, file, known = code.frames.take(number, axis=0).T
        flags = known | guessed[rows, place] * np.uint64(FRAME_GUESSED)
        column = code.rule_of.take(number)
        flags |= ((column >= 0) & signal.take(np.maximum(column, 0))) * np.uint64(FRAME_SIGNAL)
        if not level:
            flags |= ~whole[rows] * np.uint64(FRAME_CUT)
        leaf[rows] = tree.add(
            leaf[rows], kind=kind, mapping=mapping, offset=offset, function=function, file=file, flags=flags
        )
    return leaf[inverse]


def _distinct(stacks: Unwound) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of distinct stacks, and for each stack the index of its own: they repeat thousands of times."""
    whole = stacks.whole
    words = stacks.frames.astype("<u8") << np.uint64(1) | stacks.guessed
    # not numpy.random: its import takes 50 ms while the first samples wait
    multipliers = np.frombuffer(os.urandom(8 * (words.shape[1] + 1)), "<u8") | np.uint64(1)
    hashes = (words * multipliers[1:]).sum(axis=1, dtype="<u8") + whole * multipliers[0]
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if (words[first][inverse] != words).any() or (whole[first][inverse] != whole).any():  # two with one hash
        return np.arange(len(words)), np.arange(len(words))
    return first, inverse


class Stacks(NamedTuple):
    """Unwound samples, columns of shape (n,): when, who and where, the innermost call site, and how it was had."""

    time_ns: NDArray[Any]
    tid: NDArray[Any]
    pc: NDArray[Any]
    va: NDArray[Any]
    stack: NDArray[Any]
    how: NDArray[Any]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Stacks:
        """Those of these rows."""
        return Stacks(*(column[rows] for column in self))


NO_STACKS = Stacks(*(np.zeros(0, dtype) for dtype in ("<u8", "<u4", "<u8", "<u8", "<u4", "u1")))


class Joined(NamedTuple):
    """Rows of a batch to which samples belong, shape (m,), with these samples, and the rows that each stands for."""

    rows: NDArray[np.intp]
    stacks: Stacks
    weight: NDArray[np.uint32]


class Join:
    """Joins samples to the rows of one batch after the other.

    without_row counts the samples to which no row belongs.
    """

    def __init__(self) -> None:
        self.waiting = NO_STACKS
        self.without_row = 0
        self._since: dict[int, int] = {}

    def add(self, stacks: Stacks) -> None:
        """Adds samples; the oldest of too many are counted as without row."""
        pairs: Any = zip(self.waiting, stacks, strict=True)
        merged = Stacks(*map(np.concatenate, pairs))
        order = np.argsort(merged.time_ns, kind="stable")
        self.without_row += max(len(order) - MOST_WAITING, 0)
        self.waiting = merged.take(order[-MOST_WAITING:])

    def rows(self, batch: Batch) -> Joined:
        """The rows of a batch of `page_fault`, which are in order of time, to which samples belong."""
        threads = rows_of_each(batch["tid"])
        times, pc, va = (np.ascontiguousarray(batch[name]) for name in ("time_ns", "pc", "va"))
        waiting, came = self.waiting, np.zeros(len(self.waiting.tid), bool)
        found_rows, samples, weights = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], [np.zeros(0, np.int64)]
        sampled = {*distinct(waiting.tid).tolist()}
        if len(self._since) + len(threads) > MOST_THREADS:
            self._since.clear()
        for tid, rows in threads:
            since = self._since.get(tid, 0)
            if tid in sampled:
                own = np.flatnonzero(waiting.tid == tid)
                behind = np.searchsorted(times[rows], waiting.time_ns[own])
                own, behind = own[behind < len(rows)], behind[behind < len(rows)]
                came[own] = True
                same = (pc[rows[behind]] == waiting.pc[own]) & (va[rows[behind]] == waiting.va[own])
                self.without_row += int(len(same) - same.sum())
                # of two events that sampled one fault (of a thread that was attached twice) one is kept
                behind, first = np.unique(behind[same], return_index=True)
                found_rows.append(rows[behind])
                samples.append(own[same][first])
                weights.append(np.diff(behind, prepend=-1 - since))
                since = -1 - int(behind[-1]) if len(behind) else since
            self._since[tid] = since + len(rows)
        self.waiting = waiting.take(~came)
        weight = np.minimum(np.concatenate(weights), 0xFFFF_FFFF).astype("<u4")
        return Joined(np.concatenate(found_rows), waiting.take(np.concatenate(samples)), weight)
