"""Formats that hold sums of stacks (pprof, Perfetto, folded): blame's sums, by the tools these formats are for."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from kit.blame_scripted import ANON, APP, CODE, FILE, PAGE, SAVE, Script, composition, saved
from kit.command_line import wstrace
from kit.go_pprof import pprof, totals
from kit.perfetto import query

from wstrace.errors import UsageError
from wstrace.schema import FAULT_MAJOR, MARK, PAGE_FILE, PROCESS_EXEC, PROCESS_FORK, PROCESS_NAME
from wstrace.testing import batch_of
from wstrace.trace import Trace
from wstrace_exporters.msgpack.read.trace import open_trace

HOSTILE = ["\x1b]0;x\x07\u202e", "</script><img src=x>", "a\nb;c", "\udcff", "x" * 60_000]


def scripted() -> Script:
    script = Script()
    script.batches += [script.process(2, 9, PROCESS_FORK, "other"), script.process(3, 7, PROCESS_NAME, "app")]
    script.batches.append(batch_of(MARK, script.strings, time_ns=[12, 30], pid=7, tid=7, text=["warm", "go\x1b[31m"]))
    for n in range(6):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 4 else SAVE, tid=7 + n % 2)
    for n in range(3):
        script.fault(30 + n, FILE + n * PAGE, pid=9, flags=FAULT_MAJOR * (n == 0), native=[(3, 64), (4, 32)])
    script.snapshot(100, (ANON, 3, 0), (ANON + 5 * PAGE, 1, 0), (ANON + 30 * PAGE, 1, 0))
    script.snapshot(101, (FILE, 3, PAGE_FILE), pid=9, number=1)
    return script


def profile(trace: Trace, path: Path) -> Path:
    trace.save(str(path))
    return path


def test_go_reads_the_sums_of_blame(tmp_path):
    trace = scripted().trace()
    path, rows = profile(trace, tmp_path / "x.pb.gz"), composition(trace, "peak").rows("line")
    found = totals(path)
    assert found == {name: sum(row[name] for row in rows) for name in found}
    assert found == {"faults": 9, "brought": 10 * PAGE, "resident": 8 * PAGE}


def test_go_shows_resident_bytes_by_function_line_and_label(tmp_path):
    path = profile(scripted().trace(), tmp_path / "x.pb.gz")
    top = pprof("-top", "-unit=B", path)
    assert "Type: resident" in top
    assert re.search(r"^ +12288B 37\.50% .* load_frame$", top, re.M)
    assert re.search(r"12288B .* load_frame /srv/app/app\.py:31$", pprof("-top", "-lines", "-unit=B", path), re.M)
    tags = pprof("-tags", "-unit=B", path)
    for label, pages in {"file": 8, "process": 8, "thread": 7, "kind": 8}.items():  # nobody touched one of them
        assert f" {label}: Total {pages * PAGE}B" in tags
    assert re.search(r" 8192B .*: app \(8\)$", tags, re.M)
    assert re.search(r"12288B .*: /usr/lib/libbig.so$", tags, re.M)
    assert "app (7)" in pprof("-traces", "-tagroot=process", path)


def test_go_subtracts_one_profile_from_another(tmp_path):
    script = Script()
    for n in range(2):
        script.fault(10 + n, ANON + n * PAGE, stack=APP)
    script.snapshot(100, (ANON, 2, 0))
    before, after = profile(script.trace(), tmp_path / "a.pb.gz"), profile(scripted().trace(), tmp_path / "b.pb.gz")
    top = pprof("-top", "-unit=B", f"-diff_base={before}", after)
    assert re.search(r"^ +4096B .* load_frame$", top, re.M)


def test_each_instruction_without_a_name_is_named_by_its_file_and_offset(tmp_path):
    script = Script()
    for n in range(3000):
        script.fault(10 + n, ANON + n * PAGE, pc=CODE + 64 + 16 * max(n - 1000, 0))
    path = profile(script.trace(), tmp_path / "x.pb.gz")
    assert totals(path) == {"faults": 3000, "brought": 3000 * PAGE, "resident": 0}
    assert re.search(r" libc\.so\+0x40$", pprof("-top", path), re.M)
    assert len(set(re.findall(r"libc\.so\+0x[0-9a-f]+", pprof("-raw", path)))) == 2000


def test_a_cut_stack_does_not_look_whole(tmp_path):
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, cut=True)
    traces = pprof("-traces", "-sample_index=faults", profile(script.trace(), tmp_path / "x.pb.gz"))
    stacks = [part.split() for part in re.split(r"^-+\+-+$", traces, flags=re.M)]
    shown = [[word for word in part if not word.endswith(":")] for part in stacks]
    assert sum(part[-3:] == ["<module>", "[not", "kept]"] for part in shown) == 1
    assert sum(part[-2:] == ["load_frame", "<module>"] for part in shown) == 1


def test_names_do_nothing_to_a_terminal_and_are_utf8(tmp_path):
    script = Script()
    for n, name in enumerate(HOSTILE):
        script.batches.append(script.process(2 + n, 20 + n, PROCESS_EXEC, name))
        script.fault(10 + n, ANON + n * PAGE, pid=20 + n, stack=[(name, name, 1)])
    path = profile(script.trace(), tmp_path / "x.pb.gz")
    for shown in (pprof("-top", path), pprof("-raw", path), pprof("-tags", path)):
        assert all(line.replace("\t", " ").isprintable() for line in shown.splitlines())
    assert "\\udcff" not in gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    assert totals(path)["faults"] == len(HOSTILE)


def test_it_says_what_the_trace_cannot_show(tmp_path):
    script = Script()
    script.fault(10, ANON)
    trace = script.trace()
    comments = pprof("-comments", profile(trace, tmp_path / "x.pb.gz"))
    assert "no resident pages are in the trace" in comments
    assert "no stacks are in the trace" in comments
    assert "Type: brought" in pprof("-top", tmp_path / "x.pb.gz")
    with pytest.raises(UsageError, match="there is no mark 'warm'"):
        trace.save(str(tmp_path / "y.pb.gz"), at="warm")
    assert not (tmp_path / "y.pb.gz").exists()


ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def wanted(trace: Trace, folder: Path, *sql: str, **options: object) -> list[Any]:
    """The answers of the trace processor, which has found no error in the file."""
    path = folder / "x.pftrace"
    trace.save(str(path), force=True, **options)
    errors, *answers = query(path, ERRORS, *sql)
    assert errors == []
    return answers


QUERIES = {
    "categories": "select category, count(*) from slice where category in ('fault', 'from disk') group by 1 order by 1",
    "threads": "select t.tid, p.pid, p.name, count(*) from slice s join thread_track k on s.track_id = k.id "
    "join thread t using (utid) join process p using (upid) group by 1, 2 order by 1",
    "from disk": "select s.name, s.ts, extract_arg(s.arg_set_id, 'debug.page'), extract_arg(s.arg_set_id, 'debug.by') "
    "from slice s where category = 'from disk'",
    "counters": "select t.name, p.pid, max(c.value) from counter c join process_counter_track t on c.track_id = t.id "
    "join process p using (upid) group by 1, 2",
    "samples": "select t.tid, count(*) from perf_sample s join thread t using (utid) group by 1 order by 1",
    "frames": "select f.name, m.name, c.depth, count(s.id) from perf_sample s "
    "join stack_profile_callsite c on s.callsite_id = c.id join stack_profile_frame f on c.frame_id = f.id "
    "join stack_profile_mapping m on f.mapping = m.id group by 1, 2, 3 order by 1",
    "sampled": "select t.name, max(c.value) from counter c join counter_track t on c.track_id = t.id "
    "where t.name like 'page%'",
    "marks": "select name, ts, dur from slice where category = 'mark' order by 2",
    "about": "select s.name from slice s join track t on s.track_id = t.id where t.name = 'wstrace'",
}


@pytest.fixture(scope="module")
def trace():
    return scripted().trace()


@pytest.fixture(scope="module")
def reported(trace, tmp_path_factory):
    answers = wanted(trace, tmp_path_factory.mktemp("perfetto"), *QUERIES.values())
    return dict(zip(QUERIES, answers, strict=True))


def test_faults_are_instants_of_their_threads(reported):
    assert reported["categories"] == [["fault", 8], ["from disk", 1]]
    assert reported["threads"] == [[7, 7, "app", 3], [8, 7, "app", 3], [9, 9, "other, worker 1 of 1", 3]]
    assert reported["from disk"] == [["libbig.so", 30, FILE, "own"]]


def test_the_last_values_of_the_counters_are_what_blame_says_is_resident(reported, trace):
    blame = composition(trace, "peak")
    expected = {(f"resident: {row.label}", row["resident"]) for row in blame.rows("line")}
    assert {(name, value) for name, _, value in reported["counters"]} == expected
    assert sum(value for _, _, value in reported["counters"]) == blame.rss
    assert reported["about"][0] == [trace.report(at="peak").answer]


def test_stacks_are_samples_from_the_outermost_frame_in(reported):
    assert reported["samples"] == [[7, 3], [8, 3], [9, 3]]
    assert reported["sampled"] == [["page-faults", 9]]
    assert reported["frames"] == [
        ["libc.so+0x40", "/libc.so", 1, 3],
        ["load_frame app.py:31", "/[python]", 1, 4],
        ["save app.py:40", "/[python]", 1, 2],
    ]


def test_marks_are_slices_up_to_the_next(reported):
    assert [mark[:2] for mark in reported["marks"]] == [["warm", 12], ["go\\x1b[31m", 30]]
    assert reported["marks"][0][2] == 18


def test_who_writes_it_is_reported_what_was_left_out(tmp_path):
    script = Script()
    for n in range(9):
        script.fault(10 + n, ANON + n * PAGE)
    shown = script.trace().save(str(tmp_path / "x.pftrace"), most=4)
    assert (shown, shown.note) == (4, "4 of 9 faults are shown, those from disk first; --option most=9 shows all")
    whole = script.trace().save(str(tmp_path / "y.pftrace"))
    assert (whole, whole.note) == (9, "")


def test_perfetto_says_what_the_trace_cannot_show(tmp_path):
    script = Script()
    for n in range(9):
        script.fault(10 + n, ANON + n * PAGE)
    trace = script.trace()
    about, counters, samples = wanted(
        trace, tmp_path, "select s.name from slice s join track t on s.track_id = t.id where t.name = 'wstrace'",
        "select t.name, max(c.value) from counter c join counter_track t on c.track_id = t.id group by 1",
        "select count(*) from perf_sample", most=4,
    )  # fmt: skip
    reported = [name for (name,) in about]
    assert "4 of 9 faults are shown" in reported
    assert any(name.startswith("no resident pages are in the trace") for name in reported)
    assert any(name.startswith("no stacks are in the trace") for name in reported)
    assert [value for _, value in counters] == [9 * PAGE]
    assert samples == [[0]]
    with pytest.raises(UsageError, match="there is no mark 'warm'"):
        trace.save(str(tmp_path / "y.pftrace"), at="warm")
    assert not (tmp_path / "y.pftrace").exists()


#: Three faults of one in 10 and two of one in 100, of which nothing is resident in the end.
SAID = "values are estimates: one of 46 faults was recorded, on average"


@pytest.fixture
def path(tmp_path):
    script = Script()
    for n in range(5):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 3 else SAVE, sampled=10 if n < 3 else 100)
    saved(script.trace(), str(tmp_path / "x.wst"))
    return tmp_path / "x.wst"


def converted(path: Path, suffix: str) -> Path:
    """The trace in another format; the command has said that its values are estimates."""
    out = path.with_suffix(suffix)
    assert SAID in wstrace("convert", path, "-o", out).stderr
    return out


def test_pprof_counts_what_each_record_stands_for(path):
    out = converted(path, ".pb.gz")
    assert totals(out) == {"faults": 230, "brought": 230 * PAGE, "resident": 0}
    assert SAID in pprof("-comments", out)
    assert b"load_frame" in gzip.decompress(out.read_bytes())


def test_folded_stacks_count_what_each_record_stands_for(path):
    lines = converted(path, ".folded").read_text().splitlines()
    assert lines == ["<module> app.py:51;save app.py:40 200", "<module> app.py:50;load_frame app.py:31 30"]
    printed = wstrace("report", path, "--format", "folded")
    assert printed.stdout.splitlines() == lines
    assert SAID in printed.stderr


def test_perfetto_counts_what_each_record_stands_for(path):
    samples, counters, about = query(
        converted(path, ".pftrace"),
        "select max(c.value) from counter c join counter_track t on c.track_id = t.id where t.name like 'page%'",
        "select sum(value) from (select max(c.value) as value from counter c join counter_track t on c.track_id = t.id "
        "where t.name like 'brought%' group by t.id)",
        "select s.name from slice s join track t on s.track_id = t.id where t.name = 'wstrace'",
    )
    assert (samples, counters) == ([[230]], [[230 * PAGE]])
    assert [SAID] in about
    assert ["5 of 5 recorded faults are shown"] in about


def test_a_trace_that_was_not_sampled_says_nothing_of_it(tmp_path):
    script = Script()
    script.fault(10, ANON)
    saved(script.trace(), str(tmp_path / "y.wst"))
    assert "estimates" not in wstrace("convert", tmp_path / "y.wst", "-o", tmp_path / "y.pb.gz").stderr


@pytest.fixture
def folded(tmp_path):
    """Python stacks, a sampled native one, a fault without any, and names that are made to harm."""
    script = Script()
    for n in range(5):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 3 else SAVE)
    script.fault(20, ANON + 8 * PAGE, stack=[("f\x1b[2J;g\n", "/srv/\udcff\x9b;x.py", 3), *APP])
    script.fault(21, ANON + 9 * PAGE, native=[(3, 64), (4, 32)])
    saved(script.trace(), str(tmp_path / "x.wst"))
    return tmp_path / "x.wst"


def test_both_ways_give_the_same_lines(folded, tmp_path):
    out = tmp_path / "x.folded"
    with open_trace(str(folded)) as trace:
        n = trace.save(str(out))
    done = wstrace("report", folded, "--format", "folded")
    assert out.read_text() == done.stdout
    assert n == len(done.stdout.splitlines())
    assert "<module> app/app.py:50;load_frame app/app.py:31 3\n" in done.stdout
    assert sum(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()) == 7
    assert done.stdout.replace("\n", "").isprintable()


def test_a_fault_without_a_stack_is_reported_by_its_instruction(tmp_path):
    script = Script()
    script.fault(10, ANON)
    script.trace().save(str(tmp_path / "x.folded"))
    assert (tmp_path / "x.folded").read_text() == "libc.so+0x40 1\n"


def test_a_cut_stack_begins_with_what_it_lacks(tmp_path):
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, cut=True)
    script.trace().save(str(tmp_path / "x.folded"))
    frames = "<module> app.py:50;load_frame app.py:31 1"
    assert (tmp_path / "x.folded").read_text().splitlines() == [frames, f"[not kept];{frames}"]
