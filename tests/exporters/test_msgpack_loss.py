"""A file that lacks records says so in every view, and so does every file that is made of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from msgpack_scripted import recorded

from wstrace import cli
from wstrace_msgpack.format.layout import EVENTS
from wstrace_msgpack.read.part import Part
from wstrace_msgpack.read.trace import open_trace

WRITTEN, ROWS = 10_000, 1000


@pytest.fixture
def whole(tmp_path) -> Path:
    path = tmp_path / "whole.wst"
    recorded(path, WRITTEN, rows=ROWS)
    return path


@pytest.fixture
def damaged(whole, tmp_path) -> Path:
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
def cut(whole, tmp_path) -> Path:
    path = tmp_path / "cut.wst"
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    return path


def wstrace(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def second_line(path: Path) -> str:
    code, out, _ = wstrace("report", path)
    assert code == 0
    return out.splitlines()[1]


def test_a_damaged_file_tells_how_many_of_its_records_cannot_be_read(damaged):
    assert "1,000 page_fault records of it cannot be read" in second_line(damaged)
    _, out, _ = wstrace("info", damaged)
    assert "ledger file_lost_records:page_fault: 1,000\n" in out


def test_a_cut_file_tells_that_what_it_lacks_is_not_known(cut):
    assert "its end is missing, how many records with it is not known" in second_line(cut)
    with open_trace(str(cut)) as trace:
        assert repr(trace).endswith(" known to be lost, how many more is not known>")


def test_a_damaged_file_is_called_so_before_it_is_read_and_after(damaged):
    with open_trace(str(damaged)) as trace:
        before = repr(trace)
        assert "damaged; " in before
        assert "9,000 page_fault" in before
        assert before.endswith("; 1,007 lost>")  # 7 by the kernel
        for _ in trace.batches("page_fault"):
            pass
        assert repr(trace) == before
    with open_trace(str(damaged)) as trace:
        assert trace.state == "damaged"
    with open_trace(str(damaged)) as trace:
        assert trace.ledger.get("file_lost_records", "page_fault") == 1000
    with open_trace(str(damaged)) as trace:
        assert "cannot be read" in trace.info.incomplete


def test_a_query_warns_of_what_its_answer_lacks(damaged, whole):
    pytest.importorskip("duckdb")
    sql = "select count(*) from page_fault"
    code, out, err = wstrace("query", damaged, sql)
    assert code == 0
    assert "9000" in out
    assert err == f"wstrace: {damaged}: the file is damaged: 1,000 page_fault records of it cannot be read\n"
    assert wstrace("query", whole, sql)[2] == ""


def _recover(path: Path, output: Path) -> None:
    assert wstrace("recover", path, "-o", output)[0] == 0


def _merge(path: Path, output: Path) -> None:
    assert wstrace("merge", path, "-o", output)[0] == 0


@pytest.mark.parametrize("make", [_recover, _merge])
def test_a_file_made_of_a_damaged_one_says_what_it_lacks(make: Callable[[Path, Path], None], damaged, tmp_path):
    for name in ("first.wst", "second.wst"):
        make(damaged, tmp_path / name)
        damaged = tmp_path / name
        assert "the file lacks 1,000 records: they could not be read in the file that it was made of" in second_line(
            damaged
        )
        assert f"{damaged}: incomplete, " in wstrace("info", damaged)[1]
        with open_trace(str(damaged)) as trace:
            assert (trace.state, trace.missing) == ("incomplete", 1000)
            assert "1,007 lost" in repr(trace)


@pytest.mark.parametrize("make", [_recover, _merge])
def test_a_file_made_of_a_cut_one_says_that_it_was_cut(make: Callable[[Path, Path], None], cut, tmp_path):
    for name in ("first.wst", "second.wst"):
        make(cut, tmp_path / name)
        cut = tmp_path / name
        assert "it was made of a file that was cut: how many records it lacks is not known" in second_line(cut)
        assert f"{cut}: incomplete, " in wstrace("info", cut)[1]
        with open_trace(str(cut)) as trace:
            assert trace.state == "incomplete"
            assert repr(trace).endswith(" known to be lost, how many more is not known>")
