"""A trace is read by programs that know nothing of wstrace: msgpack-python, Node, DuckDB, pyarrow."""

import csv
import json
from collections import Counter
from pathlib import Path

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit import wstf_reader
from kit.msgpack_scripted import STORED, column, started

from wstrace.schema import MARK, PROCESS
from wstrace.testing import batch_of
from wstrace.text import printable
from wstrace_exporters.msgpack.interchange.sql import connect

N = 150_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("interchange") / "x.wst"
    exporter, context = started(path)
    exporter.export(synthetic.mappings(context.strings))
    exporter.export(synthetic.processes(context.strings, name="not utf-8: \udcff, \x1b[31m \u2028"))
    batches = list(synthetic.faults(context.strings, N))
    for batch in batches:
        exporter.export(batch)
    exporter.export(batch_of(MARK, context.strings, time_ns=[1], pid=1, tid=1, text=["mark"]))
    exporter.export(synthetic.resident(context.strings))
    exporter.close()
    return path, batches


def counts(batches: list) -> Counter[str]:
    """What every other program must count: faults by file, from the batches as they were made."""
    found = Counter()
    for batch in batches:
        for mapping, n in zip(*np.unique(batch["mapping"], return_counts=True), strict=True):
            found["[anon]" if (mapping - 1) % 4 == 3 else f"/usr/lib/lib{mapping}.so"] += int(n)
    return found


def test_a_reader_of_fifty_lines_that_knows_the_format_alone_reads_every_row(trace):
    path, batches = trace
    read = wstf_reader.WstfFile(path)
    faults = read.rows("page_fault")
    assert len(faults["va"]) == N == read.end["rows"]["page_fault"]
    for name in STORED:
        assert np.array_equal(faults[name], column(batches, name)), name
    files = [read.name(int(file)) for file in read.rows("mapping")["file"]]
    of = dict(zip(read.rows("mapping")["id"].tolist(), files, strict=True))
    found = Counter(of[mapping] or "[anon]" for mapping in faults["mapping"].tolist())
    assert found == counts(batches)
    assert read.name(int(read.rows("process")["name"][0])).startswith("not utf-8: \udcff")
    assert [mark["text"] for mark in read.marks if mark["m"] == "user"] == ["mark"]
    assert read.end["frames"] == read.frames
    assert read.indexed == read.frames - 1 - len(read.end["index"])


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select count(*) from page_fault", [(N,)]),
        ("select count(*), count(distinct tid) from page_fault where va is not null", [(N, 2)]),
        ("select name, count(*) from process group by all", [("not utf-8: \\xff, \x1b[31m \u2028", 2)]),
        ("select count(*) from page_fault f join mapping m on f.mapping = m.id", [(N,)]),
        ("select count(*) from page_fault f where f.file = '/no/such'", [(0,)]),
        ("select sum(pages) from resident", [(sum(range(1, 31)),)]),
        ("with x as (from page_fault) select count(*), min(kind) from x", [(N, "anon")]),
        ("select a.n, b.n from (select count(*) n from page_fault) a, (select count(*) n from page_fault) b", [(N, N)]),
        ("select count(columns(*)) from (select tid from page_fault)", [(N,)]),
    ],
)
def test_queries_over_the_file(trace, sql, expected):
    pytest.importorskip("duckdb")
    with connect(str(trace[0]), sql) as answer:
        assert answer.rows == expected


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_converted_files_hold_every_row_and_names_in_clear(trace, tmp_path, suffix):
    pytest.importorskip("pyarrow")
    from wstrace_exporters.msgpack.read.trace import open_trace

    path, batches = trace
    out = tmp_path / f"x.{suffix}"
    with open_trace(str(path)) as opened:
        assert opened.save(str(out), columns=["va", "file", "kind"]) == N
    if suffix == "csv":
        with out.open(newline="") as file:
            rows = [(int(row["va"]), row["file"], row["kind"]) for row in csv.DictReader(file)]
    elif suffix == "jsonl":
        rows = [tuple(json.loads(line).values()) for line in out.read_text().splitlines()]
    else:
        from pyarrow import parquet

        table = parquet.read_table(out)
        rows = list(zip(*(table[name].to_pylist() for name in ("va", "file", "kind")), strict=True))
    assert [va for va, _, _ in rows] == np.concatenate([batch["va"] for batch in batches]).tolist()
    assert Counter(file for _, file, _ in rows) == counts(batches)
    assert {kind for _, _, kind in rows} == {"file", "anon"}
    assert [entry.name for entry in tmp_path.iterdir()] == [out.name], "nothing unfinished is left"


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\tx", "\rx"]
HOSTILE = [*FORMULAS, 'say "x", y', "a\nb", "\x1b]0;x\x07\x9b31m\u202e\x7f", "\udcff"]


@pytest.fixture
def hostile(tmp_path):
    """A trace whose processes have such names."""
    exporter, context = started(tmp_path / "h.wst")
    for pid, name in enumerate(HOSTILE, start=1):
        exporter.export(batch_of(PROCESS, context.strings, time_ns=pid, pid=pid, tid=pid, ppid=1, event=4, name=[name]))
    exporter.close()
    return tmp_path / "h.wst"


def saved(path: Path, out: Path, **options: object) -> str:
    """What was written, as text."""
    from wstrace_exporters.msgpack.read.trace import open_trace

    with open_trace(str(path)) as opened:
        opened.save(str(out), **options)
    return out.read_bytes().decode("utf-8", "replace")


def test_cells_of_csv_are_no_formulas_and_numbers_stay_numbers(hostile, tmp_path):
    text = saved(hostile, tmp_path / "h.csv", stream="process", columns=["pid", "name"])
    rows = list(csv.reader(text.splitlines(keepends=True)))
    names = {int(pid): name for pid, name in rows[1:]}
    assert [names[i + 1] for i in range(4)] == [f"'{name}" for name in FORMULAS[:4]]
    assert [names[i + 1] for i in range(4, 10)] == [printable(name) for name in HOSTILE[4:]]
    assert all(line.isprintable() for line in text.splitlines())
    assert text.splitlines()[1].startswith("1,")


def test_json_lines_hold_nothing_that_acts_on_a_terminal(hostile, tmp_path):
    text = saved(hostile, tmp_path / "h.jsonl", stream="process", columns=["name", "pid"])
    assert all(line.isprintable() for line in text.splitlines())
    assert [json.loads(line)["name"] for line in text.splitlines()] == [*HOSTILE[:9], "\\xff"]
