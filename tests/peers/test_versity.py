"""A trace to and from a real S3 server, versitygw: written, read, interrupted by an outage and by a crash."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import wstrace as command
from kit.msgpack_scripted import column, recorded, started
from kit.object_stores import BUCKET, SECRET, s3_environment
from versity import Versity

import wstrace
from wstrace.errors import OutputError, TraceFileError

pytest.importorskip("obstore", reason="needs wstrace[store]")
URL = f"s3://{BUCKET}/host=a/x.wst"
PROGRAM = """
import sys, time
from kit.msgpack_scripted import started
from kit.synthetic_trace import faults
exporter, context = started(sys.argv[1], rotate_bytes=60_000)
for batch in faults(context.strings, 60_000, rows=2_000):
    exporter.export(batch)
    exporter.flush(1)
print("written", flush=True)
time.sleep(600)
"""


@pytest.fixture
def versity(versity_binary, tmp_path, monkeypatch):
    server = Versity(versity_binary, tmp_path / "versity")
    s3_environment(monkeypatch, server.url)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return server


def test_a_run_is_written_and_every_command_reads_it(versity):
    with versity:
        done = command("run", "-o", URL, "--", "true")
        assert done.returncode == 0, done.stderr
        assert versity.keys() == ["host=a/x.wst"]
        assert list(Path.cwd().iterdir()) == []
        assert f"{URL}: clean" in command("info", URL).stdout
        wanted = command("query", URL, "select count(*) > 0 as ok from page_fault", "--format", "csv")
        assert wanted.stdout == "ok\nTrue\n", wanted.stderr


def test_a_rotated_trace_comes_back_whole(versity):
    with versity:
        written = recorded(URL, 60_000, rows=2_000, rotate_bytes=60_000)
        assert len(versity.keys()) > 3
        with wstrace.open_trace(f"s3://{BUCKET}/host=*/x*.wst") as trace:
            assert np.array_equal(column(list(trace.batches("page_fault", ["va"])), "va"), column(written, "va"))
            assert trace.state == "clean"


def test_a_killed_trace_is_sent_under_the_same_keys(versity):
    tests = Path(__file__).parent.parent
    with versity:
        tracer = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, URL], env={**os.environ, "PYTHONPATH": str(tests)}, stdout=subprocess.PIPE
        )
        assert tracer.stdout.readline() == b"written\n"
        tracer.send_signal(signal.SIGKILL)
        tracer.wait(20)
        tracer.stdout.close()
        before = versity.keys()
        left = sorted(path.name for path in Path("x.wst.upload").glob("*.wst"))
        assert left  # the last part at least, which has no end
        done = command("convert", "x.wst.upload", "-o", URL)
        assert done.returncode == 0, done.stderr
        names = [f"host=a/{name}" for name in left]
        assert versity.keys() == sorted({*before, *names})
        with wstrace.open_trace(URL) as trace:
            assert trace.state == "cut"
            assert trace.rows["page_fault"] == 60_000


def test_what_the_server_refuses_is_one_line(versity, monkeypatch):
    with versity:
        recorded(URL, 100)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
        done = command("info", URL)
        assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)
        assert "access is denied" in done.stderr
        assert "another-secret" not in done.stderr
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with pytest.raises(TraceFileError, match="no such object or bucket"):
            wstrace.open_trace("s3://another-bucket/x.wst")
        with pytest.raises(OutputError, match="no such object or bucket; create the bucket"):
            started("s3://another-bucket/x.wst")
