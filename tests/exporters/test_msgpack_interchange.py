"""A trace is read by programs that know nothing of wstrace: msgpack-python, Node, DuckDB, pyarrow."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgpack
import numpy as np
import pytest
import synthetic_trace as synthetic
from msgpack_scripted import started

from wstrace.schema import MARK, PROCESS
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.interchange.sql import connect

N = 150_000
TOP = "select file, count(*) n from page_fault group by file order by n desc, file limit 10"


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> tuple[Path, list]:
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
    found: Counter[str] = Counter()
    for batch in batches:
        for mapping, n in zip(*np.unique(batch["mapping"], return_counts=True), strict=True):
            found["[anon]" if (mapping - 1) % 4 == 3 else f"/usr/lib/lib{mapping}.so"] += int(n)
    return found


def top(found: Counter[str]) -> list[tuple[str, int]]:
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:10]


def test_a_plain_unpacker_reads_every_frame(trace):
    import zlib

    path, batches = trace
    data, at, rows, seqs, va, times = path.read_bytes(), 0, 0, [], [], []
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    for ident, kind, seq, length, crc, body in unpacker:
        end = unpacker.tell()
        assert zlib.crc32(data[at + 19 : at + 34] + data[end - length : end]) == crc
        assert (ident.code, ident.data[:8]) == (0x57, b"\x89WSTF\r\n\x1a")
        assert end - at == 39 + length
        seqs.append(seq)
        if kind == 3 and body["s"] == "page_fault":
            rows += body["n"]
            from wstrace_exporters.msgpack.format.columns import zstd

            for name, values in (("va", va), ("time_ns", times)):
                kind_, chain, codec, raw_len, packed = body["c"][name]
                assert (kind_, [f[0] for f in chain], codec, raw_len) == (
                    "u64", ["delta", "shuffle"], "zstd", 8 * body["n"]
                )  # fmt: skip
                raw = np.frombuffer(zstd().decompress(packed), "|u1")
                raw = np.ascontiguousarray(raw.reshape(8, body["n"]).T).reshape(-1)
                values.append(np.cumsum(raw.view("<u8"), dtype="<u8") + np.uint64(chain[0][1]))
        at = end
    assert at == len(data)
    assert seqs == list(range(len(seqs)))
    assert rows == N
    assert np.array_equal(np.concatenate(va), np.concatenate([batch["va"] for batch in batches]))
    assert np.array_equal(np.concatenate(times), np.concatenate([batch["time_ns"] for batch in batches]))
    assert kind == 7
    assert body["clean"] is True


@pytest.mark.slow
def test_node_reads_every_frame(trace, tmp_path):
    path, batches = trace
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed: bash tests/install-peers")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "wstrace-tests" / "node"
    if not all((cache / "node_modules" / name).exists() for name in ("@msgpack/msgpack", "fzstd")):
        cache.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(cache), "@msgpack/msgpack@3", "fzstd@0.1"]
        try:
            installed = subprocess.run(npm, capture_output=True, text=True, timeout=100)
        except subprocess.TimeoutExpired:
            pytest.skip("npm did not reach its registry in 100 s")
        if installed.returncode:
            pytest.skip(f"npm cannot install @msgpack/msgpack here: {installed.stderr.strip()[-200:]}")
    shutil.copy(Path(__file__).with_name("wstf_reader.mjs"), cache / "wstf_reader.mjs")
    out = subprocess.run(
        ["node", str(cache / "wstf_reader.mjs"), str(path)], capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    sums = json.loads(out.stdout)
    assert sums["rows"] == {"page_fault": N, "process": 2}
    assert sums["seqs"] == list(range(sums["frames"]))
    assert sums["ids"] == 1
    assert sums["end"] == {"frames": sums["frames"], "clean": True, "rows": N}
    assert sums["va"] == str(sum(int(batch["va"].astype(object).sum()) for batch in batches) % (1 << 64))
    assert sums["time"] == str(sum(int(batch["time_ns"].astype(object).sum()) for batch in batches) % (1 << 64))
    assert sums["indexed"] == sums["frames"] - sums["kinds"]["6"] - 1
    assert sums["streams"] == {"page_fault": sums["kinds"]["3"] - 1, "process": 1, "resident": 1}
    assert sums["withPid"] == sums["kinds"]["3"] + 1, "every frame of rows tells its processes"
    assert sums["announced"]["page_fault"][:2] == [["time_ns", "u64", "ns"], ["pid", "u32", "id"]]
    assert "/usr/lib/lib1.so" in sums["names"]
    assert "bytes" in sums["names"], "a name that is not UTF-8 is bin"


def test_duckdb_counts_the_same_in_the_file_and_in_parquet(trace, tmp_path):
    pytest.importorskip("duckdb")
    path, batches = trace
    expected = top(counts(batches))
    with connect(str(path), TOP) as answer:
        assert answer.rows == expected
        assert answer.names == ["file", "n"]
    from wstrace_exporters.msgpack.read.trace import open_trace

    with open_trace(str(path)) as opened:
        assert opened.save(str(tmp_path / "x.parquet")) == N
    with connect(str(tmp_path / "x.parquet"), TOP) as answer:
        assert answer.rows == expected


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


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "arrow", "parquet"])
def test_converted_files_hold_every_row_and_names_in_clear(trace, tmp_path, suffix):
    pyarrow = pytest.importorskip("pyarrow")
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

        table = parquet.read_table(out) if suffix == "parquet" else pyarrow.ipc.open_file(out).read_all()
        rows = list(zip(*(table[name].to_pylist() for name in ("va", "file", "kind")), strict=True))
    assert [va for va, _, _ in rows] == np.concatenate([batch["va"] for batch in batches]).tolist()
    assert Counter(file for _, file, _ in rows) == counts(batches)
    assert {kind for _, _, kind in rows} == {"file", "anon"}
    assert [entry.name for entry in tmp_path.iterdir()] == [out.name], "nothing unfinished is left"


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\tx", "\rx"]
HOSTILE = [*FORMULAS, 'say "x", y', "a\nb", "\x1b]0;x\x07\x9b31m\u202e\x7f", "\udcff"]


@pytest.fixture
def hostile(tmp_path) -> Path:
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
    assert [names[i + 1] for i in range(6)] == [f"'{name}" for name in FORMULAS]
    assert [names[i + 1] for i in range(6, 10)] == [*HOSTILE[6:9], "\\xff"]
    assert text.splitlines()[1].startswith("1,")


def test_json_lines_hold_nothing_that_acts_on_a_terminal(hostile, tmp_path):
    text = saved(hostile, tmp_path / "h.jsonl", stream="process", columns=["name", "pid"])
    assert all(line.isprintable() for line in text.splitlines())
    assert [json.loads(line)["name"] for line in text.splitlines()] == [*HOSTILE[:9], "\\xff"]


def test_csv_and_json_lines_need_no_package(trace, tmp_path):
    code = f"""
import sys
for absent in ("pyarrow", "arro3", "pandas", "duckdb"):
    sys.modules[absent] = None
from wstrace import cli
for suffix in ("csv", "jsonl", "parquet"):
    print(cli.main(["convert", {str(trace[0])!r}, "-o", f"{tmp_path}/x.{{suffix}}"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["0", "0", "122"], done.stderr
    assert "pip install 'wstrace[convert]'" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.jsonl"]
    header, first = (tmp_path / "x.csv").read_text().splitlines()[:2]
    assert header.startswith('"time_ns","pid"')
    assert first.split(",")[0] == json.loads((tmp_path / "x.jsonl").read_text().split("\n", 1)[0])["time_ns"].__str__()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_query_over_a_converted_file_reads_no_other_file(trace, tmp_path, suffix):
    pytest.importorskip("duckdb")
    from wstrace.errors import UsageError

    out = tmp_path / f"x.{suffix}"
    saved(trace[0], out, columns=["va", "file"])
    with connect(str(out), "select count(*) from page_fault") as answer:
        assert answer.rows == [(N,)]
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    for sql in (
        f"select * from read_csv('{tmp_path}/secret.csv')",
        f"select * from '{tmp_path}/secret.csv'",
        "set enable_external_access = true",
        f"copy (select 1) to '{tmp_path}/written.csv'",
    ):
        with pytest.raises(UsageError), connect(str(out), sql):
            pass
    assert not (tmp_path / "written.csv").exists()
