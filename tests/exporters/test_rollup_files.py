"""`convert --rollup`: Parquet that engines read as one table, written once however often it is converted."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import wstrace
from msgpack_scripted import recorded, started

from wstrace.analysis.rollup import ROLLUP
from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.rollup_files import write_rollup
from wstrace.schema import PAGE_FAULT
from wstrace.testing import ExporterContract, batch_of
from wstrace_msgpack.commands.rollups import write_rollups
from wstrace_msgpack.format.layout import EVENTS
from wstrace_msgpack.read.trace import open_trace
from wstrace_pyarrow.rollup import RollupExporter

parquet = pytest.importorskip("pyarrow.parquet")
duckdb = pytest.importorskip("duckdb")
N = 30_000


def ask(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute(
            f"create view rollup as from read_parquet('{folder}/**/*.parquet', hive_partitioning=true,"
            " hive_types_autocast=false)"
        )
        return connection.execute(sql).fetchall()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def convert(trace: Path, folder: Path) -> int:
    """As `convert --rollup 1s` does, without a process of its own; the number of files."""
    with open_trace(str(trace)) as opened:
        return write_rollups(opened, str(folder), 1.0, lambda _: None)[1]


def test_its_sums_are_those_of_the_trace_with_what_was_lost(tmp_path):
    faults = recorded(tmp_path / "x.wst", N)
    done = wstrace("convert", tmp_path / "x.wst", "--rollup", "1s", "-o", tmp_path / "r")
    assert (done.returncode, done.stderr.count("in 1 file")) == (0, 1), done.stderr
    sums = "select sum(faults), sum(recorded), sum(bytes), sum(lost), sum(faults) filter (major = 1) from rollup"
    major = sum(int((batch["flags"] & 1).sum()) for batch in faults)
    assert ask(tmp_path / "r", sums) == [(N, N, N * 4096, 7, major)]
    with open_trace(str(tmp_path / "x.wst")) as trace:
        by_file = {row.label: row.total for row in trace.summary().top("file", None)}
        resident = {file: pages * 4096 for file, _, pages in trace.summary().resident()}
    found = ask(tmp_path / "r", "select file, sum(faults) from rollup where faults > 0 group by file")
    assert dict(found) == by_file
    held = ask(tmp_path / "r", "select file, sum(resident_bytes) b from rollup group by file having b > 0")
    assert dict(held) == resident


def test_days_and_hosts_are_folders_and_no_number_is_unsigned(tmp_path):
    recorded(tmp_path / "x.wst", 1000)
    convert(tmp_path / "x.wst", tmp_path / "r")
    (path,) = (tmp_path / "r").rglob("*.parquet")
    date, host = path.parent.parent.name, path.parent.name
    assert date.startswith("date=20")
    assert host.startswith("host=")
    schema = parquet.read_schema(path)
    assert schema.names == [column.name for column in ROLLUP.columns if column.name != "host"]
    assert not [field for field in schema if "uint" in str(field.type) and "dictionary" not in str(field.type)]


def test_converting_again_gives_the_same_files(tmp_path):
    recorded(tmp_path / "x.wst", 5000)
    convert(tmp_path / "x.wst", tmp_path / "r")
    before = files(tmp_path / "r")
    convert(tmp_path / "x.wst", tmp_path / "r")
    assert files(tmp_path / "r") == before


def test_parts_count_once_whether_they_are_converted_alone_or_together(tmp_path):
    recorded(tmp_path / "x.wst", N, rotate_bytes=30_000)
    parts = sorted(tmp_path.glob("x*.wst"))
    assert len(parts) > 2
    convert(parts[-1], tmp_path / "r")
    for one in parts[:2]:
        convert(one, tmp_path / "r")
    convert(tmp_path / "x.wst", tmp_path / "r")
    assert len(files(tmp_path / "r")) == len(parts)
    assert ask(tmp_path / "r", "select sum(faults) from rollup") == [(N,)]


def sampled(path: Path, *every: int) -> None:
    """Ten faults at each of these rates, as a source with a rate writes them; the trace's own rate is the last."""
    exporter, context = started(path)
    for at, one in enumerate(every):
        rows = {"time_ns": list(range(10 * at + 1, 10 * at + 11)), "pid": 7, "tid": 7, "pc": 1, "va": 4096, "flags": 0}
        rows |= {"sampled": one} if set(every) != {1} else {}
        exporter.export(batch_of(PAGE_FAULT, context.strings, **rows))
        exporter.flush(1)
    context.info.sampled = every[-1]
    exporter.close()


def test_traces_of_several_rates_are_added_up_each_by_its_own(tmp_path):
    sampled(tmp_path / "a.wst", 1)
    sampled(tmp_path / "b.wst", 10)
    with open_trace([str(tmp_path / "a.wst"), str(tmp_path / "b.wst")]) as trace:
        write_rollups(trace, str(tmp_path / "r"), 1.0, lambda _: None)
        assert trace.summary().in_all == 110
    assert ask(tmp_path / "r", "select sum(faults), sum(recorded) from rollup") == [(110, 20)]


def test_of_a_cut_trace_the_rows_tell_the_rate(tmp_path):
    sampled(tmp_path / "x.wst", 10, 10, 10)
    whole = (tmp_path / "x.wst").read_bytes()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        end = max(int(one["offset"] + one["length"]) for one in trace.parts[0].entries if one["kind"] == EVENTS)
    (tmp_path / "cut.wst").write_bytes(whole[:end])
    with open_trace(str(tmp_path / "cut.wst")) as trace:
        assert (trace.state, trace.info.sampled) == ("cut", 10)


def test_a_cut_trace_gives_what_can_be_read_and_says_so(tmp_path):
    recorded(tmp_path / "x.wst", N)
    whole = (tmp_path / "x.wst").read_bytes()
    (tmp_path / "cut.wst").write_bytes(whole[: len(whole) // 2])
    done = wstrace("convert", tmp_path / "cut.wst", "--rollup", "1s", "-o", tmp_path / "r")
    assert "the trace is cut" in done.stderr
    ((faults,),) = ask(tmp_path / "r", "select sum(faults) from rollup")
    assert N / 4 < faults < N


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rollup", "0.5s"), "no interval"),
        (("--rollup", "1s", "--stream", "process"), "takes a whole trace"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, options, told):
    recorded(tmp_path / "x.wst", 100)
    done = wstrace("convert", tmp_path / "x.wst", "-o", tmp_path / "r", *options)
    assert done.returncode == 125, done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def rollup_of(host: str, *seconds: int) -> Batch:
    nothing = {column.name: "" if column.semantic == "str" else 0 for column in ROLLUP.columns}
    return batch_of(ROLLUP, Dictionary(), **nothing | {"second": list(seconds), "host": host, "faults": 1})


def test_the_name_of_a_host_is_no_path(tmp_path):
    name = "../../etc/a=b c\udcff"
    (path,) = write_rollup(rollup_of(name, 0), str(tmp_path / "r"), "part")
    assert Path(path).parent.parent.parent == tmp_path / "r"
    assert os.sep not in Path(path).parent.name
    write_rollup(rollup_of("web é", 0), str(tmp_path / "r"), "part")
    write_rollup(rollup_of("", 0), str(tmp_path / "r"), "part")
    found = ask(tmp_path / "r", "select host from rollup where host like 'web%' or host is null order by 1")
    assert found == [("web é",), (None,)]


def test_midnight_begins_another_folder(tmp_path):
    day = 86_400 * 20_000
    paths = write_rollup(rollup_of("a", day - 1, day), str(tmp_path / "r"), "part")
    assert [Path(path).parent.parent.name for path in paths] == ["date=2024-10-03", "date=2024-10-04"]
    assert ask(tmp_path / "r", "select second, date from rollup order by 1") == [
        (day - 1, "2024-10-03"),
        (day, "2024-10-04"),
    ]


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    (path,) = write_rollup(rollup_of("a", 0), str(tmp_path / "r"), "part")
    before = Path(path).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wstrace_pyarrow.writer._groups", full)
    with pytest.raises(Exception, match="No space left"):
        write_rollup(rollup_of("a", 1), str(tmp_path / "r"), "part")
    assert [path.name for path in Path(path).parent.iterdir()] == ["part.parquet"]
    assert Path(path).read_bytes() == before


class TestRollupExporter(ExporterContract):
    def make(self) -> RollupExporter:
        return RollupExporter(path=tempfile.mkdtemp())


def test_the_exporter_writes_what_convert_writes(tmp_path):
    recorded(tmp_path / "x.wst", 5000)
    convert(tmp_path / "x.wst", tmp_path / "r")
    done = wstrace("replay", tmp_path / "x.wst", "-e", f"rollup:path={tmp_path / 'e'}")
    assert done.returncode == 0, done.stderr
    columns = "second, process, file, function, kind, major, faults, lost, resident_bytes"
    everything = f"select {columns} from rollup order by all"
    assert ask(tmp_path / "e", everything) == ask(tmp_path / "r", everything)


def test_the_exporter_writes_intervals_that_ended_while_it_runs(tmp_path, monkeypatch):
    strings, exporter = Dictionary(), RollupExporter(path=str(tmp_path / "r"), every=1.0)
    context = Context(strings=strings)
    exporter.start(context)
    now = now_ns()
    times = [now - 60 * 10**9, now - 50 * 10**9, now]
    exporter.export(batch_of(PAGE_FAULT, strings, time_ns=times, pid=1, tid=1, pc=1, va=1, flags=0))
    exporter.tick()
    assert not (tmp_path / "r").exists()
    later = time.monotonic() + 2
    monkeypatch.setattr("wstrace_pyarrow.rollup.time.monotonic", lambda: later)
    exporter.tick()
    assert ask(tmp_path / "r", "select sum(faults) from rollup") == [(2,)]
    context.ledger.add("lost_kernel", 3, "page_fault")
    exporter.close()
    assert ask(tmp_path / "r", "select sum(faults), sum(lost) from rollup") == [(3, 3)]
    assert ask(tmp_path / "r", "select distinct host from rollup") == [(platform.node(),)]
