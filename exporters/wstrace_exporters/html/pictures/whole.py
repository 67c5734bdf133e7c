"""The whole: what is resident, by what kind of memory it is, and each of these by who brought it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.rows import BlameRow
from wstrace.analysis.blame.timeline import Timeline
from wstrace.schema import KIND_ANON, KIND_FILE, KIND_HEAP, KIND_SHARED, KINDS
from wstrace_exporters.html.encode import name, others, varints

#: The owners of each part that are told one by one.
_MOST = 12


class _Part(NamedTuple):
    """A part of the whole: its name, the kinds of memory that it is of, and which of their bytes."""

    title: str
    kinds: frozenset[str]
    amount: Callable[[Any], Any]


def _kinds(*numbers: int) -> frozenset[str]:
    return frozenset(KINDS[number] for number in numbers)


class _Bytes(NamedTuple):
    """The bytes of arrivals, as a row has them."""

    resident: NDArray[np.float64]
    private: NDArray[np.float64]

    @property
    def shared(self) -> NDArray[np.float64]:
        return self.resident - self.private


def _private(told: BlameRow | _Bytes) -> Any:
    return told.private


def _shared(told: BlameRow | _Bytes) -> Any:
    return told.shared


_TOLD = _kinds(KIND_ANON, KIND_HEAP, KIND_FILE, KIND_SHARED)
_OTHERS = frozenset(KINDS) - _TOLD
_PARTS = (
    _Part("private anonymous", _kinds(KIND_ANON), _private),
    _Part("heap", _kinds(KIND_HEAP), _private),
    _Part("private file", _kinds(KIND_FILE), _private),
    _Part("shared file", _kinds(KIND_FILE), _shared),
    _Part("shared since a fork", _kinds(KIND_ANON, KIND_HEAP) | _OTHERS, _shared),
    _Part("shared memory", _kinds(KIND_SHARED), lambda row: row.resident),
    _Part("stack and others", _OTHERS, _private),
)


def whole(arrived: Timeline) -> dict[str, Any]:
    """The parts, which sum to the total of `blame`; of each owner (name, bytes, and the bytes by time as varints).

    These are of each time at which any arrived its distance to the one before, and the bytes in halves of pages.
    """
    blame = arrived.blame
    rows, found = blame.rows("kind", "line"), arrived.arrivals("kind", "line") if arrived.n else None
    number = {row.whole: at for at, row in enumerate(blame.labels("kind", "line").joined())}
    unit = blame.of.page_size / 2

    def times(part: _Part, told: Sequence[BlameRow]) -> str:
        if found is None:
            return ""
        mine = np.isin(found.label, [number[row.whole] for row in told])
        amount = part.amount(_Bytes(found.resident[mine], found.private[mine]))
        units = np.round(np.bincount(found.time[mine], amount) / unit).astype(np.int64)
        some = np.flatnonzero(units)
        return varints(np.column_stack((np.diff(some, prepend=0), units[some])).ravel())

    return {"total": blame.total, "unit": unit,
            "parts": [part for one in _PARTS if (part := _told(one, rows, times))["bytes"]]}  # fmt: skip


def _told(part: _Part, rows: Sequence[BlameRow], times: Callable[[_Part, Sequence[BlameRow]], str]) -> dict[str, Any]:
    found = [(part.amount(row), row) for row in rows if row.kind in part.kinds and part.amount(row)]
    found.sort(key=lambda one: -one[0])
    owners: list[list[Any]] = [
        [name(row.label.removeprefix(f"{row.kind}  ")), n, times(part, [row])] for n, row in found[:_MOST]
    ]
    if rest := found[_MOST:]:
        owners.append([others(len(rest)), sum(n for n, _ in rest), times(part, [row for _, row in rest])])
    return {"name": part.title, "bytes": sum(n for n, _ in found), "owners": owners, "rest": len(rest)}
