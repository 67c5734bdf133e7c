"""A stream whose rows others name by id, as `stack` will be: every row's user finds it, through every way of a file."""

import numpy as np
import pytest
from kit.msgpack_scripted import started

from wstrace import schema
from wstrace.errors import OutputError
from wstrace.schema import Column, Schema
from wstrace.table import Selection
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.format.layout import LIMITS
from wstrace_exporters.msgpack.read.trace import open_trace

PLACE = Schema(
    "place",
    (Column("id", "u32", "place"), Column("within", "u32", "place"), Column("name", "u32", "str")),
    essential=True,
    always=frozenset(("id",)),
)
VISIT = Schema(
    "visit", (Column("time_ns", "u64", "ns"), Column("at", "u32", "place"), Column("expected", "u32", "str"))
)


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """The semantic `place`, whose ids name rows of the stream `place`."""
    monkeypatch.setitem(schema.SEMANTICS, "place", "the id of a row of `place`")
    monkeypatch.setitem(schema.ID_SPACES, "place", "place")
    monkeypatch.setitem(schema.TABLES, "place", "place")
    monkeypatch.setitem(schema.STREAMS, "place", PLACE)


class Session:
    """One that writes: places 1, 2, ... of which each stands within the one before, and visits of each."""

    def __init__(self, path, prefix: str, **options: object) -> None:
        self.exporter, context = started(path, **options)
        self.strings, self.prefix, self.known = context.strings, prefix, 0

    def visit(self, *places: int) -> None:
        """Visits of those places, whose rows come before where they are new."""
        new = list(range(self.known + 1, max(places) + 1))
        if new:
            self.known = max(places)
            self.exporter.export(batch_of(PLACE, self.strings, id=new, within=[n - 1 for n in new],
                                          name=[f"{self.prefix}{n}" for n in new]))  # fmt: skip
        self.exporter.export(batch_of(VISIT, self.strings, time_ns=[5] * len(places), at=list(places),
                                      expected=[f"{self.prefix}{n}" for n in places]))  # fmt: skip

    def close(self) -> None:
        self.exporter.close()


def test_rows_stand_before_their_users_also_where_a_user_has_waited_for_longer(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    exporter.export(batch_of(VISIT, context.strings, time_ns=[4], at=0, expected=""))
    exporter.export(batch_of(PLACE, context.strings, id=[1], within=0, name="a1"))
    exporter.export(batch_of(VISIT, context.strings, time_ns=[5], at=1, expected="a1"))
    exporter.flush(1)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert [batch.schema.name for batch in trace.read(Selection())] == ["place", "visit"]


def test_rows_past_the_limit_are_counted_in_the_writer_and_in_the_reader(tmp_path, monkeypatch):
    few = LIMITS._replace(table_rows=8)
    for module in ("writer",):
        monkeypatch.setattr(f"wstrace_exporters.msgpack.write.{module}.LIMITS", few)
    session = Session(tmp_path / "x.wst", "a")
    for n in range(1, 7):
        session.visit(n)
    with pytest.raises(OutputError, match="lacks 2 records: place has more rows than a reader takes"):
        session.close()
    with open_trace(str(tmp_path / "x.wst"), limits=few) as trace:
        assert np.concatenate([b["at"] for b in trace.batches("visit")]).tolist() == [1, 2, 3, 4, 0, 0]
        assert trace.damage()["lost_names"] == 2
        (mark,) = (mark for mark in trace.marks if mark["m"] == "lost")
        assert (mark["lost"], mark["why"]) == ({"place": 2}, "place has more rows than a reader takes")
    with open_trace(str(tmp_path / "x.wst"), limits=LIMITS._replace(table_rows=3)) as trace:
        assert np.concatenate([b["at"] for b in trace.batches("visit")]).tolist() == [1, 2, 3, 0, 0, 0]
        assert trace.damage()["lost_names"] == 3
