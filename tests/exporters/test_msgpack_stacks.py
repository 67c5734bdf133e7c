"""Stacks in a trace file: what went in comes out, through parts, merges, cut files and sessions that go on with one."""

import kit.synthetic_trace as synthetic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.msgpack_scripted import started
from kit.stacks_scripted import Fault, Stacks, stacks_of

from wstrace.errors import OutputError
from wstrace.table import Selection
from wstrace_exporters.msgpack.format.layout import LIMITS, name_and_number
from wstrace_exporters.msgpack.read.trace import TraceFile, open_trace
from wstrace_exporters.msgpack.write.copy import copy

PYTHON = st.tuples(
    st.sampled_from(["f", "C.g", "<module>", "h \udcff"]), st.sampled_from(["/a.py", "b.py"]), st.integers(0, 3)
)
NATIVE = st.tuples(st.integers(1, 4), st.sampled_from([0, 4096, (1 << 64) - 1]))
FAULTS = st.lists(
    st.tuples(st.lists(PYTHON, max_size=5), st.lists(NATIVE, max_size=5), st.sampled_from([0, 1, (1 << 32) - 1])).map(
        lambda values: Fault(*values)
    ),
    min_size=1,
    max_size=20,
)
SETTINGS = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, *batches_of_faults, **options) -> list:
    """A trace in which each list of faults is flushed; gives what was exported."""
    exporter, context = started(path, force=not options.get("resume"), fsync="none", **options)
    stacks, given_ = Stacks(context.strings, context.stack_ids), []
    given_.append(synthetic.mappings(context.strings, 5))
    exporter.export(given_[0])
    for faults in batches_of_faults:
        for batch in stacks.batches(faults):
            exporter.export(batch)
            given_.append(batch)
        exporter.flush(1)
    exporter.close()
    return given_


def same(path, exported) -> None:
    with open_trace(path if isinstance(path, list) else str(path)) as trace:
        read = list(trace.read(Selection()))
        for column in ("stack", "native_stack"):
            assert stacks_of(read, column) == stacks_of(exported, column)
        for column in ("stack_how", "native_how", "weight"):
            assert columns(read, column) == columns(exported, column)
        assert trace.damage()["lost_names"] == 0


def columns(batches, name: str) -> list[int]:
    return [value for batch in batches if name in batch for value in batch[name].tolist()]


@given(st.lists(FAULTS, min_size=1, max_size=3), FAULTS)
@SETTINGS
def test_a_file_a_merge_and_a_recovered_file_give_what_went_in(tmp_path, lists, other):
    exported = write(tmp_path / "a.wst", *lists), write(tmp_path / "b.wst", other)
    same(tmp_path / "a.wst", exported[0])
    for names, output in (("ab", "merged.wst"), ("a", "again.wst")):
        with open_trace([str(tmp_path / f"{name}.wst") for name in names]) as trace:
            copy(trace, str(tmp_path / output), force=True)
    same(tmp_path / "again.wst", exported[0])
    with open_trace(str(tmp_path / "merged.wst")) as trace:
        for column in ("stack", "native_stack"):
            assert sorted(stacks_of(trace.read(Selection()), column)) == sorted(
                stack for batches in exported for stack in stacks_of(batches, column)
            )


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_part_that_lost_its_header_keeps_the_stacks_of_its_session(tmp_path, damaged):
    """GIVEN parts of one session, of which each names other functions WHEN one lost its header THEN ids stay theirs."""
    lists = [[Fault([(name, "a.py", 1), ("main", "a.py", 9)], []) for name in names] for names in ("fg", "gh", "hi")]
    exported = write(tmp_path / "x.wst", *lists, rotate_bytes=1)
    paths = sorted(tmp_path.glob("x*.wst"), key=lambda path: name_and_number(str(path)))
    data = bytearray(paths[damaged].read_bytes())
    data[12] ^= 1  # in the head of the first frame
    paths[damaged].write_bytes(data)
    same([str(path) for path in paths], exported)
    with TraceFile([str(path) for path in paths]) as trace:
        rows = [batch for batch in trace.read(Selection()) if batch.schema.name == "call_site"]
        assert sorted(columns(rows, "id")) == sorted(
            columns([batch for batch in exported if batch.schema.name == "call_site"], "id")
        )


@pytest.mark.parametrize("name", ["file", "kind"])
def test_a_column_that_faults_derive_is_stored_of_a_call_site(tmp_path, name):
    write(tmp_path / "x.wst", [Fault(python=[("f", "a.py", 1)], native=[(1, 4096)])])
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (alone,) = {tuple(columns([batch], name)) for batch in trace.batches("call_site", [name]) if len(batch) > 0}
        whole = [value for batch in trace.batches("call_site") for value in batch[name].tolist()]
        assert list(alone) == whole
        texts = [trace.strings[value] for value in whole] if name == "file" else whole
        assert set(texts) == ({"", "a.py"} if name == "file" else {0, 1, 2})


def test_call_sites_stand_before_their_faults_also_where_a_fault_has_waited_for_longer(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    stacks = Stacks(context.strings, context.stack_ids)
    exporter.export(stacks.batches([Fault()])[-1])
    for batch in stacks.batches([Fault([("f", "a.py", 1)])]):
        exporter.export(batch)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert [batch.schema.name for batch in trace.read(Selection())] == ["call_site", "page_fault"]


def test_call_sites_past_the_limit_are_counted_in_the_writer_and_in_the_reader(tmp_path, monkeypatch):
    few = LIMITS._replace(table_rows=8)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.writer.LIMITS", few)
    exporter, context = started(tmp_path / "x.wst")
    stacks = Stacks(context.strings, context.stack_ids)
    for n in range(6):
        for batch in stacks.batches([Fault([(f"f{n}", "a.py", 1)])]):
            exporter.export(batch)
    with pytest.raises(OutputError, match="lacks 3 records: call_site has more rows than a reader takes"):
        exporter.close()
    for limits, known in ((few, 3), (LIMITS._replace(table_rows=3), 2)):
        with open_trace(str(tmp_path / "x.wst"), limits=limits) as trace:
            assert [bool(stack) for stack in columns(trace.batches("page_fault"), "stack")] == [
                n < known for n in range(6)
            ]
            assert trace.damage()["lost_names"] == 6 - known
            (mark,) = (mark for mark in trace.marks if mark["m"] == "lost")
            assert (mark["lost"], mark["why"]) == ({"call_site": 3}, "call_site has more rows than a reader takes")
