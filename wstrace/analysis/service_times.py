"""The service times of a batch of faults, as tables add them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A fault that took longer than these nine hours is a forged one; sums of shorter ones stay exact.
_LONGEST_NS = 1 << 45


def service_times(batch: Batch) -> NDArray[Any] | None:
    """How long the kernel took to serve each fault, in ns, i64, 0 = not known; None where that was not recorded."""
    if "service_ns" not in batch:
        return None
    times: NDArray[Any] = np.minimum(batch["service_ns"], np.uint64(_LONGEST_NS)).astype(np.int64)
    return times
