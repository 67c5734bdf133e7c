"""Over time: the composition of a trace at each of its snapshots, and what grew from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wstrace.analysis.blame.changes import Change, changes_between
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.past import Past
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.moments import Recorded, Snapshot, Snapshots
from wstrace.errors import UsageError

#: The moments that are told; the step between them is widened for more.
MOST = 30


@dataclass(slots=True)
class Moment:
    """The resident pages at one moment. rows: by the view that was asked for; resident, private: bytes."""

    time_ns: int
    resident: int
    private: int
    rows: list[BlameRow]
    complete: bool


class OverTime:
    """Who held how much at each moment of a trace.

    Args:
        trace: the trace.
        step: seconds between two moments; snapshots that are nearer to each other are one moment, of which the last
            one of each process counts. The snapshot of a command at its exit is none of them.
        by: the view of the rows, as of Blame.rows().
        pids: the processes that are wanted; () = all.

    Attributes:
        moments: by time. step: seconds, wider than asked for where there would be more than MOST moments.

    Raises:
        UsageError: step is not positive.
    """

    def __init__(self, trace: Recorded, step: float, by: str = "line", pids: Sequence[int] = ()) -> None:
        if step <= 0:
            raise UsageError(f"a step of {step} s", "give seconds above 0")
        taken = [one for one in Snapshots(trace).taken if not pids or one.whose[1] in pids]
        taken = _before_the_exit(trace, taken)
        times = np.array([one.time_ns for one in taken], np.float64)
        span = (times[-1] - times[0]) / 1e9 if len(times) else 0.0
        self.step, self.by = max(step, span / (MOST - 1)), by
        # one moment is what was read until a quarter of a step after it, so that the first one is the beginning
        number = np.ceil((times - times[:1]) / (self.step * 1e9) - 0.25).astype(np.int64)
        last = np.flatnonzero(np.append(number[1:] != number[:-1], np.ones(min(len(times), 1), np.bool_)))
        asked = [taken[at].time_ns for at in last.tolist()]
        past = Past(trace, [(time, pids) for time in asked], whole_stacks=by == "thread") if asked else None
        self.moments = [_moment(Composition(trace, time, past=past, number=at), by) for at, time in enumerate(asked)]

    def growth(self, first: int = 0, last: int = -1) -> list[Change]:
        """What the rows of one moment have more at another, the largest change first; sizes in bytes."""
        return changes_between(self.moments[first].rows, self.moments[last].rows, self.by)

    def seconds(self, moment: int = -1) -> float:
        """The time of a moment after the first one."""
        return (self.moments[moment].time_ns - self.moments[0].time_ns) / 1e9

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `schema` 1; sizes in bytes, the rows of each moment sum to its total."""
        return {
            "schema": 1,
            "by": self.by,
            "step_seconds": self.step,
            "growth": [row.as_dict() for row in self.growth() if row.change] if self.moments else [],
            "moments": [
                {"time_ns": moment.time_ns, "seconds": self.seconds(at), "resident": moment.resident,
                 "private": moment.private, "complete": moment.complete,
                 "rows": [row.as_dict() for row in moment.rows if row.resident]}
                for at, moment in enumerate(self.moments)
            ],
        }  # fmt: skip


def _before_the_exit(trace: Recorded, taken: list[Snapshot]) -> list[Snapshot]:
    """Without the snapshot of a command that was taken after it had ended: it has freed what it held."""
    info = trace.info
    at_exit = [at for at, one in enumerate(taken) if one.whose[1] == info.final_snapshot]
    if info.exit_code is None or len(at_exit) < 2:
        return taken
    return [*taken[: at_exit[-1]], *taken[at_exit[-1] + 1 :]]


def _moment(of: Composition, by: str) -> Moment:
    blame = Blame(of)
    rows = blame.rows(by)
    return Moment(of.inputs.time_ns, blame.total, sum(row.private for row in rows), rows, of.complete)
