"""The format `.folded`: the faults of each stack, as flame graphs take them; what `report --format folded` prints.

Of a sampled trace a fault counts for those that it stands for. The format has no place to say so: the commands do.
"""

from __future__ import annotations

from typing import IO

from wstrace.analysis.symbols import symbolizer_of
from wstrace.schema import MAPPING
from wstrace.text import printable
from wstrace.trace import Trace

#: What separates the frames of a stack, and what stands for it in a name.
_FOLD, _UNFOLD = ";", ","


def write(trace: Trace, file: IO[bytes]) -> int:
    """Writes a line `outermost;...;innermost faults` per stack; returns their number."""
    counts, lines = trace.stacks(), 0
    native = not counts.python and counts.native > 0
    for frames, faults in counts.folded(symbolizer_of(trace.info, trace.batches(MAPPING.name)), native=native):
        names = (printable(frame).replace(_FOLD, _UNFOLD) for frame in frames)
        file.write(f"{_FOLD.join(names)} {faults}\n".encode())
        lines += 1
    return lines
