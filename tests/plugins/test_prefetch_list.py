"""The list of `wstrace prefetch`: its bytes, that every name comes back, and what is refused of a hostile one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.errors import Unavailable, UsageError
from wstrace.schema import PAGE_FAULT, RESIDENT_PAGES
from wstrace.testing import batch_of, trace_of
from wstrace_plugins.prefetch import start_list
from wstrace_plugins.prefetch.backend import backend
from wstrace_plugins.prefetch.making import Made, made
from wstrace_plugins.prefetch.start_list import HEADER, File, Range, decoded, encoded

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "prefetch-1.list"
PYTHON = File(b"/usr/bin/python3.11", 17584, 1778312132000000000, "a7516ae81afc8457cbb59039c47cb6428c978064")
ODD = File(b"/srv/a name\nwith\\all\xff", 4097, -1, "")
RANGES = [Range(PYTHON, 0, 16384), Range(ODD, 4096, 1), Range(ODD, 0, 4096), Range(PYTHON, 16384, 1200)]

PART = st.binary(min_size=1, max_size=20).filter(lambda part: part not in (b".", b"..") and not {0, 47} & set(part))
FILES = st.builds(
    lambda parts, size, time, build_id: File(b"/" + b"/".join(parts), size, time, build_id.hex()),
    st.lists(PART, min_size=1, max_size=5),
    st.integers(1, 2**63 - 1),
    st.integers(1 - 2**63, 2**63 - 1),
    st.binary(max_size=20),
)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    file = draw(FILES)
    offset = draw(st.integers(0, file.size - 1))
    return Range(file, offset, draw(st.integers(1, file.size - offset)))


def test_the_bytes_of_version_1():
    assert b"".join(encoded(RANGES)) == GOLDEN.read_bytes()
    assert decoded(GOLDEN.read_bytes(), "it") == RANGES
    assert decoded(HEADER, "it") == []


@given(st.lists(ranges(), max_size=5))
def test_every_name_and_number_comes_back(them: list[Range]):
    text = b"".join(encoded(them))
    assert decoded(text, "it") == them
    assert text.isascii()
    assert text.count(b"\n") == len(them) + 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"/a 1 1 - 0", "is not `path size"),
        (b"/a 1 1 - 0 1 ", "is not `path size"),
        (b"/a  1 1 - 0 1", "is not `path size"),
        (b"", "is not `path size"),
        (b"a 1 1 - 0 1", "is not `path size"),
        (b"/a\\x2 1 1 - 0 1", "is not `path size"),
        (b"/a\xff 1 1 - 0 1", "is not `path size"),
        (b"/a 1 1 xyz 0 1", "is not `path size"),
        (b"/a 1 1 - 0 0", "is not `path size"),
        (b"/a 01 1 - 0 1", "is not `path size"),
        (b"/a +1 1 - 0 1", "is not `path size"),
        (b"/a 1_0 1 - 0 1", "is not `path size"),
        ("/a \u0661 1 - 0 1".encode(), "is not `path size"),
        (b"/a -1 1 - 0 1", "is not `path size"),
        (b"/a 1 1 - 0 99999999999999999999", "is not `path size"),
        (b"/a 1 1 - 0 2", "ends behind the file's end"),
        (b"/a 9 1 - 9223372036854775807 9223372036854775807", "ends behind the file's end"),
        (b"/a 9223372036854775808 1 - 0 1", "a number that no file has"),
        (b"/a 1 9999999999999999999 - 0 1", "a number that no file has"),
        (b"/a/../etc/shadow 1 1 - 0 1", "not the whole name of a file"),
        (b"/a/./b 1 1 - 0 1", "not the whole name of a file"),
        (b"//a 1 1 - 0 1", "not the whole name of a file"),
        (b"/ 1 1 - 0 1", "not the whole name of a file"),
        (b"/a\\x00b 1 1 - 0 1", "not the whole name of a file"),
        (b"/" + b"a" * 4096 + b" 1 1 - 0 1", "not the whole name of a file"),
    ],
)
def test_a_line_that_is_not_of_this_form_is_refused_with_its_number(line: bytes, why: str):
    with pytest.raises(UsageError, match=why) as refused:
        decoded(HEADER + b"/ok 1 1 - 0 1\n" + line + b"\n", "it")
    assert "it is no prefetch list: line 3 " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", [b"", b"wstrace-prefetch 2\n", b"wstrace-prefetch 1", b"\x7fELF", b"wstrace-prefetch 1\r\n"]
)
def test_what_is_no_list_of_this_version_is_refused(text: bytes):
    with pytest.raises(UsageError, match="it is no prefetch list of version 1"):
        decoded(text, "it")


def test_a_list_that_is_cut_off_is_refused():
    with pytest.raises(UsageError, match="cut off in its last line"):
        decoded(GOLDEN.read_bytes()[:-1], "it")


def test_a_million_ranges_are_refused():
    with pytest.raises(UsageError, match="more than 262,144 ranges"):
        decoded(HEADER + b"/a 1 1 - 0 1\n" * 1_000_000, "it")


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs")
def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    for name, why in (
        ("missing", "No such file"),
        ("fifo", "no regular file"),
        (".", "Is a directory"),
        ("\0", "null"),
    ):
        with pytest.raises(UsageError, match=why):
            start_list.read(str(tmp_path / name))
    monkeypatch.setattr(start_list, "_MOST_BYTES", 10)
    with pytest.raises(UsageError, match="no prefetch list"):
        start_list.read(str(GOLDEN))


def test_where_no_system_reads_ahead_it_is_said(monkeypatch):
    import wstrace_plugins.os
    from wstrace_plugins.prefetch.backend import backend

    monkeypatch.setattr(wstrace_plugins.os, "system", lambda platform="win32": "windows")
    with pytest.raises(
        Unavailable, match="wstrace prefetch reads files ahead on Linux only; make and apply the list there"
    ):
        backend()


def test_processes_that_no_snapshot_shows_are_told():
    found = Made([], {"changed": 2}, processes=3, unseen=2)
    assert found.note == "left out: 2 files changed; 2 of 3 processes without a snapshot: of these only what faulted"
    assert not Made([], processes=3).note


def test_snapshots_of_children_are_looked_for():
    strings = Dictionary()
    part = SnapshotPart(7, 0, 0, True, 5, 1)
    shown = batch_of(RESIDENT_PAGES, strings, start=[4096], pages=[1], flags=0, mapping=0)
    trace = trace_of(
        batch_of(PAGE_FAULT, strings, pid=[7, 8], tid=[7, 8], va=4096, flags=0, time_ns=3, mapping=0),
        Batch(RESIDENT_PAGES, shown.columns, strings=strings, snapshot=part),
    )
    found = made(trace, backend())
    assert (found.processes, found.unseen) == (2, 1)


@pytest.mark.parametrize("lacking", ["va", "mapping", "start"])
def test_rows_of_a_damaged_file_that_lack_a_column_name_no_page(lacking: str) -> None:
    strings = Dictionary()
    faults = {"pid": 7, "tid": 7, "va": [4096], "flags": 0, "time_ns": 3, "mapping": 0}
    shown = {"start": [4096], "pages": [1], "flags": 0, "mapping": 0}
    whole = [batch_of(PAGE_FAULT, strings, **faults), batch_of(RESIDENT_PAGES, strings, **shown)]
    left = [batch.only(name for name in batch if name != lacking) for batch in whole]
    part = SnapshotPart(7, 0, 0, True, 5, 1)
    resident = Batch(RESIDENT_PAGES, left[1].columns, strings=strings, snapshot=part)
    found = made(trace_of(left[0], resident), backend())
    assert (found.ranges, found.left_out) == ([], {})
