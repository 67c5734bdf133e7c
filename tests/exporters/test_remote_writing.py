"""Traces written to object stores: parts are sent and removed; what cannot be sent stays, and is counted."""

import os
import re

import numpy as np
import pytest
from kit.command_line import wstrace as command
from kit.msgpack_scripted import column, everything, recorded, started
from kit.object_stores import BUCKET, SECRET, moto, s3_environment

import wstrace
from wstrace.errors import OutputError, UsageError
from wstrace.output_file import open_own
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter
from wstrace_exporters.msgpack.write.upload import send_folder

pytest.importorskip("obstore", reason="needs wstrace[store]")
URL = f"s3://{BUCKET}/host=a/x.wst"


@pytest.fixture(scope="module")
def server():
    with moto() as running:
        yield running


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """A client of the bucket, which is empty as the working directory is."""
    import boto3

    s3_environment(monkeypatch, server[0])
    monkeypatch.chdir(tmp_path)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for key in keys(client):
        client.delete_object(Bucket=BUCKET, Key=key)
    yield client
    server[1].refusing = False


def keys(client) -> list[str]:
    return [one["Key"] for one in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def test_parts_are_uploaded_and_removed(bucket, tmp_path):
    faults = recorded(URL, 60_000, rows=2_000, rotate_bytes=60_000)
    assert len(keys(bucket)) > 3
    assert {"host=a/x.wst", "host=a/x.0001.wst"} <= {*keys(bucket)}
    assert list(tmp_path.iterdir()) == []
    with wstrace.open_trace(URL) as trace:
        assert np.array_equal(column(list(trace.batches("page_fault", ["va"])), "va"), column(faults, "va"))
        assert trace.state == "clean"


def test_a_taken_key_is_refused_and_overwritten_when_forced(bucket):
    recorded(URL, 60_000, rows=2_000, rotate_bytes=60_000)
    with pytest.raises(OutputError, match="exists; choose another name, or overwrite all parts with -f"):
        started(URL)
    recorded(URL, 1_000, force=True)
    assert keys(bucket) == ["host=a/x.wst"]


def test_a_store_that_refuses_leaves_the_parts_and_says_how_to_send_them(bucket, server, tmp_path):
    exporter, context = started(URL, rotate_bytes=60_000, upload_seconds=0.1)
    server[1].refusing = True
    batches = everything(exporter, context, 60_000)
    with pytest.raises(OutputError) as caught:
        exporter.close()
    shown = str(caught.value)
    assert re.search(rf"\d parts of {URL} \([\d.]+ KiB\) are still in x.wst.upload: cannot write s3://{BUCKET}/\S*: "
                     rf"access is denied; .+wstrace convert x.wst.upload -o {URL} sends them$", shown)  # fmt: skip
    assert SECRET not in shown
    assert context.info.incomplete
    assert not context.info.saved
    assert (tmp_path / "x.wst.upload/x.wst").exists()
    with pytest.raises(OutputError, match=r"\d parts of an earlier trace; wstrace convert x.wst.upload -o"):
        started(URL)
    server[1].refusing = False
    done = command("convert", "x.wst.upload", "-o", URL)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "x.wst.upload").exists()
    with wstrace.open_trace(URL) as trace:
        assert np.array_equal(column(list(trace.batches("page_fault", ["va"])), "va"), column(batches, "va"))


def test_after_a_crash_the_same_keys_are_sent(bucket, tmp_path):
    recorded(URL, 60_000, rows=2_000, rotate_bytes=60_000)
    folder = tmp_path / "x.wst.upload"
    folder.mkdir()
    sent = keys(bucket)
    for key in sent:
        bucket.download_file(BUCKET, key, str(folder / key.rpartition("/")[2]))
        bucket.delete_object(Bucket=BUCKET, Key=key)
    last = folder / max(sent).rpartition("/")[2]
    last.write_bytes(last.read_bytes()[:-100])
    assert send_folder(str(folder), URL) == len(sent)
    assert keys(bucket) == sent
    assert not folder.exists()
    with wstrace.open_trace(URL) as trace:
        assert trace.state == "cut"


@pytest.mark.parametrize(("options", "why"), [
    ({"path": "s3://bucket"}, "no trace can be written"),
    ({"path": "s3://bucket/*.wst"}, "no trace can be written"),
    ({"path": "s3://me:word@bucket/x.wst"}, "-o s3://bucket/x.wst: the URL holds credentials"),
    *[({"path": f"s3://{name}"}, "without a number at its end")
      for name in ("bucket/x", "bucket.name/x", "bucket/.wst", "bucket/x.0005.wst")],
    ({"path": URL, "keep": 3}, "no resume and no keep"),
])  # fmt: skip
def test_what_cannot_be_written_to_is_refused(options, why):
    with pytest.raises(UsageError, match=why):
        MsgpackExporter(**options)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"holds no part of x\.wst"):
        send_folder(str(tmp_path), "s3://b/x.wst")


def test_a_link_in_the_folder_is_not_sent(bucket, tmp_path):
    secret, folder = tmp_path / "secret", tmp_path / "x.upload"
    recorded(secret, 100)
    folder.mkdir()
    (folder / "x.wst").symlink_to(secret)
    with pytest.raises(OutputError, match=r"cannot read .*x\.wst"):
        send_folder(str(folder), URL)
    (folder / "x.wst").unlink()
    (folder / "x.wst").hardlink_to(secret)
    with pytest.raises(OutputError, match="has 2 names"):
        open_own(str(folder / "x.wst"))
    (folder / "x.wst").unlink()
    os.mkfifo(folder / "x.wst")
    with pytest.raises(UsageError, match="holds no part"):
        send_folder(str(folder), URL)
    assert keys(bucket) == []


@pytest.mark.parametrize("arguments", [
    ("convert", "x.wst", "-o", "s3://b/x.csv"),
    ("convert", "x.wst", "-o", "s3://b/y.wst"),
    ("report", "x.wst", "--html", "s3://b/x.html"),
])  # fmt: skip
def test_an_output_that_is_no_file_is_one_line(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "x.wst", 200)
    done = command(*arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (123, 1), done.stderr
    assert "s3://" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.wst"]
