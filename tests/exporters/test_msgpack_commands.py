"""The commands on trace files: what they print, what they write, how they fail."""

import itertools
import json
import subprocess
from pathlib import Path

import kit.synthetic_trace as synthetic
import pytest
from kit.command_line import WSTRACE
from kit.command_line import in_process as wstrace
from kit.msgpack_scripted import everything, started

from wstrace.schema import PROCESS
from wstrace.testing import batch_of
from wstrace.trace_info import Level, Usage
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.read.trace import open_trace


def write(path: Path, n: int = 5000, **info: object) -> Path:
    exporter, context = started(path, command=["made-up", "--flag"])
    for name, value in info.items():
        setattr(context.info, name, value)
    everything(exporter, context, n, rows=500, name="evil\x1b[31m", flush=True)
    context.ledger.add("recorded", n, "page_fault")
    exporter.close()
    return path


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "x.wst")


def test_info_tells_clean_cut_and_damaged(trace):
    data = trace.read_bytes()
    code, out, _ = wstrace("info", trace)
    assert code == 0
    assert f"{trace}: clean, " in out
    assert "page_fault: 5,000 rows" in out
    assert "command: made-up --flag" in out
    assert "process 4242: evil\\x1b[31m" in out
    assert "\x1b" not in out
    trace.write_bytes(data[:-10])
    _, out, _ = wstrace("info", trace)
    assert f"{trace}: cut, " in out
    assert "tail bytes: " in out
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    trace.write_bytes(bytes(damaged))
    _, out, _ = wstrace("info", trace)
    assert f"{trace}: damaged, " in out
    assert "lost frames: 1" in out


def test_info_takes_no_name_of_a_thread_for_one_of_its_process(tmp_path):
    path = tmp_path / "t.wst"
    exporter, context = started(path)
    renamed = zip((7, 8, 7, 9), ("sh", "GC Thread#0", "java", "VM Thread"), strict=True)
    for at, (tid, name) in enumerate(renamed):
        exporter.export(batch_of(PROCESS, context.strings, time_ns=at, pid=7, ppid=1, tid=tid, event=5, name=[name]))
    exporter.close()
    assert "process 7: sh -> java\n" in wstrace("info", path)[1]


def test_info_as_json(trace):
    code, out, _ = wstrace("info", trace, "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["state"] == "clean"
    assert shown["rows"]["page_fault"] == 5000
    assert shown["ledger"] == {"recorded:page_fault": 5000}
    assert shown["processes"] == {"4242": ["evil\x1b[31m"]}
    assert json.loads(wstrace("info", trace, "--json", "--quick")[1])["rows"] == shown["rows"]


@pytest.mark.parametrize("word", ["info", "report", "convert", "query"])
def test_no_such_file_and_no_trace_are_one_line(tmp_path, word):
    rests = {"convert": [["-o", tmp_path / "o.wst"], ["-o", tmp_path / "o.csv"], ["-e", "console"]],
             "query": [["select 1"]]}.get(word, [[]])  # fmt: skip
    (tmp_path / "text.wst").write_text("hello")
    cases = (("none.wst", "No such file"), ("text.wst", "is no wstrace trace file"))
    for (name, why), rest in itertools.product(cases, rests):
        code, out, err = wstrace(word, tmp_path / name, *rest)
        assert code == 125
        assert why in err
        assert err.count("\n") == 1
        assert not out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.wst"]


def test_of_several_files_convert_names_those_that_were_cut(trace, tmp_path):
    torn = [write(tmp_path / name) for name in ("first.wst", "second.wst")]
    for path in torn:
        path.write_bytes(path.read_bytes()[:-20])
    code, _, out = wstrace("convert", trace, torn[0], "-o", tmp_path / "one.wst")
    assert code == 0
    assert f" of 2 files; {torn[0]} was cut: " in out
    code, _, out = wstrace("convert", trace, *torn, "-o", tmp_path / "two.wst")
    assert code == 0
    assert f" of 3 files; {torn[0]}, {torn[1]} were cut: " in out


def test_recover_writes_a_clean_file_and_tells_what_is_lost(trace, tmp_path):
    data = bytearray(trace.read_bytes())
    data[len(data) // 2] ^= 1
    broken = tmp_path / "broken.wst"
    broken.write_bytes(data[:-20])
    code, _, out = wstrace("convert", broken, "-o", tmp_path / "good.wst")
    assert code == 0
    assert "was damaged" in out
    assert "1 lost frames" in out
    assert "114 tail bytes" in out
    with open_trace(str(broken)) as old, open_trace(str(tmp_path / "good.wst")) as new:
        assert new.clean
        assert new.rows["page_fault"] == 4500
        assert new.header.boot_id == old.header.boot_id
        assert new.header.command == ["made-up", "--flag"]
        assert new.begin_ns == old.begin_ns
        assert new.ledger.get("file_lost_frames") == 1
        a, b = ([batch["va"].tolist() for batch in one.batches("page_fault")] for one in (old, new))
        assert [*itertools.chain(*a)] == [*itertools.chain(*b)]
        names = [{t.strings[int(c)] for batch in t.batches("page_fault") for c in batch["file"]} for t in (old, new)]
        assert names[0] == names[1]
    for path in (broken, tmp_path / "good.wst"):
        lines = wstrace("report", path)[1].splitlines()
        assert lines[1].startswith("4,500 faults, 0 known to be lost; ")
        assert [line.split(maxsplit=2)[1:] for line in lines if line.startswith("lost")] == [
            [f"{new.ledger.get('file_lost_bytes'):,}", "bytes of the trace file that belong to no whole frame"],
            ["1", "frames that are missing in the trace file"],
            ["1", "trace files without their end, with an unknown number of records"],
        ]
    code, _, err = wstrace("convert", broken, "-o", broken, "-f")
    assert code == 125
    assert "is one of the files that are read" in err


def test_merge_tells_what_its_traces_have_in_common_and_sums(tmp_path):
    """TraceInfo.of_several(): sums, the largest peak, the least level, the largest exit code; no pid of the peak."""
    infos = [{"usage": Usage(minor, 1, peak, peak_pid=pid), "exit_code": code, "targets": (pid,), "sampled": sampled,
              "level": Level(level, why)}
             for minor, peak, pid, code, sampled, level, why in (
                 (900, 23 << 20, 7, 0, 1, "full", ""), (70, 140 << 20, 8, 3, 100, "user", "paranoid"))]  # fmt: skip
    paths = [write(tmp_path / f"{number}.wst", 100, **info) for number, info in enumerate(infos)]
    assert wstrace("convert", *paths, "-o", tmp_path / "m.wst")[0] == 0
    with open_trace(str(tmp_path / "m.wst")) as trace:
        info = trace.info
    assert (info.usage, info.exit_code, info.targets) == (Usage(970, 2, 140 << 20), 3, (7, 8))
    assert (info.command, info.sampled, info.level) == (["made-up", "--flag"], 100, Level("user", "paranoid"))
    first = wstrace("report", tmp_path / "m.wst")[1].splitlines()[0]
    assert first.startswith("peak 140.0 MiB resident; 200 faults")


def snapshots_of(path, host, pages, monkeypatch, *, boot=""):
    """A trace of one host: a process 4242 with so many resident runs, in two parts."""
    monkeypatch.setattr(osfile, "boot_id", lambda: boot or f"boot of {host}")
    monkeypatch.setattr(osfile, "host", lambda: {"name": host})
    exporter, context = started(path)
    everything(exporter, context, 100, name="python3")
    for part in range(2):
        exporter.export(synthetic.resident(context.strings, pages, part=part, last=part == 1))
    exporter.close()
    return path


@pytest.mark.parametrize("second", ["other host", "next boot"])
def test_merge_keeps_equal_pids_of_hosts_and_boots_apart(tmp_path, monkeypatch, second):
    a = snapshots_of(tmp_path / "a.wst", "a", 10, monkeypatch)
    b = snapshots_of(tmp_path / "b.wst", "b" if second == "other host" else "a", 20, monkeypatch, boot="second boot")
    c = snapshots_of(tmp_path / "c.wst", "c", 5, monkeypatch)
    pages = [2 * sum(range(n + 1)) for n in (10, 20, 5)]
    assert wstrace("convert", a, b, "-o", tmp_path / "ab.wst")[0] == 0
    assert wstrace("convert", tmp_path / "ab.wst", c, "-o", tmp_path / "abc.wst")[0] == 0
    for merged, held in ((tmp_path / "ab.wst", pages[:2]), (tmp_path / "abc.wst", pages)):
        shown = json.loads(wstrace("report", merged, "--by", "process", "--json")[1])
        assert [row["rss"] for row in shown["rows"]] == [4096 * n for n in sorted(held, reverse=True)]
        assert [row["faults"] for row in shown["rows"]] == [100] * len(held)
    with open_trace(str(tmp_path / "abc.wst")) as trace:
        [hosts] = [mark["hosts"] for mark in trace.marks if mark["m"] == "hosts"]
        assert hosts == ["a", "b" if second == "other host" else "a", "c"]
        assert {name for names in trace.process_names().values() for name in names} == {
            f"python3@{host}" for host in hosts}  # fmt: skip


def test_convert_projects_and_cuts_and_refuses(trace, tmp_path):
    pytest.importorskip("pyarrow")
    out = tmp_path / "x.csv"
    code, printed, err = wstrace("convert", trace, "-o", out, "--columns", "tid, file")
    assert (code, printed) == (0, "")
    assert "5,000 rows" in err
    assert out.read_text().splitlines()[0] == '"tid","file"'
    assert wstrace("convert", trace, "-o", out)[0] == 123
    code, _, err = wstrace("convert", trace, "-o", out, "-f", "--columns", "tid,fil")
    assert code == 125
    assert "did you mean 'file'" in err
    code, _, err = wstrace("convert", trace, "-o", out, "-f", "--stream", "page_faults")
    assert "did you mean 'page_fault'" in err
    code, _, err = wstrace("convert", trace, "-o", tmp_path / "x.xlsx")
    assert ".parquet" in err
    assert wstrace("convert", trace, "-o", tmp_path / "none" / "x.csv")[0] == 123
    assert wstrace("convert", trace, "-o", tmp_path / "p.jsonl", "--stream", "process")[0] == 0
    assert json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])["name"] == "evil\x1b[31m"


def test_query_prints_tables_csv_and_json_that_are_safe(trace):
    pytest.importorskip("duckdb")
    sql = "select name, count(*) as n from process group by name"
    code, out, _ = wstrace("query", trace, sql)
    assert code == 0
    assert out.splitlines() == ["name          n", "evil\\x1b[31m  2"]
    assert json.loads(wstrace("query", trace, sql, "--format", "json")[1]) == {"name": "evil\x1b[31m", "n": 2}
    assert wstrace("query", trace, sql, "--format", "csv")[1].splitlines()[0] == "name,n"
    many = wstrace("query", trace, "select va from page_fault", "--limit", "5")[1].splitlines()
    assert len(many) == 7
    assert many[-1] == "... and 4,995 rows more (--limit)"


def test_query_reads_no_other_file_and_a_wrong_query_is_one_line(trace, tmp_path):
    pytest.importorskip("duckdb")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    code, out, err = wstrace("query", trace, f"select * from read_csv('{tmp_path}/secret.csv')")
    assert code == 125
    assert "disabled" in err
    assert not out
    code, _, err = wstrace("query", trace, "select nonsense from page_fault")
    assert code == 125
    assert err.count("\n") == 1


def piped(data: bytes, *words: object) -> subprocess.CompletedProcess:
    command = [*WSTRACE, *map(str, words)]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


def test_a_trace_is_read_from_standard_input(trace, tmp_path, monkeypatch):
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spool"))
    data = trace.read_bytes()
    for words in (["info"], ["report"], ["query"], ["convert", "-o", tmp_path / "x.csv"]):
        rest = ["select count(*) from page_fault"] if words == ["query"] else []
        done = piped(data, *words, "-", *rest)
        assert done.returncode == 0, done.stderr
        assert b"5,000" in done.stdout + done.stderr or b"5000" in done.stdout
        assert list((tmp_path / "spool").iterdir()) == []
    done = piped(b"no trace", "info", "-")
    assert (done.returncode, done.stderr.count(b"\n")) == (125, 1)
    assert b"standard input is no wstrace trace file" in done.stderr
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("words", [["report"], ["info"], ["query"]])
def test_traces_of_several_hosts_are_merged_before_they_are_read_together(tmp_path, monkeypatch, words):
    a = snapshots_of(tmp_path / "a.wst", "a", 10, monkeypatch)
    b = snapshots_of(tmp_path / "b.wst", "b", 20, monkeypatch)
    code, _, said = wstrace(*words, a, b, *["select 1"] * (words == ["query"]))
    assert code in (123, 125), said
    if words != ["query"]:  # which takes one file
        assert f"{a} and {b} come from different boots: their clocks differ, and equal pids are different" in said
        assert "; wstrace convert " in said
    assert wstrace("convert", a, b, "-o", tmp_path / "ab.wst")[0] == 0
    assert wstrace(words[0], tmp_path / "ab.wst", *["select 1"] * (words == ["query"]))[0] == 0
