"""The cgroup of each fault: the id that its record has (PERF_SAMPLE_CGROUP), as the code of the cgroup's path.

The paths come from PERF_RECORD_CGROUP, which tells each new cgroup before a process can be in it, and from a walk over
those that are there. An id is not used again while the machine runs.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.cgroups.tree import Cgroups
from wstrace_plugins.page_faults.linux.samples import CGROUP_ID

_ID = struct.Struct("<Q")
_AT_ID, _AT_PATH = 8, 16
_SAMPLE_ID = 16  # TID and TIME at the end of the record
#: The most cgroups whose names are kept, and how long no further walk looks for an id that the last one did not find.
_MOST, _APART_SECONDS = 1 << 16, 1.0


class CgroupIds:
    """Names the cgroups of faults.

    Args:
        context: the session's context.
        cgroups: those of the machine.
    """

    def __init__(self, context: Context, cgroups: Cgroups) -> None:
        self._context, self._cgroups = context, cgroups
        self._codes: dict[int, int] = {}
        self._walked = 0.0
        self.unknown = 0  # faults whose cgroup has no known path

    def told(self, record: bytes) -> tuple[int, str]:
        """The id and path of a PERF_RECORD_CGROUP, which are known from now on."""
        number = _ID.unpack_from(record, _AT_ID)[0]
        path = os.fsdecode(record[_AT_PATH:-_SAMPLE_ID].partition(b"\0")[0])
        self._learn(number, path)
        return number, path

    def with_paths(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns of faults with `cgroup`, codes of paths, in place of the ids; 0 = not known."""
        ids = columns.pop(CGROUP_ID, None)
        if ids is None:
            return columns
        changes = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.zeros(0, np.intp)
        numbers = distinct(ids[changes])
        if not self._codes.keys() >= set(numbers.tolist()):
            self._walk()
        codes = np.array([self._codes.get(number, 0) for number in numbers.tolist()], "<u4")
        lengths = np.diff(np.append(changes, len(ids)))
        found = np.repeat(codes[numbers.searchsorted(ids[changes])], lengths) if len(ids) else np.zeros(0, "<u4")
        self.unknown += int(np.count_nonzero(found == 0))
        return {**columns, "cgroup": found}

    def _walk(self) -> None:
        """Reads the paths of all cgroups that are there, not too often."""
        if time.monotonic() < self._walked:
            return
        for one in self._cgroups.all():
            self._learn(one.id, one.path)
        self._walked = time.monotonic() + _APART_SECONDS

    def _learn(self, number: int, path: str) -> None:
        if len(self._codes) >= _MOST:
            self._codes.clear()
        self._codes[number] = self._context.strings.code(path)
