"""Snapshots in a trace file: a part that is missing stays missing, however often the file is written anew."""

import numpy as np
import pytest
from kit.msgpack_scripted import started

from wstrace.analysis.moments import LastSnapshots
from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import RESIDENT_PAGES
from wstrace_exporters.msgpack.format.layout import FRAME_ROWS
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.copy import copy


def whole(path: str) -> list[int]:
    """Pages of each whole snapshot of a file."""
    last = LastSnapshots(list, lambda pages, part: pages.append(int(part["pages"].sum())))
    with open_trace(path) as trace:
        for batch in trace.batches("resident"):
            last.add(batch)
    return [sum(pages) for _, pages in last]


@pytest.mark.parametrize("rows", [10, FRAME_ROWS + 1])
@pytest.mark.parametrize(("parts", "expected"), [((0, 1, 2), 3), ((1, 2), 0), ((0, 2), 0), ((0, 1), 0)])
def test_a_snapshot_with_a_missing_part_never_becomes_whole(tmp_path, rows, parts, expected):
    first, again = str(tmp_path / "x.wst"), str(tmp_path / "y.wst")
    exporter, context = started(tmp_path / "x.wst")
    for part in parts:
        runs = {"start": np.arange(rows, dtype="<u8") << 12, "pages": np.ones(rows, "<u4")}
        this = SnapshotPart(number=1, part=part, last=part == 2, pid=7, time_ns=5, pages=rows)
        exporter.export(Batch(RESIDENT_PAGES, runs, strings=context.strings, snapshot=this))
    exporter.close()
    assert whole(first) == ([expected * rows] if expected else [])
    with open_trace(first) as trace:
        copy(trace, again)
    assert whole(again) == whole(first)
