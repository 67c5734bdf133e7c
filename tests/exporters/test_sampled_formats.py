"""pprof, folded stacks and Perfetto of a sampled trace: a record counts for what it stands for, and it is said."""

import gzip
from pathlib import Path

import pytest
from kit.blame_scripted import ANON, APP, PAGE, SAVE, Script, saved
from kit.command_line import wstrace
from kit.go_pprof import pprof, totals
from kit.perfetto import query

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
