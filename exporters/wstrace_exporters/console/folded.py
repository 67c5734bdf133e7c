"""The format `.folded`: the faults of each stack, as flame graphs take them; what `report --format folded` prints.

Of a sampled trace a fault counts for those that it stands for. The format has no place to say so: the commands do.
"""

from __future__ import annotations

from typing import IO

from wstrace.analysis.symbols import symbolizer_of
from wstrace.schema import CALL_SITE, MAPPING, PAGE_FAULT, PROCESS, STACK_COLUMNS
from wstrace.trace import Trace
from wstrace_exporters.console.stack_report import StackReport


def write(trace: Trace, file: IO[bytes], *, native: bool = False) -> int:
    """Writes a line `outermost;...;innermost faults` per stack; returns their number.

    Args:
        trace: the trace.
        file: the output.
        native: tell stacks by the samples of native code.
    """
    report = StackReport("", (), (), "", "", native=native)
    of_faults = ("time_ns", "pid", "host", "pc", "pc_mapping", "pc_file", "flags", "sampled", *STACK_COLUMNS)
    wanted = {CALL_SITE.name: None, MAPPING.name: None, PROCESS.name: None, PAGE_FAULT.name: of_faults}
    for stream, columns in wanted.items():
        for batch in trace.batches(stream, columns):
            report.add(batch)
    lines = 0
    for line in report.folded(symbolizer_of(trace.info, trace.batches(MAPPING.name))):
        file.write(line.encode())
        lines += 1
    return lines
