"""The event that samples faults with registers and stack: how often, and its perf_event_attr."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace.errors import Unavailable, UsageError
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.stack_dumps import DUMP_BYTES, REGISTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MACHINE = "x86_64"


class StackRate(NamedTuple):
    """How often a fault is sampled: one out of `period`, or, where that is 0, `rate` a second, per thread and CPU.

    Raises:
        UsageError: neither is positive.
    """

    rate: int
    period: int = 0

    def __post_init__(self) -> None:
        if self.period < 0 or (not self.period and self.rate < 1):
            option = "stack_period" if self.period < 0 else "stack_rate"
            raise UsageError(f"page_faults: {option} is {getattr(self, option[6:])}", "give at least 1")

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
