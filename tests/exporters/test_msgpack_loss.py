"""A file that lacks records says so in every view, and so does every file that is made of it."""

from pathlib import Path

import kit.synthetic_trace as synthetic
import pytest
from kit.command_line import in_process as wstrace
from kit.msgpack_scripted import recorded, started

from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.layout import EVENTS
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.read.trace import open_trace

WRITTEN, ROWS = 10_000, 1000


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "whole.wst"
    recorded(path, WRITTEN, rows=ROWS)
    return path


@pytest.fixture
def damaged(whole, tmp_path):
    """One frame of faults of ten has 16 bytes overwritten."""
    part = Part(str(whole))
    hit = part.chosen(frozenset((EVENTS,)))[5]
    part.close()
    data = bytearray(whole.read_bytes())
    middle = int(hit["offset"]) + int(hit["length"]) // 2
    data[middle : middle + 16] = b"\xee" * 16
    path = tmp_path / "damaged.wst"
    path.write_bytes(data)
    return path


@pytest.fixture
def cut(whole, tmp_path):
    path = tmp_path / "cut.wst"
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    return path


def second_line(path: Path) -> str:
    code, out, _ = wstrace("report", path)
    assert code == 0
    return out.splitlines()[1]


def test_a_damaged_file_is_called_so_before_it_is_read_and_after(damaged):
    with open_trace(str(damaged)) as trace:
        before = repr(trace)
        assert "damaged; " in before
        assert "9,000 page_fault" in before
        assert before.endswith("; 1,007 lost>")  # 7 by the kernel
        for _ in trace.batches("page_fault"):
            pass
        assert repr(trace) == before
        assert trace.ledger.get("file_lost_records", "page_fault") == 1000
        assert "cannot be read" in trace.info.incomplete


def _recover(path: Path, output: Path) -> None:
    assert wstrace("convert", path, "-o", output)[0] == 0


def test_a_file_made_of_a_damaged_one_says_what_it_lacks(damaged, tmp_path):
    for name in ("first.wst", "second.wst"):
        _recover(damaged, tmp_path / name)
        damaged = tmp_path / name
        assert "the file lacks 1,000 records" in second_line(damaged)
        assert f"{damaged}: incomplete, " in wstrace("info", damaged)[1]
        with open_trace(str(damaged)) as trace:
            assert (trace.state, trace.missing) == ("incomplete", 1000)
            assert "1,007 lost" in repr(trace)


@pytest.mark.parametrize("word", ["convert", "report", "info"])
def test_copies_of_one_trace_are_refused_in_any_order(word, whole, cut, tmp_path):
    """A trace is not counted twice, and no records are thrown away for a copy that has fewer."""
    copy, recovered = tmp_path / "copy.wst", tmp_path / "recovered.wst"
    copy.write_bytes(whole.read_bytes())
    _recover(whole, recovered)
    output = ["-o", tmp_path / "merged.wst"] if word == "convert" else []
    for other in (cut, copy, recovered):
        for files in ((whole, other), (other, whole)):
            code, out, err = wstrace(word, *files, *output)
            assert (code, out) == (125, "")
            assert err.startswith(f"wstrace: {files[0]} and {files[1]} hold records of the same trace")
            assert "name one of them\n" in err
            assert err.count("\n") == 1
    assert not (tmp_path / "merged.wst").exists()


def test_pieces_of_one_trace_that_do_not_overlap_are_put_together(tmp_path, monkeypatch):
    clocks = osfile.clocks()
    monkeypatch.setattr(osfile, "clocks", lambda: clocks)  # what makes two files those of one trace
    pieces = {"early": 2_000_000, "late": 2_000_000_000}
    for name, begin in pieces.items():
        exporter, context = started(tmp_path / name)
        exporter.export(synthetic.mappings(context.strings))
        exporter.export(synthetic.processes(context.strings))
        for batch in synthetic.faults(context.strings, ROWS, begin=begin):
            exporter.export(batch)
        exporter.close()
    paths = [str(tmp_path / name) for name in pieces]
    with open_trace(paths) as trace:
        assert trace.rows["page_fault"] == 2 * ROWS
    assert wstrace("convert", *paths, "-o", tmp_path / "merged.wst")[0] == 0
    assert wstrace("info", paths[0], tmp_path / "merged.wst")[0] == 125
