"""Stack dumps: sampled faults with the thread's registers and a copy of the top of its stack, from rings of their own.

They come from an event of another config (PERF_COUNT_SW_PAGE_FAULTS) than the rows of all faults: the kernel shares one
perf_sample_data among the events of one config that a fault triggers. A foreign event of this config may make a
record longer, or give its dump another size, so both are read from the record; a record that is shorter than its
contents was cut by the kernel, and is counted, not believed.

Source: perf_output_sample(), perf_prepare_sample() and perf_output_sample_ustack() in kernel/events/core.c.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.errors import Unavailable
from wstrace.ledger import Ledger
from wstrace.schema import DTYPES, STACK_DUMP
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

_IP, _IDS, _TIME, _ADDRESS, _ABI, _FIRST = 1, 2, 3, 4, 5, 6
_SIZE = _FIRST + REGISTERS.bit_count()
_DUMP = _SIZE + 1
_ABI_64 = 2
_LENGTH_SHIFT = np.uint64(48 + 3)
_TYPE = np.uint64(0xFFFF_FFFF)
_LOW = np.uint64(0xFFFF_FFFF)


class StackDumps:
    """The samples of all stack rings, held until the watermark passes them; at most MOST_HELD bytes."""

    def __init__(self) -> None:
        self._held: list[dict[str, NDArray[Any]]] = []
        self._bytes = 0
        #: samples; those that the kernel dropped; that another tracer's clock times; without registers of 64 bits; cut
        #: by the kernel; for which there was no room
        self.recorded = self.lost = self.foreign = self.without_registers = self.malformed = self.dropped = 0

    @property
    def holds(self) -> bool:
        """Whether samples wait for the watermark."""
        return bool(self._held)

    def take(self, raw: NDArray[Any], armed_ns: int, now_ns: int) -> None:
        """Adds what was read from a ring: bytes, shape (n,). Rows with a time outside this range are not kept."""
        if not len(raw):
            return
        table = self._rows(raw[: len(raw) // 8 * 8].view("<u8"))
        strange = table[:, _TIME] - np.uint64(armed_ns) > np.uint64(max(now_ns - armed_ns, 0))
        self.foreign += int(strange.sum())
        table = table[~strange] if strange.any() else table
        if not len(table):
            return
        real = np.minimum(table[:, -1], table[:, _SIZE])  # the dump's last word: how much of it was copied
        words = int(real.max()) + 7 >> 3
        block: dict[str, NDArray[Any]] = {
            "time_ns": table[:, _TIME].copy(),
            "pid": (table[:, _IDS] & _LOW).astype("<u4"),
            "tid": (table[:, _IDS] >> np.uint64(32)).astype("<u4"),
            "pc": table[:, _IP].copy(),
            "va": table[:, _ADDRESS].copy(),
            "registers": table[:, [_FIRST + kept for kept in _KEPT]],
            "dump": table[:, _DUMP : _DUMP + words].copy(),
            "size": real.astype("<u4"),
        }
        size = sum(column.nbytes for column in block.values())
        if self._bytes + size > MOST_HELD:
            self.dropped += len(table)
            return
        self._bytes += size
        self._held.append(block)

    def _rows(self, words: NDArray[Any]) -> NDArray[Any]:
        """The samples, one row each: what comes before the dump, the dump's words, and its real size at the end."""
        if len(words) >= _DUMP:
            step = int(words[0] >> _LENGTH_SHIFT)
            if step > _DUMP and len(words) % step == 0:
                table: NDArray[Any] = words.reshape(-1, step)
                size = table[:, _SIZE]
                # by induction: if a header with this size begins at every step, these are the records
                if (
                    (table[:, 0] >> _LENGTH_SHIFT == step).all()
                    and (table[:, 0] & _TYPE == perf.PERF_RECORD_SAMPLE).all()
                    and (table[:, _ABI] == _ABI_64).all()
                    and (size >> np.uint64(3) == step - _DUMP - 1).all()
                ):
                    return table
        return self._stepwise(words)

    def _stepwise(self, words: NDArray[Any]) -> NDArray[Any]:
        """The same where records have different sizes: one Python step for each of some thousand a second."""
        found: list[NDArray[Any]] = []
        at, end = 0, len(words)
        while at < end:
            step = int(words[at] >> _LENGTH_SHIFT)
            if not step or at + step > end:
                self.malformed += 1
                break
            self._sort_out(words[at : at + step], found)
            at += step
        widest = max((len(row) for row in found), default=_DUMP + 1)
        table = np.zeros((len(found), widest), "<u8")
        for number, row in enumerate(found):
            table[number, : len(row) - 1], table[number, -1] = row[:-1], row[-1]
        return table

    def _sort_out(self, record: NDArray[Any], found: list[NDArray[Any]]) -> None:
        kind = int(record[0] & _TYPE)
        if kind == perf.PERF_RECORD_LOST and len(record) > 2:
            self.lost += int(record[2])
        elif kind != perf.PERF_RECORD_SAMPLE or len(record) <= _ABI:
            self.malformed += 1
        elif record[_ABI] != _ABI_64:
            self.without_registers += 1
        else:
            last = _DUMP + (int(record[_SIZE]) >> 3) if len(record) > _SIZE else len(record)
            if last >= len(record) or not record[_SIZE]:
                self.malformed += 1
            else:
                found.append(record[: last + 1])

    def announce(self) -> dict[str, NDArray[Any]]:
        """Columns of STACK_DUMP without a row: given before all else, they announce samples to what unwinds them."""
        columns = {column.name: np.zeros(0, DTYPES[column.type]) for column in STACK_DUMP.columns}
        return {**columns, "registers": np.zeros((0, len(_KEPT)), "<u8"), "dump": np.zeros((0, 0), "<u8")}

    def account(self, ledger: Ledger, lost: int | None) -> None:
        """Enters into the ledger which samples became no stack. lost: by the kernel's own count, None = not known."""
        for count, why in (
            (max(self.lost, lost or 0), "the kernel's buffer was full"),
            (self.dropped, "no room for what the kernel gave"),
            (self.foreign, "timed by another tracer's clock"),
            (self.malformed, "cut short beside another tracer's event"),
            (self.without_registers, "no registers of a 64-bit program"),
        ):
            ledger.add(STACKS_LOST, count, why)

    def give(self, watermark: int) -> Iterator[dict[str, NDArray[Any]]]:
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


_MACHINE = "x86_64"


class StackRate(NamedTuple):
    """How often a fault is sampled: one out of `period`, or, where that is 0, `rate` a second, per thread and CPU."""

    rate: int
    period: int = 0

    @property
    def noted(self) -> dict[str, int]:
        """As a trace's description has it."""
        return {"period": self.period} if self.period else {"rate": self.rate}


def stack_attributes(stacks: StackRate, bits: Sequence[str], fields: Mapping[str, int]) -> NDArray[Any]:
    """Its perf_event_attr: minor and major faults alike, with these further bits and fields.

    Raises:
        Unavailable: the machine is not x86-64, so that neither these registers nor the unwinder fit it.
    """
    if platform.machine() != _MACHINE:
        raise Unavailable(f"native stacks are unwound on {_MACHINE} only, this machine is {platform.machine()}")
    often = stacks.period
    if not often:
        # the kernel lowers this limit when samples take too long, and refuses a higher rate
        often = min(stacks.rate, procfs.setting("kernel/perf_event_max_sample_rate") or stacks.rate)
        bits = (*bits, "freq")
    return perf.attr(
        perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_PAGE_FAULTS, *bits,
        sample_period=often,
        sample_type=perf.PERF_SAMPLE_IP | perf.PERF_SAMPLE_TID | perf.PERF_SAMPLE_TIME | perf.PERF_SAMPLE_ADDR
        | perf.PERF_SAMPLE_REGS_USER | perf.PERF_SAMPLE_STACK_USER,
        sample_regs_user=REGISTERS,
        sample_stack_user=DUMP_BYTES,
        **fields,
    )  # fmt: skip
