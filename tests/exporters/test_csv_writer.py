"""CSV is, byte by byte, what one cell after the other gives."""

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wstrace.batch import Batch, Dictionary
from wstrace.schema import KINDS, Column, Schema
from wstrace.testing import trace_of
from wstrace.text import printable, spreadsheet_text
from wstrace_exporters.csv import writer

NAMES = ["", "/usr/lib/libc.so.6", '=1+"1"', "\0", "é\n,", "\udcff", "ÿ" * 300, "-x"]
LEAST, MOST = -(1 << 63), (1 << 64) - 1
SIGNED = st.sampled_from([0, -1, 1, 9_999, 10_000, -10_000, 10**18, LEAST, -LEAST - 1]) | st.integers(LEAST, -LEAST - 1)
UNSIGNED = st.sampled_from([0, 1, 9, 10, 9_999, 10_000, 10_001, 10**19, MOST]) | st.integers(0, MOST)
ROWS = st.lists(st.tuples(UNSIGNED, SIGNED, st.integers(0, len(NAMES) - 1), st.integers(0, 255)), max_size=12)
TABLE = Schema("table", (Column("at", "u64", "ns"), Column("code", "i64", "count"), Column("name", "u32", "str"),
                         Column("kind", "u8", "id", words=KINDS), Column("pid", "u32", "id")))  # fmt: skip


def batch_of(rows: list[tuple[int, ...]]) -> Batch:
    strings = Dictionary()
    for name in NAMES:
        strings.code(name)
    types = {"at": "u8", "code": "i8", "name": "u4", "kind": "u1"}
    columns = {name: np.array([row[at] for row in rows], dtype) for at, (name, dtype) in enumerate(types.items())}
    return Batch(TABLE, columns, strings=strings)


def by_hand(batch: Batch) -> bytes:
    """One cell after the other; the column pid is not known."""
    known = [*KINDS, *(f"kind {number}" for number in range(len(KINDS), 256))]

    def quoted(text):
        return '"' + spreadsheet_text(printable(text)).replace('"', '""') + '"'

    text = ""
    for time, code, name, kind in zip(*(batch[column].tolist() for column in batch), strict=True):
        shown = quoted(batch.strings[name])
        text += f"{time},{code},{shown},{quoted(known[kind])},\n"
    return text.encode()


def written(batch: Batch) -> bytes:
    """What the format writes of a batch, without the line of names."""
    file = io.BytesIO()
    rows = trace_of(batch).batches("table", [column.name for column in TABLE.columns])
    assert writer.write(rows, file) == len(batch)
    return file.getvalue().partition(b"\n")[2]


@given(ROWS)
def test_it_is_what_one_cell_after_the_other_gives(rows):
    batch = batch_of(rows)
    assert written(batch) == by_hand(batch)


def test_many_rows_are_what_one_cell_after_the_other_gives():
    batch = batch_of([(n * 10**15, -n, n % 8, n % 256) for n in range(10_000)])
    assert written(batch) == by_hand(batch)
