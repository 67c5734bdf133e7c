"""Many parts of one trace in an object store: what is opened of them, counted at the server."""

from collections.abc import Sequence
from contextlib import contextmanager

import pytest
from kit.many_parts import ManyParts
from kit.msgpack_scripted import column, everything, started
from kit.object_stores import listing, one_file, s3_environment, serving

import wstrace
from wstrace_exporters.msgpack.format.layout import name_and_number
from wstrace_exporters.msgpack.read.open_parts import LATE_NS

pytest.importorskip("obstore", reason="needs wstrace[store]")
WINDOW, APART, ROWS = 10_000_000, 100_000_000_000, 60


@contextmanager
def many(parts: ManyParts, monkeypatch, other: Sequence[str] = ()):
    """The requests of a server of parts, which it makes when they are requested; the last ones may have other names."""
    keys = ["x.wst", *(f"x.{number:06}.wst" for number in range(1, len(parts)))]
    keys[len(keys) - len(other) :] = other
    listed = listing(keys, parts.size)

    def answer(method, path, headers, body):
        if "list-type" in path:
            return 200, {}, listed(path)
        number = len(parts) - 1 if path.endswith(tuple(other)) else name_and_number(path)[1]
        return one_file(parts.part(number))(method, path, headers, body)

    with serving(answer) as (url, requests):
        s3_environment(monkeypatch, url)
        yield requests


def opened(requests) -> set[str]:
    """The objects that were requested since the last call, without listings."""
    found = {one.split()[1] for one in requests if "list-type" not in one}
    requests.clear()
    return found


@pytest.fixture(scope="module")
def one_part(tmp_path_factory):
    """A part in the middle of a rotated trace."""
    folder = tmp_path_factory.mktemp("one")
    exporter, context = started(folder / "x.wst", rotate_bytes=1, fsync="none")
    everything(exporter, context, ROWS)
    exporter.close()
    return folder / "x.0001.wst"


@pytest.mark.parametrize("n", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_window_opens_only_the_parts_that_can_hold_it(n, one_part, monkeypatch):
    parts = ManyParts(one_part, n, APART)
    with many(parts, monkeypatch) as requests, wstrace.open_trace("s3://bucket/x.wst") as trace:
        assert opened(requests) == {"/bucket/x.wst"}
        for number in (n * 2 // 5, n * 2 // 5 + 1, 0, n - 1):
            begin = parts.begin_of(number)
            found = list(trace.batches("page_fault", ["time_ns", "file"], begin, begin + WINDOW))
            times = column(found, "time_ns")
            assert (len(times), int(times[0])) == (ROWS, begin)
            assert {found[0].strings[code].rpartition("/")[2][:3] for code in found[0]["file"]} <= {"lib", "[an"}
            wanted = len(requests)
            assert len(opened(requests)) <= wanted <= n.bit_length() + 5
        begin = parts.begin_of(n // 3)
        assert not list(trace.batches("page_fault", None, begin + APART // 2, begin + APART // 2 + WINDOW))
        assert len(opened(requests)) <= n.bit_length() + 2


def test_a_record_that_was_written_late_is_in_its_window(one_part, monkeypatch):
    """Parts overlap in time: the rows of one wait while the next one begins."""
    parts = ManyParts(one_part, 50, LATE_NS // 3, late={20: LATE_NS - 1})
    begin = parts.begin_of(20)
    with many(parts, monkeypatch) as requests, wstrace.open_trace("s3://bucket/x.wst") as trace:
        found = column(list(trace.batches("page_fault", ["time_ns"], begin, begin + WINDOW)), "time_ns")
        assert len(opened(requests)) < 25
        times = column(list(trace.batches("page_fault", ["time_ns"])), "time_ns")
        assert sorted(found) == sorted(times[(times >= begin) & (times < begin + WINDOW)])
        assert len(found) > ROWS


@pytest.mark.parametrize("why", ["another session", "another trace"])
def test_parts_that_need_not_follow_each_other_are_all_read(why, one_part, monkeypatch):
    parts = ManyParts(one_part, 20, APART, sessions=2)
    begin = parts.begin_of(12)
    other = ["y.wst"] if why == "another trace" else []
    with many(parts, monkeypatch, other) as requests, wstrace.open_trace("s3://bucket/*.wst") as trace:
        assert len(list(trace.batches("page_fault", ["time_ns"], begin, begin + WINDOW))) == 1
        assert len(opened(requests)) == 20
