"""What a recording of a flight recorder says first: what happened, what grew before it, and which line did it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import NAME_LIMIT, Row, first_touched, most_of, name_of
from wstrace.analysis.timeline import Timeline
from wstrace.firing import ENDED, KILLED, Recording
from wstrace.text import duration, number, printable, unit_of

#: The least share of what arrived that a line has which the first line names.
_SHARE = 0.1
_VERBS = {KILLED: "killed at ", ENDED: "ended at "}


def moment_of(fired: Recording) -> int:
    """The moment that a recording shows, in ns: when its trigger fired, or the last snapshot before the end."""
    if fired.how not in (KILLED, ENDED):
        return fired.time_ns
    return fired.last_look_ns if fired.last_look_ns >= fired.begin_ns else 0


def first_lines(of: Composition, fired: Recording) -> list[str]:
    """`api: at 400.2 MiB; +310.0 in the last 90 s: 240.0 by load_index app.py:88`, and what is kept.

    The gain is of the sizes that were read. Of the lines it says what arrived in that time and was still there at
    the moment of the composition. What arrived later, or is in no snapshot, is said to be brought. The size of a cgroup
    is what it is charged for, its page cache included and without what others are charged for: both are named.
    """
    unit, divisor = unit_of(max(fired.n_bytes, fired.from_bytes))
    seconds = max(fired.time_ns - fired.from_ns, 0) / 1e9
    line = f"{printable(fired.who, NAME_LIMIT) or '?'}: {_VERBS.get(fired.how, 'at ')}{fired.n_bytes / divisor:,.1f}"
    line += f" {unit}{' charged' * bool(fired.cgroup)}"
    if seconds:
        gain = (fired.n_bytes - fired.from_bytes) / divisor
        line += f"; {gain:+,.1f} in the last {_span(seconds)}"
        line += _arrived(of, fired, divisor)
    return [line, _kept(fired)]


def _arrived(of: Composition, fired: Recording, divisor: float) -> str:
    """`: 240.0 by load_index app.py:88, ...`, and what of it is not of the resident pages."""
    looked = of.inputs.time_ns if of.rss else 0
    border = min(max(looked, fired.from_ns), fired.time_ns) if fired.how in (KILLED, ENDED) else fired.time_ns
    end = np.iinfo(np.int64).max  # a fault that was served while the trigger was read belongs to it
    edges = np.array([fired.from_ns, border if border < fired.time_ns else end, end], np.uint64)
    over = Timeline(of, edges, fired.pids).by("line")
    estimated = {row.whole for row in of.rows("line") if row["estimated"]}

    def named(amounts: NDArray[Any], how: str) -> str:
        """`resident 240.0 by load_index app.py:88, ...`; "" = there is none."""
        order = np.argsort(-amounts, kind="stable").tolist()
        parts = ((_by(row := over.rows[at]), int(amounts[at]), row.whole in estimated) for at in order)
        words = most_of(((name, n, n * doubtful) for name, n, doubtful in parts), int(amounts.sum()), written, _SHARE)
        return f"{how}{words}" if words else ""

    def written(n: int) -> str:
        return f"{n / divisor:,.1f}"

    there, later = over.resident[:, 0], over.brought[:, 1]
    if not looked:
        return ": " + (
            named(over.brought.sum(axis=1), "brought, which may have been given back: ")
            or "no fault was recorded then, and its memory was not looked at"
        )
    text = named(there, "resident " * bool(fired.cgroup)) or "no line is known"
    most = over.rows[int(there.argmax())] if there.any() else None
    again = next((row["again"] for row in of.rows("line") if most is not None and row.whole == most.whole), 0)
    if most is not None and (freed := first_touched(name_of(most.label), again, float(there.max()))):
        text = f"{written(int(there.max()))} {freed}"
    if fired.how not in (KILLED, ENDED):
        return f": {text}"
    ago = max(fired.time_ns - looked, 0) / 1e9
    seen = f"at the last snapshot, {_span(ago)} before, at {written(of.rss)}{' resident' * bool(fired.cgroup)}"
    return f": {text} ({'; '.join(filter(None, (seen, named(later, 'brought after it '))))})"


def _by(row: Row) -> str:
    return row.label if row.of("reason") else f"by {name_of(row.label)}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if 10 <= seconds < 120 else duration(seconds)


def _kept(fired: Recording) -> str:
    """`at rss=400MiB; kept 120 s before it, 31,337 older records were let go`."""
    kept = max(fired.time_ns - fired.begin_ns, 0) / 1e9
    gone = sum(fired.let_go.values())
    older = f", {number(gone)} older records were let go" if gone else ", nothing older was let go"
    short = (
        f" of {_span(fired.asked_seconds)}: their size was at its limit" if gone and kept < fired.asked_seconds else ""
    )
    return f"trigger {printable(fired.what, NAME_LIMIT)}; kept {_span(kept)}{short} before it{older}"
