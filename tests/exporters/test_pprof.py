"""A profile for pprof has blame's sums; Go's own tool reads it."""

import gzip
import re
from pathlib import Path

import pytest
from kit.blame_scripted import ANON, APP, CODE, FILE, PAGE, SAVE, Script, composition
from kit.go_pprof import pprof, totals

from wstrace.errors import UsageError
from wstrace.schema import PAGE_FILE, PROCESS_EXEC, PROCESS_FORK
from wstrace.trace import Trace

HOSTILE = ["\x1b]0;x\x07\u202e", "</script><img src=x>", "a\nb;c", "\udcff", "x" * 60_000]


def two_processes() -> Trace:
    script = Script()
    script.batches.append(script.process(2, 9, PROCESS_FORK, "other"))
    for n in range(6):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 4 else SAVE, tid=7 + n % 2)
    for n in range(3):
        script.fault(30 + n, FILE + n * PAGE, pid=9)
    script.snapshot(100, (ANON, 3, 0), (ANON + 5 * PAGE, 1, 0))
    script.snapshot(101, (FILE, 3, PAGE_FILE), pid=9, number=1)
    return script.trace()


def saved(trace: Trace, path: Path, **options: object) -> Path:
    trace.save(str(path), **options)
    return path


def test_go_reads_the_sums_of_blame(tmp_path):
    trace = two_processes()
    path, rows = saved(trace, tmp_path / "x.pb.gz"), composition(trace, "peak").rows("line")
    found = totals(path)
    assert found == {name: sum(row[name] for row in rows) for name in found}
    assert found == {"faults": 9, "brought": 9 * PAGE, "resident": 7 * PAGE}


def test_go_shows_resident_bytes_by_function_line_and_label(tmp_path):
    path = saved(two_processes(), tmp_path / "x.pb.gz")
    top = pprof("-top", "-unit=B", path)
    assert "Type: resident" in top
    assert re.search(r"^ +12288B 42\.86% .* load_frame$", top, re.M)
    assert re.search(r"12288B .* load_frame /srv/app/app\.py:31$", pprof("-top", "-lines", "-unit=B", path), re.M)
    tags = pprof("-tags", "-unit=B", path)
    for label in ("file", "process", "thread", "kind"):
        assert f" {label}: Total 28672B" in tags
    assert re.search(r" 8192B .*: app \(8\)$", tags, re.M)
    assert re.search(r"12288B .*: /usr/lib/libbig.so$", tags, re.M)
    assert "app (7)" in pprof("-traces", "-tagroot=process", path)


def test_go_subtracts_one_profile_from_another(tmp_path):
    script = Script()
    for n in range(2):
        script.fault(10 + n, ANON + n * PAGE, stack=APP)
    script.snapshot(100, (ANON, 2, 0))
    before, after = saved(script.trace(), tmp_path / "a.pb.gz"), saved(two_processes(), tmp_path / "b.pb.gz")
    top = pprof("-top", "-unit=B", f"-diff_base={before}", after)
    assert re.search(r"^ +4096B .* load_frame$", top, re.M)


def test_each_instruction_without_a_name_is_named_by_its_file_and_offset(tmp_path):
    script = Script()
    for n in range(3000):
        script.fault(10 + n, ANON + n * PAGE, pc=CODE + 64 + 16 * max(n - 1000, 0))
    path = saved(script.trace(), tmp_path / "x.pb.gz")
    assert totals(path) == {"faults": 3000, "brought": 3000 * PAGE, "resident": 0}
    assert re.search(r" tool\+0x40$", pprof("-top", path), re.M)
    assert len(set(re.findall(r"tool\+0x[0-9a-f]+", pprof("-raw", path)))) == 2000


def test_a_cut_stack_does_not_look_whole(tmp_path):
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, cut=True)
    traces = pprof("-traces", "-sample_index=faults", saved(script.trace(), tmp_path / "x.pb.gz"))
    stacks = [part.split() for part in re.split(r"^-+\+-+$", traces, flags=re.M)]
    shown = [[word for word in part if not word.endswith(":")] for part in stacks]
    assert sum(part[-3:] == ["<module>", "[not", "kept]"] for part in shown) == 1
    assert sum(part[-2:] == ["load_frame", "<module>"] for part in shown) == 1


def test_names_do_nothing_to_a_terminal_and_are_utf8(tmp_path):
    script = Script()
    for n, name in enumerate(HOSTILE):
        script.batches.append(script.process(2 + n, 20 + n, PROCESS_EXEC, name))
        script.fault(10 + n, ANON + n * PAGE, pid=20 + n, stack=[(name, name, 1)])
    path = saved(script.trace(), tmp_path / "x.pb.gz")
    for shown in (pprof("-top", path), pprof("-raw", path), pprof("-tags", path)):
        assert all(line.replace("\t", " ").isprintable() for line in shown.splitlines())
    assert "\\udcff" not in gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    assert totals(path)["faults"] == len(HOSTILE)


def test_it_says_what_the_trace_cannot_show(tmp_path):
    script = Script()
    script.fault(10, ANON)
    trace = script.trace()
    comments = pprof("-comments", saved(trace, tmp_path / "x.pb.gz"))
    assert "no resident pages are in the trace" in comments
    assert "no stacks are in the trace" in comments
    assert "Type: brought" in pprof("-top", tmp_path / "x.pb.gz")
    with pytest.raises(UsageError, match="there is no mark 'warm'"):
        trace.save(str(tmp_path / "y.pb.gz"), at="warm")
    assert not (tmp_path / "y.pb.gz").exists()
