"""Disks that fail: full ones, short writes, errors; never half a frame, and every lost record counted."""

from __future__ import annotations

import errno
import os

import pytest
from command_line import wstrace
from msgpack_scripted import everything, started

from wstrace.errors import OutputError
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write import frame_file as sink
from wstrace_exporters.msgpack.write.copy import copy


class Disk:
    """os.write with a disk that has so many bytes left, or fails in other ways."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 60
        self.error = errno.ENOSPC
        self._write = os.write
        self._truncate = os.ftruncate
        monkeypatch.setattr(osfile.os, "write", self.write)
        monkeypatch.setattr(osfile.os, "ftruncate", self.ftruncate)
        monkeypatch.setattr(sink, "RETRY_SECONDS", 0.0)

    def write(self, fd: int, data: object) -> int:
        view = memoryview(data)[: self.left]
        if not view:
            raise OSError(self.error, os.strerror(self.error))
        self.left -= len(view)
        return self._write(fd, view)

    def ftruncate(self, fd: int, size: int) -> None:
        self.left += os.fstat(fd).st_size - size
        self._truncate(fd, size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(osfile.os, "write", lambda fd, data: write(fd, memoryview(data)[:1000]))
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 10_000)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst"), scan=True) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 10_000


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_never_leaves_half_a_frame_and_waits_for_space(tmp_path, disk, error):
    path = tmp_path / "x.wst"
    disk.error = error
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 1000  # some of the next frame
    everything(exporter, context, 5000)
    exporter.flush(1)
    with open_trace(str(path), scan=True) as trace:
        assert trace.damage()["lost_bytes"] == 0
        assert trace.rows["page_fault"] == 5000
    assert exporter.statistics()["waiting_bytes"] > 0
    disk.left = 1 << 60
    everything(exporter, context, 5000)
    exporter.close()
    with open_trace(str(path), scan=True) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 15_000
    assert exporter.statistics()["dropped"] == 0
    assert context.ledger.losses() == []


def test_what_does_not_fit_in_memory_is_dropped_counted_and_marked(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(sink, "QUEUE_BYTES", 100_000)
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 0
    for _ in range(20):
        everything(exporter, context, 5000)
        exporter.flush(1)
        assert exporter.statistics()["waiting_bytes"] < 400_000
    dropped = exporter.statistics()["dropped"]
    assert dropped > 0
    assert context.ledger.get("failed_lane", "msgpack") == dropped
    disk.left = 1 << 60
    everything(exporter, context, 5000)
    with pytest.raises(OutputError, match=f"lacks {dropped:,} records: No space left on device"):
        exporter.close()
    with open_trace(str(path), scan=True) as trace:
        assert trace.clean
        assert (trace.state, trace.missing) == ("incomplete", dropped)
        assert trace.damage()["lost_names"] == 0
        lost = sum(sum(mark["lost"].values()) for mark in trace.marks if mark["m"] == "lost")
        assert lost == dropped
        assert trace.rows["page_fault"] + lost == 22 * 5000
        assert trace.ledger.get("failed_lane") == dropped


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_file_reads(tmp_path, disk):
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 10
    everything(exporter, context, 5000)
    with pytest.raises(OutputError, match=r"No space left.*5,042 records.*convert"):
        exporter.close()
    assert context.ledger.get("failed_lane") == 5042  # mappings and processes too
    with open_trace(str(path)) as trace:
        assert trace.state == "cut"
        assert trace.damage()["lost_bytes"] == 0
        assert trace.rows["page_fault"] == 5000


def test_the_end_fits_where_the_rows_do_not(tmp_path, disk):
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 8000  # less than the frame, more than the end
    everything(exporter, context, 30_000)
    with pytest.raises(OutputError, match=r"lacks 30,\d\d\d records: No space left on device"):
        exporter.close()
    assert context.info.saved == ""
    with open_trace(str(path), scan=True) as trace:
        assert trace.clean
        assert trace.state == "incomplete"
        assert trace.missing == trace.ledger.get("failed_lane") == exporter.statistics()["dropped"]
        assert trace.info.incomplete == f"the file lacks {trace.missing:,} records: No space left on device"
        assert trace.rows["page_fault"] == 5000
        assert context.ledger.get("failed_lane") == exporter.statistics()["dropped"] == 30_000
        assert any(mark["m"] == "lost" and mark["why"] == "No space left on device" for mark in trace.marks)


def test_a_sync_that_fails_at_the_end_is_told(tmp_path, monkeypatch):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 100)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(osfile.os, "fsync", fails)
    with pytest.raises(OutputError, match="Input/output error"):
        exporter.close()


def test_a_copy_that_does_not_fit_is_no_whole_copy(tmp_path, disk):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 100_000)
    exporter.close()
    disk.left = 8_000
    with open_trace(str(tmp_path / "x.wst")) as trace, pytest.raises(OutputError, match=r"lacks .* records: No space"):
        copy([trace], str(tmp_path / "y.wst"))
    with open_trace(str(tmp_path / "y.wst"), scan=True) as trace:
        assert trace.state == "incomplete"
        assert trace.missing == trace.ledger.get("failed_lane") >= 100_000 - trace.rows.get("page_fault", 0)


def test_a_file_of_a_tracer_that_failed_is_incomplete(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 5000)
    context.ledger.set("lost_tracer", 229_433, "minor")
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert (trace.state, trace.missing) == ("incomplete", 229_433)
        assert trace.info.incomplete == "the file lacks 229,433 records"


def test_info_says_where_the_missing_records_were_lost(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 5000)
    for stage, n, who in (("lost_tracer", 70, "minor"), ("file_lost_records", 30, "page_fault"),
                          ("failed_lane", 9, "msgpack")):  # fmt: skip
        context.ledger.set(stage, n, who)
    with pytest.raises(OutputError):
        exporter.close()
    told = wstrace("info", tmp_path / "x.wst").stdout.splitlines()
    assert told[1:4] == [
        "  records that did not reach it: 9",
        "  records that the tracer failed on: 70",
        "  records that could not be read in the file that it was made of: 30",
    ]
