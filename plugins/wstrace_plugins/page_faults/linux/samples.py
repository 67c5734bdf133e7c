"""Samples: checks and counts the rows of a ring, and merges the rows of all rings by time up to a watermark.

Stack dumps are samples with the thread's registers and a copy of the top of its stack, from rings of their own. They
come from an event of another config (PERF_COUNT_SW_PAGE_FAULTS) than the rows of all faults: the kernel shares one
perf_sample_data among the events of one config that a fault triggers. A foreign event of this config may make a record
longer, or give its dump another size, so both are read from the record; a record that is shorter than its contents was
cut by the kernel, and is counted, not believed.

Source: perf_output_sample(), perf_prepare_sample() and perf_output_sample_ustack() in kernel/events/core.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Columns
from wstrace.ledger import Ledger
from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL
from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.page_faults.linux.python_stacks.protocol import StackRows

#: The number of u64 in one of our SAMPLE records.
WORDS = perf.SAMPLE.itemsize // 8
#: The position of the size in a header, which is read as one u64: type, misc, size.
SIZE_SHIFT = 48
_TYPE_AND_MISC = np.uint64((1 << SIZE_SHIFT) - 1)
_LENGTH_SHIFT = np.uint64(SIZE_SHIFT + 3)  # the size in u64


def record_rows(raw: NDArray[Any], width: int = WORDS) -> NDArray[Any]:
    """The records of a ring as rows of `width` u64; what is torn at the end is left out.

    A row is the header (type, misc, size) and what follows it; zeros where the record is shorter. Another tracer's
    event on the same thread and of the same config makes our records longer: the kernel shares one perf_sample_data
    among all events that a fault triggers, and adds what the others requested to the records that it writes after them
    (perf_prepare_sample() in kernel/events/core.c). Behind the right bytes such a record has old content of the ring,
    which may look like records.
    raw: u8, shape (n,): what the kernel wrote, starting at the beginning of a record.
    """
    words: NDArray[Any] = raw[: len(raw) - len(raw) % 8].view("<u8")
    if len(words) % width == 0:
        table: NDArray[Any] = words.reshape(-1, width)
        # by induction: if every row begins with a header of its own size, these are the records
        if (table[:, 0] >> _LENGTH_SHIFT == width).all():
            return table
    begins, _ = starts(words)
    table = words.take(begins[:, None] + np.arange(width), mode="clip")
    table[np.arange(width) >= (table[:, :1] >> _LENGTH_SHIFT)] = 0
    return table


def starts(words: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """The indices of the u64 at which records begin, and the index behind the last whole record.

    Each record begins where the one before it ends.
    words: u64, shape (n,).
    """
    whole: Any = np.ascontiguousarray(words)
    found, at, headers = list[int](), 0, memoryview(whole).cast("B").cast("Q")
    while at < len(headers) and 0 < (size := headers[at] >> SIZE_SHIFT + 3) <= len(headers) - at:
        found.append(at)
        at += size
    return np.array(found, "<i8"), at


#: The headers of our records as one u64, without the size.
_USER, _KERNEL = (
    np.uint64(perf.PERF_RECORD_SAMPLE | misc << 32)
    for misc in (perf.PERF_RECORD_MISC_USER, perf.PERF_RECORD_MISC_KERNEL)
)
#: The columns of a row, one u64 each: header, ip, pid and tid, time, address; what samples have behind these; the hash
#: of the stack, where there are stacks.
_HEADER, _IP, _IDS, _TIME, _ADDRESS = range(5)
_STACK = WORDS
_NO_ROWS = np.zeros((WORDS, 0), "<u8").T
#: Rows that are transposed at a time: 160 KiB, which stay in the cache.
_ROWS_AT_ONCE = 4096


class RingSamples:
    """The samples of one ring, in the order in which the kernel wrote them, held until the watermark passes them.

    A row is five u64: the 40 bytes of a SAMPLE or LOST record (`record_rows` cuts longer ones); further ones are what
    samples have behind these, and the hash of the fault's stack, where these are recorded. Rows lie in memory by
    columns: all that follows reads single columns, again and again.
    major: whether they are major faults. stacks: takes the stack rows out of the ring, where there are any. fields:
    what its samples have behind the 40 bytes.
    """

    def __init__(self, major: bool, stacks: StackRows | None = None, fields: tuple[perf.Field, ...] = ()) -> None:
        self.major, self._stacks, self.fields, self._width = major, stacks, fields, WORDS + len(fields)
        self._held: list[NDArray[Any]] = []  # as they were read: to join them at each read is to copy them often
        self.last_seen = 0
        self.recorded = self.lost = self.duplicates = self.foreign = 0
        self._last = _NO_ROWS

    @property
    def holds(self) -> bool:
        """Whether there are rows that wait for the watermark."""
        return bool(self._held)

    def take(self, raw: NDArray[Any], armed_ns: int, now_ns: int, *, doubled: bool) -> None:
        """Adds a copy of what is in the ring.

        raw: bytes, shape (n,). armed_ns, now_ns: a row with a time outside this range carries another tracer's clock:
        counted, not kept. doubled: threads may have two events (one inherited, one opened by us), which both write the
        same row: the kernel passes the first one's time on (perf_sample_data.sample_flags, Linux 6.2). Before that such
        faults are counted, and recorded, twice.
        """
        if not len(raw):
            return
        plain = self._plain(raw, armed_ns, now_ns) if not doubled else None
        if plain is not None:
            self.last_seen = int(plain[-1, _TIME])
            self._held.append(plain)
            return
        rows = _by_columns(record_rows(raw, self._width))
        if self._stacks is not None:
            rows = self._stacks.pair(rows)
        good = _is_sample(rows[:, _HEADER])
        if not good.all():
            rows = self._without_lost(rows, good)
        times = rows[:, _TIME]
        if len(rows) and not armed_ns <= int(times.min()) <= int(times.max()) <= now_ns:
            # an earlier time wraps around
            strange = times - np.uint64(armed_ns) > np.uint64(max(now_ns - armed_ns, 0))
            self.foreign += int(strange.sum())
            rows = _those(rows, ~strange)
        if doubled and len(rows):
            rows = self._without_doubles(rows)
        if len(rows):
            self.last_seen = int(rows[-1, _TIME])
            self._held.append(rows)

    def _plain(self, raw: NDArray[Any], armed_ns: int, now_ns: int) -> NDArray[Any] | None:
        """The rows, if there is nothing but samples of ours in the ring, as nearly always; else None.

        All is checked in columns that were just written, so the ring's memory is read only once.
        """
        hash_of_all = None if self._stacks is None else self._stacks.same
        if len(raw) % (8 * self._width) or (self._stacks is None) != (hash_of_all is None):
            return None
        rows = _by_columns(raw.view("<u8").reshape(-1, self._width), hash_of_all)
        # By induction, as in record_rows(): the headers tell the size, too. A row of a stack has a time of 199 years.
        header, times = rows[:, _HEADER], rows[:, _TIME]
        ours = _is_sample(header) & (header >> _LENGTH_SHIFT == self._width)
        return rows if ours.all() and armed_ns <= int(times.min()) <= int(times.max()) <= now_ns else None

    def _without_lost(self, rows: NDArray[Any], good: NDArray[Any]) -> NDArray[Any]:
        others = np.ascontiguousarray(rows[~good, :WORDS]).view(perf.LOST).reshape(-1)
        lost = others["type"] == perf.PERF_RECORD_LOST
        self.lost += int(others["lost"][lost].sum())
        return _those(rows, good)

    def _without_doubles(self, rows: NDArray[Any]) -> NDArray[Any]:
        twice = self._same(rows)
        if not twice.any():
            return rows
        if rows.shape[1] > _STACK:
            # A program ran for one of the two only: the other one's stack is a status, 0 to 15.
            at = np.flatnonzero(twice[1:])
            rows[at, _STACK:] = np.maximum(rows[at, _STACK:], rows[at + 1, _STACK:])
        self.duplicates += int(twice.sum())
        return _those(rows, ~twice)

    def _same(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows are those before them once more."""
        before, self._last = self._before(rows), rows[-1:].copy()
        same: NDArray[np.bool_] = rows[:, _TIME] == before[:, _TIME]
        return same & (rows[:, :_STACK] == before[:, :_STACK]).all(axis=1) if same.any() else same

    def _before(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The row before each; one that is like none before the first, if none is kept."""
        return np.concatenate((self._last if len(self._last) else ~rows[:1], rows[:-1]))

    def whole(self, watermark: int) -> int:
        """The last time in the newest part that lies wholly up to the watermark; 0 = there is no such part."""
        ends = (int(rows[-1, _TIME]) for rows in reversed(self._held))
        return next((end for end in ends if end <= watermark), 0)

    def released(self, watermark: int) -> list[NDArray[Any]]:
        """The held rows with times up to the watermark, in order, as parts: they are held no longer."""
        parts = []
        while self._held and self._held[0][0, _TIME] <= watermark:
            rows = self._held.pop(0)
            if rows[-1, _TIME] > watermark:
                cut = int(np.searchsorted(rows[:, _TIME], np.uint64(watermark), side="right"))
                rows, rest = rows[:cut], rows[cut:]
                self._held.insert(0, rest)
            parts.append(rows)
            self.recorded += len(rows)
        return parts


def settled(all_samples: Sequence[RingSamples], latest: int) -> int:
    """The watermark: no row up to this time is still to come.

    Where rows wait it cuts no part of one ring, so that these are passed on as they are, without a copy.
    latest: a row that is still to come to an empty ring is not older than this.
    """
    watermark = min(max(samples.last_seen, latest) for samples in all_samples)
    if any(samples.holds for samples in all_samples):
        watermark = max(samples.whole(watermark) for samples in all_samples)
    return watermark


def merge(all_samples: Sequence[RingSamples], watermark: int) -> Columns:
    """The PAGE_FAULT columns, by name and in order of time, of the rows of all rings timed up to the watermark.

    Further ones are those of the fields that samples have, and with stacks `stack_hash`.
    """
    of_rings = [(rows, samples.major) for samples in all_samples if (rows := samples.released(watermark))]
    parts = [(part, major) for rows, major in of_rings for part in rows] or [(_NO_ROWS, False)]
    flag = np.concatenate([
        (rows[:, _HEADER] & _TYPE_AND_MISC == _KERNEL).view(np.uint8) * np.uint8(FAULT_PC_KERNEL)
        | np.uint8(FAULT_MAJOR * major)
        for rows, major in parts
    ])  # fmt: skip
    words = [_column([rows[:, at] for rows, _ in parts]) for at in range(_IP, parts[0][0].shape[1])]
    if len(of_rings) > 1:
        order = np.argsort(words[_TIME - _IP], kind="stable")  # timsort: its input is a few sorted runs
        words, flag = [word.take(order) for word in words], flag.take(order)
    pc, ids, times, addresses, *rest = words
    halves = ids.view("<u4")  # pid and tid, alternating
    fields = all_samples[0].fields  # their columns are there if there is any row
    further = {field.column: word.astype(field.dtype, copy=False) for field, word in zip(fields, rest, strict=False)}
    if len(rest) > len(fields):
        further["stack_hash"] = rest[-1]
    return {
        "time_ns": times,
        "pid": halves[0::2].copy(),
        "tid": halves[1::2].copy(),
        "pc": pc,
        "va": addresses,
        "flags": flag,
        **further,
    }


def _column(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _is_sample(header: NDArray[Any]) -> NDArray[np.bool_]:
    """Which headers are those of a sample that is whole, of user or of kernel code."""
    kind = header & _TYPE_AND_MISC
    found: NDArray[np.bool_] = ((kind == _USER) | (kind == _KERNEL)) & (header >> _LENGTH_SHIFT >= WORDS)
    return found


def _those(rows: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """The rows where the mask is true, laid out by columns: rows[mask] would be laid out by rows."""
    return rows.T.compress(mask, axis=1).T


def _by_columns(rows: NDArray[Any], further: int | None = None) -> NDArray[Any]:
    """A copy of the rows that lies in memory by columns; `further`: what all have in a column more."""
    n, width = rows.shape
    words = np.empty((width + (further is not None), n), rows.dtype)
    for start in range(0, n, _ROWS_AT_ONCE):
        words[:width, start : start + _ROWS_AT_ONCE] = rows[start : start + _ROWS_AT_ONCE].T
    if further is not None:
        words[width] = further
    return words.T


#: a stage of the ledger
STACKS_LOST = "stacks_lost"
#: bytes of the stack that a sample takes: of Python stacks 83 % are whole, of Java's and C++'s nearly all
DUMP_BYTES = 16384
#: AX BX CX DX SI DI BP SP IP FLAGS CS SS R8-R15: what `perf record --call-graph dwarf` takes, too. With the same
#: registers its events and ours, where they share their data, expect records of the same size.
REGISTERS = 0xFF0FFF
#: of these what a batch has: FLAGS, CS and SS do not lead to callers
_KEPT = (*range(9), *range(12, 20))
MOST_HELD = 64 << 20

_ABI, _FIRST = 5, 6
_SIZE = _FIRST + REGISTERS.bit_count()
_DUMP = _SIZE + 1
_ABI_64 = 2
_LOW = np.uint64(0xFFFF_FFFF)


class StackDumps:
    """The samples of all stack rings, held until the watermark passes them; at most MOST_HELD bytes."""

    def __init__(self) -> None:
        self._held: list[Columns] = []
        self._bytes = 0
        #: samples; those that the kernel dropped; for which there was no room; that were cut beside another tracer's
        #: event or timed by its clock, or have no registers of 64 bits
        self.recorded = self.lost = self.dropped = self.unusable = 0

    @property
    def holds(self) -> bool:
        """Whether samples wait for the watermark."""
        return bool(self._held)

    def take(self, raw: NDArray[Any], armed_ns: int, now_ns: int) -> None:
        """Adds what was read from a ring: bytes, shape (n,). Rows with a time outside this range are not kept."""
        words = raw[: len(raw) // 8 * 8].view("<u8")
        at, end = starts(words)
        kind, length = words[at] & _LOW, words[at] >> _LENGTH_SHIFT
        lost = (kind == perf.PERF_RECORD_LOST) & (length > 2)
        self.lost += int(words[at[lost] + 2].sum())
        self.unusable += int((~lost).sum()) + (end < len(words))
        good = (kind == perf.PERF_RECORD_SAMPLE) & (length > _SIZE)
        at, length = at[good], length[good]
        size = words.take(at + _SIZE, mode="clip")
        behind = _DUMP + (size >> np.uint64(3))  # where it says how much of the dump was copied
        strange = words.take(at + _TIME) - np.uint64(armed_ns) > np.uint64(max(now_ns - armed_ns, 0))
        good = (words[at + _ABI] == _ABI_64) & (size > 0) & (behind < length) & ~strange
        self.unusable -= int(good.sum())
        at, size, behind = at[good], size[good], behind[good]
        if not len(at):
            return
        real = np.minimum(words[at + behind.astype(np.intp)], size)
        ids = words[at + _IDS]
        block: Columns = {
            "time_ns": words[at + _TIME],
            "pid": (ids & _LOW).astype("<u4"),
            "tid": (ids >> np.uint64(32)).astype("<u4"),
            "pc": words[at + _IP],
            "va": words[at + _ADDRESS],
            "registers": words[at[:, None] + [_FIRST + kept for kept in _KEPT]],
            "dump": words.take(at[:, None] + np.arange(_DUMP, _DUMP + (int(real.max()) + 7 >> 3)), mode="clip"),
            "size": real.astype("<u4"),
        }
        size = sum(column.nbytes for column in block.values())
        if self._bytes + size > MOST_HELD:
            self.dropped += len(at)
            return
        self._bytes += size
        self._held.append(block)

    def account(self, ledger: Ledger, lost: int | None) -> None:
        """Enters into the ledger which samples became no stack. lost: by the kernel's own count, None = not known."""
        for count, why in (
            (max(self.lost, lost or 0), "the kernel's buffer was full"),
            (self.dropped, "no room for what the kernel gave"),
            (self.unusable, "cut short, timed by another clock, or without registers of a 64-bit program"),
        ):
            ledger.add(STACKS_LOST, count, why)

    def give(self, watermark: int) -> Iterator[Columns]:
        """Releases the held samples with times up to the watermark: columns of STACK_DUMP, a block of one ring each."""
        held, self._held, self._bytes = self._held, [], 0
        for block in held:
            due = block["time_ns"] <= watermark
            if not due.all():
                rest = {name: column[~due] for name, column in block.items()}
                self._held.append(rest)
                self._bytes += sum(column.nbytes for column in rest.values())
            if due.any():
                given = block if due.all() else {name: column[due] for name, column in block.items()}
                self.recorded += len(given["time_ns"])
                yield given
