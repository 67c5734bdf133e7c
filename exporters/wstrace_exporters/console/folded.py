"""The format `.folded`: the faults of each stack, as flame graphs take them; what `report --format folded` prints.

Of a sampled trace a fault counts for those that it stands for. The format has no place to say so: the commands do.
"""

from __future__ import annotations

from typing import IO

from wstrace.analysis.frames import to_the_root
from wstrace.text import printable
from wstrace.trace import Trace

#: What separates the frames of a stack, and what stands for it in a name.
_FOLD, _UNFOLD = ";", ","


def write(trace: Trace, file: IO[bytes]) -> int:
    """Writes a line `outermost;...;innermost faults` per stack; returns their number."""
    rows = [row for row in trace.report(by="stack", sort="faults").rows if row["faults"]]
    for row in rows:
        frames = [str(frame) for frame in reversed(to_the_root(row.labels[0].frames))] or [row.label]
        names = (printable(frame).replace(_FOLD, _UNFOLD) for frame in frames)
        file.write(f"{_FOLD.join(names)} {row['faults']}\n".encode())
    return len(rows)
