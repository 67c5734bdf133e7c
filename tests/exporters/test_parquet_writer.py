"""Parquet as other programs read it: the same rows, few bytes a row, large groups, no unsigned numbers."""

import kit.synthetic_trace as synthetic
import pytest

from wstrace.batch import Dictionary
from wstrace.schema import MAPPING, PAGE_FAULT
from wstrace.testing import batch_of, trace_of

pytest.importorskip("pyarrow")
from pyarrow import parquet

ROWS = 1_100_000


@pytest.fixture(scope="module")
def trace():
    strings = Dictionary()
    return trace_of(synthetic.mappings(strings), *synthetic.faults(strings, ROWS))


@pytest.fixture(scope="module")
def written(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("parquet") / "x.parquet"
    assert trace.save(str(path)) == ROWS
    return path


def test_its_groups_are_large_and_its_rows_small(written):
    described = parquet.ParquetFile(written).metadata
    assert [described.row_group(n).num_rows for n in range(described.num_row_groups)] == [1 << 20, ROWS - (1 << 20)]
    assert written.stat().st_size / ROWS < 3.2
    first = described.row_group(0)
    encodings = {first.column(n).path_in_schema: first.column(n).encodings for n in range(first.num_columns)}
    assert "DELTA_BINARY_PACKED" in encodings["time_ns"]
    assert "BYTE_STREAM_SPLIT" in encodings["va"]
    assert "RLE_DICTIONARY" in encodings["pc"]


def test_no_number_is_unsigned_for_many_engines_have_none(written):
    assert not [field for field in parquet.read_schema(written) if str(field.type).startswith("uint")]


def test_a_row_may_lack_a_column_and_a_group_may_begin_with_other_names(tmp_path):
    """Batches differ in their columns, and names come in as the trace goes on; the largest numbers keep their bits."""
    strings, most = Dictionary(), (1 << 64) - 1
    files = [f"/usr/lib/lib{n}.so" for n in range(3)]
    faults = [
        batch_of(PAGE_FAULT, strings, time_ns=[1, 2], pid=7, tid=7, pc=most, va=[most, 0], flags=0, file=files[:2]),
        batch_of(PAGE_FAULT, strings, time_ns=[3], pid=(1 << 32) - 1, tid=7, pc=1, va=[1], flags=255,
                 file=files[2:], weight=[9]),
    ]  # fmt: skip
    assert trace_of(*faults).save(str(tmp_path / "x.parquet")) == 3
    # not a dictionary, which engines that are built on DataFusion refuse
    assert str(parquet.read_schema(tmp_path / "x.parquet").field("file").type) == "string"
    rows = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row["va"] for row in rows] == [-1, 0, 1]
    assert [row["weight"] for row in rows] == [None, None, 9]
    assert [(row["pid"], row["flags"], row["file"]) for row in rows] == [
        (7, 0, files[0]), (7, 0, files[1]), ((1 << 32) - 1, 255, files[2])
    ]  # fmt: skip


def test_every_stream_can_be_written_and_an_empty_one(tmp_path):
    strings = Dictionary()
    trace = trace_of(synthetic.mappings(strings))
    assert trace.save(str(tmp_path / "m.parquet"), stream=MAPPING.name) == 40
    table = parquet.read_table(tmp_path / "m.parquet")
    assert table["start"].to_pylist()[:2] == [synthetic.FIRST_MAPPING, synthetic.FIRST_MAPPING + (1 << 24)]
    assert table["file"].to_pylist()[0] == "/usr/lib/lib1.so"
    assert trace_of(*synthetic.faults(strings, 0)).rows == {}
    nothing = trace_of(batch_of(PAGE_FAULT, strings, time_ns=[1], pid=7, tid=7, pc=1, va=1, flags=0))
    assert nothing.save(str(tmp_path / "e.parquet"), start=2) == 0
    assert parquet.read_table(tmp_path / "e.parquet").num_rows == 0
