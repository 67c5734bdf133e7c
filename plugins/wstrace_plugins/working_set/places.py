"""Names for addresses of a process, from snapshots of it: `module!section(n)`, `module+0x...`, `[heap]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.places import Place
from wstrace.plugins import default_plugins
from wstrace.schema import PAGE_FAULT
from wstrace_plugins.working_set.working_set import WorkingSet

KERNEL = 1 << 63  # the 64-bit kernels of both systems use the upper half


def places(addresses: NDArray[Any], snapshots: Sequence[WorkingSet]) -> list[Place | str]:
    """What lies at each address, from the first snapshot in which it is mapped.

    Args:
        addresses: u64, shape (n,).
        snapshots: of one live process, with one shared Dictionary, the most trusted one first.
    """
    strings = snapshots[0].strings
    resolvers = {name: cls() for name, cls in default_plugins().resolvers.items()}
    symbolizer = Symbolizer(Context(resolvers=resolvers), live=True)
    ids, files = np.zeros(len(addresses), "<u4"), np.zeros(len(addresses), "<u4")
    files[addresses >= np.uint64(KERNEL)] = strings.code("[kernel]")
    first = 1
    for taken in snapshots:
        symbolizer.learn(taken.mapping_rows(first))
        rows = taken.rows_at(addresses)
        new = (rows >= 0) & (ids == 0)
        ids[new] = first + rows[new]
        first += len(taken.mappings["start"])
    batch = Batch(PAGE_FAULT, {"va": addresses, "mapping": ids, "file": files}, strings=strings)
    return symbolizer.of(batch, "va", "mapping", "file")
