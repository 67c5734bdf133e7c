"""Batches of one stream with differing columns: every row counts and every column is known, in a file and in memory."""

import pytest
from kit.msgpack_scripted import started

from wstrace.batch import Batch
from wstrace.schema import RESIDENT_PAGES
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.copy import copy


def residents(with_shares: int, without: int) -> tuple[Batch, Batch]:
    first = batch_of(RESIDENT_PAGES, start=list(range(with_shares)), pages=1, shares=2)
    return first, batch_of(RESIDENT_PAGES, start=list(range(without)), pages=1)


@pytest.fixture(params=["the first lacks it", "the last lacks it"])
def path(request, tmp_path):
    exporter, _ = started(tmp_path / "x.wst")
    batches = residents(860, 80)
    for batch in reversed(batches) if request.param == "the first lacks it" else batches:
        exporter.export(batch)
    exporter.close()
    return str(tmp_path / "x.wst")


def rows_of(batches) -> int:
    return sum(map(len, batches))


def test_rows_without_the_column_that_is_requested_are_rows(path):
    with open_trace(path) as trace:
        assert rows_of(trace.batches("resident", ["shares"])) == 940
        assert rows_of(trace.batches("resident", ["shares"], pids=[0])) == 940
        assert len(trace.batches("resident", ["shares"]).to_numpy()) == 940


def test_the_columns_of_several_parts_and_of_their_copy_are_those_of_all(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.wst", "b.wst")]
    for path, batch in zip(paths, reversed(residents(3, 2)), strict=True):
        exporter, _ = started(path)
        exporter.export(batch)
        exporter.close()
    copied = str(tmp_path / "both.wst")
    with open_trace(paths) as trace:
        assert "shares" in [column.name for column in trace.columns_of("resident")]
        copy(trace, copied)
    with open_trace(copied) as trace:
        assert "shares" in [column.name for column in trace.columns_of("resident")]
        assert len(trace.batches("resident", ["shares"]).to_numpy()) == 5
