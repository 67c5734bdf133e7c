"""Where a trace can be written: files, locks, pipes, standard output; what must never be left behind."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.command_line import WSTRACE
from kit.msgpack_scripted import everything, recorded, started

from wstrace.errors import OutputError
from wstrace_exporters.msgpack.read.trace import open_trace


def test_two_writers_on_one_file(tmp_path):
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 1000)
    exporter.flush(1)
    before = path.read_bytes()
    for how in ({"force": True}, {"resume": True}):
        with pytest.raises(OutputError, match="another wstrace"):
            started(path, **how)
    assert path.read_bytes() == before
    exporter.close()
    started(path, force=True)[0].close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with named pipes")
def test_a_fifo_gets_a_whole_trace(tmp_path):
    fifo, copy = tmp_path / "fifo", tmp_path / "copy.wst"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: copy.write_bytes(fifo.read_bytes()), daemon=True)
    reader.start()
    exporter, context = started(fifo)
    everything(exporter, context, 20_000)
    exporter.close()
    reader.join(20)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    with open_trace(str(copy)) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 20_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with named pipes")
def test_a_pipe_that_nobody_reads_any_more_is_one_error(tmp_path):
    read, write = os.pipe()
    exporter, context = started(Path(f"/dev/fd/{write}"))
    os.close(write)
    everything(exporter, context, 1000)
    os.close(read)
    refused = 70_000
    with pytest.raises(OutputError, match="Broken pipe"):
        everything(exporter, context, 2 * refused, refused)
    with pytest.raises(OutputError, match="Broken pipe"):
        exporter.close()
    # nothing but the header got through; the queue itself counts the batch that was refused
    assert context.ledger.get("failed_exporter") == 1000 + 2 + 2


@pytest.fixture
def to_stdout(tmp_path):
    """A command that writes a trace of 10,000 faults to standard output."""
    recorded(tmp_path / "in.wst", 10_000)
    return [*WSTRACE, "convert", str(tmp_path / "in.wst"), "-o", "-"]


def test_standard_output_is_a_trace_but_not_on_a_terminal(tmp_path, to_stdout):
    out = subprocess.run(to_stdout, capture_output=True, timeout=60)
    (tmp_path / "x.wst").write_bytes(out.stdout)
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 10_000
    pty = pytest.importorskip("pty", reason="only on systems with terminals")
    master, slave = pty.openpty()
    shown = subprocess.run(to_stdout, stdout=slave, stderr=subprocess.PIPE, timeout=60)
    os.close(slave)
    os.close(master)
    assert b"standard output is a terminal" in shown.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes standard output there no more than this")
def test_standard_output_that_is_closed_or_without_a_reader_is_named(to_stdout):
    """Where standard output is closed, its number is soon another file's, which gets nothing of the trace."""
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *to_stdout]
    shown = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert shown.splitlines()[-1].endswith("standard output is closed; pipe it, or write -o FILE"), shown
    read, write = os.pipe()
    os.close(read)
    shown = subprocess.run(to_stdout, stdout=write, stderr=subprocess.PIPE, text=True).stderr
    os.close(write)
    assert shown.splitlines()[-1].endswith("standard output: Broken pipe; its reader has ended; write -o FILE"), shown


def test_a_session_that_fails_to_start_leaves_no_file(tmp_path):
    exporter, _ = started(tmp_path / "x.wst")
    exporter.cancel()
    assert not (tmp_path / "x.wst").exists()
    (tmp_path / "x.wst").write_bytes(b"it was there")
    exporter, _ = started(tmp_path / "x.wst", resume=True, force=True)
    exporter.cancel()
    assert (tmp_path / "x.wst").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="plays sudo: needs root")
class TestUnderSudo:
    """As root for a user who, or whose programs, can write in the folder of the output."""

    @pytest.fixture
    def folder(self, open_folder, monkeypatch):
        own = open_folder / "own"
        own.mkdir()
        os.chown(own, 65534, 65534)
        monkeypatch.setenv("SUDO_UID", "65534")
        monkeypatch.setenv("SUDO_GID", "65534")
        return own

    @pytest.fixture
    def victim(self, tmp_path):
        path = tmp_path / "victim"
        path.write_bytes(b"precious")
        yield path
        assert path.read_bytes() == b"precious"
        assert path.stat().st_uid == 0

    @pytest.mark.parametrize("force", [False, True])
    def test_rotation_into_a_planted_part_is_reported(self, folder, victim, force):
        path = folder / "r.wst"
        (folder / "r.0001.wst").symlink_to(victim)
        exporter, context = started(path, rotate_bytes=10_000, force=force)
        everything(exporter, context, 20_000)
        with pytest.raises(
            OutputError, match=r"r\.0001\.wst is a symbolic link; the records since then are in .*/r\.wst"
        ):
            exporter.close()
        assert context.ledger.as_dict() == {}
        with open_trace(str(path)) as trace:
            assert trace.clean
            assert trace.rows["page_fault"] == 20_000
            assert any(mark.get("m") == "rotation" and "symbolic link" in mark["why"] for mark in trace.marks)
        assert path.stat().st_uid == 65534
