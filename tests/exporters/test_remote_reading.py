"""Traces in object stores: read and written there, requests counted at the server, what servers do wrong."""

import os
import re
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.command_line import wstrace as command
from kit.msgpack_scripted import column, everything, recorded, started
from kit.object_stores import BUCKET, SECRET, listing, moto, one_file, s3_environment, serving

import wstrace
from wstrace.errors import OutputError, TraceFileError, UsageError
from wstrace.output_file import open_own
from wstrace_exporters.msgpack.read.open_parts import LATE_NS
from wstrace_exporters.msgpack.storage import store as store_module
from wstrace_exporters.msgpack.storage.urls import shown, without_secrets
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter
from wstrace_exporters.msgpack.write.upload import send_folder

pytest.importorskip("obstore", reason="needs wstrace[store]")
WINDOW = 10_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A trace of several megabytes, and its faults."""
    path = tmp_path_factory.mktemp("large") / "x.wst"
    return path, recorded(path, 800_000, rows=20_000)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The parts of a rotated trace, and its faults."""
    folder = tmp_path_factory.mktemp("parts")
    faults = recorded(folder / "x.wst", 60_000, rows=2_000, rotate_bytes=60_000)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) > 3
    return folder, faults


@pytest.fixture(scope="module")
def server():
    with moto() as running:
        yield running


URL = f"s3://{BUCKET}/host=a/x.wst"


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


@pytest.fixture
def s3(bucket, server):
    """A function that puts files into the bucket, and the requests since."""

    def put(key, data):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=data)
        server[1].clear()

    return put, server[1]


def test_a_window_of_a_remote_trace_takes_few_requests(large, s3):
    path, faults = large
    put, requests = s3
    put("a/x.wst", path.read_bytes())
    with wstrace.open_trace(f"s3://{BUCKET}/a/x.wst") as trace:
        assert 0 < requests.since() <= 4
        times = column(faults, "time_ns")
        start = int(times[len(times) // 2])
        found = list(trace.batches("page_fault", ["time_ns", "va", "file"], start, start + WINDOW))
        assert 0 < requests.since() <= 5
        inside = (times >= start) & (times < start + WINDOW)
        assert inside.any()
        assert np.array_equal(column(found, "va"), column(faults, "va")[inside])
        assert np.array_equal(column(list(trace.batches("page_fault", ["va"])), "va"), column(faults, "va"))
        assert requests.since() <= 2 + path.stat().st_size // (4 << 20)
        assert (trace.state, trace.name) == ("clean", f"s3://{BUCKET}/a/x.wst")


@pytest.mark.parametrize("name", ["x.wst", "x*.wst", "[xy].*"])
def test_parts_are_listed_once_and_opened_when_they_are_read(parts, s3, name):
    folder, faults = parts
    put, requests = s3
    for part in folder.iterdir():
        put(f"d/{part.name}", part.read_bytes())
    put("d/x.other", b"no trace")
    put("d/x.0001.wst.note", b"no trace")
    with wstrace.open_trace(f"s3://{BUCKET}/d/{name.replace('.*', '*.wst')}") as trace:
        assert len([one for one in requests if one.startswith(f"GET /{BUCKET} ") or one == f"GET /{BUCKET}"]) == 1
        assert requests.since() <= 4
        batches = trace.batches("page_fault", ["va"])
        next(iter(batches))
        assert requests.since() <= 5
        assert np.array_equal(column(list(batches), "va"), column(faults, "va"))
        assert trace.rows["page_fault"] == len(column(faults, "va"))
        assert trace.state == "clean"


def test_an_endless_listing_is_one_line(monkeypatch):
    monkeypatch.setattr(store_module, "MOST_KEYS", 2_500)
    keys = [f"x.{number:07}.wst" for number in range(1_000_000)]
    listed = listing(dict.fromkeys(keys, 100))
    with serving(lambda method, path, headers, body: (200, {}, listed(path))) as (url, requests):
        s3_environment(monkeypatch, url)
        with pytest.raises(TraceFileError, match="more than 2,500 objects; name a longer prefix"):
            wstrace.open_trace("s3://bucket/x.wst")
        assert len(requests) == 3


def test_what_is_not_there_is_one_line(s3):
    put, _ = s3
    put("empty.wst", b"")
    for url, why in {
        f"s3://{BUCKET}/none.wst": "there is no such object",
        f"s3://{BUCKET}/none-*.wst": "there is no such object",
        "s3://other-bucket/x.wst": "no such object or bucket",
        f"s3://{BUCKET}/empty.wst": "is empty",
    }.items():
        with pytest.raises(TraceFileError, match=why) as caught:
            wstrace.open_trace(url)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("status", "code", "why"), [
    (403, "AccessDenied", "access is denied; check AWS_*"),
    (503, "SlowDown", "cannot list s3://bucket/x"),
])  # fmt: skip
def test_a_bucket_without_rights_is_one_line_without_the_secret(status, code, why, monkeypatch):
    body = f"<Error><Code>{code}</Code><Message>no, {SECRET}</Message></Error>".encode()
    with serving(lambda *_: (status, {"Content-Type": "application/xml"}, body)) as (url, _):
        s3_environment(monkeypatch, url)
        done = command("report", "s3://bucket/x.wst")
    assert (done.returncode, done.stdout) == (125, "")
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.stderr


def test_an_object_that_is_replaced_by_equal_bytes_is_one_line(large, monkeypatch):
    """Its size is what it was, and its bytes may be another trace's where they were not read yet: its ETag tells."""
    data = large[0].read_bytes()
    objects, listed = one_file(data), listing({"x.wst": len(data)})
    now = ["1"]

    def answer(method, path, headers, body):
        if "list-type" in path:
            return 200, {}, listed(path)
        status, reported, sent = objects(method, path, headers, body)
        return status, {**reported, "ETag": f'"{now[0]}"'}, sent

    with serving(answer) as (url, _):
        s3_environment(monkeypatch, url)
        with wstrace.open_trace("s3://bucket/x.wst") as trace:
            now[0] = "2"
            with pytest.raises(TraceFileError, match="was replaced while it was read; open it again") as caught:
                list(trace.batches("page_fault", ["va"]))
    assert "\n" not in str(caught.value)


def test_a_cut_object_is_read_as_far_as_it_goes(large, s3):
    path, faults = large
    put, _ = s3
    put("x.wst", path.read_bytes()[: path.stat().st_size // 2])
    with wstrace.open_trace(f"s3://{BUCKET}/x.wst") as trace:
        assert trace.state == "cut"
        found = column(list(trace.batches("page_fault", ["va"])), "va")
        assert 0 < len(found) < len(column(faults, "va"))


@pytest.mark.parametrize("how", ["short", "torn", "long", "hangs"])
def test_a_server_that_sends_something_else_is_one_line(how, large, monkeypatch):
    monkeypatch.setattr(store_module, "REQUEST_SECONDS", 1)
    data, ended = large[0].read_bytes(), threading.Event()
    honest, listed = one_file(data), listing({"x.wst": len(data)})

    def answer(method, path, headers, body):
        if "list-type" in path:
            return 200, {}, listed(path)
        if how == "hangs":
            ended.wait(30)
        status, reported, sent = honest(method, path, headers, body)
        if how == "torn":
            reported = {**reported, "Content-Length": str(len(sent)), "Connection": "close"}
        return status, reported, sent + b"0" * 10 if how == "long" else sent[:-10]

    with serving(answer) as (url, _):
        s3_environment(monkeypatch, url)
        with pytest.raises(TraceFileError, match=r"cannot read|the server sent") as caught:
            wstrace.open_trace("s3://bucket/x.wst")
    ended.set()
    assert "\n" not in str(caught.value)


def test_a_web_server_is_refused_in_a_line_without_what_the_url_holds():
    with pytest.raises(TraceFileError, match="no trace is read from a web server; download it") as caught:
        wstrace.open_trace(f"https://me:{SECRET}@host/x.wst")
    assert SECRET not in str(caught.value)


def test_what_is_shown_has_no_credentials(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for password in (SECRET, f"a@{SECRET}", f"'{SECRET}"):
        assert shown(f"s3://me:{password}@host/x.wst") == "s3://host/x.wst"
    text = without_secrets(f"ValueError at https://me:{SECRET}@host/x?sig=1 with\n{SECRET}")
    assert text == "ValueError at https://host/x with ***"


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


APART, ROWS = 100_000_000_000, 60


def begin_of(number: int, apart_ns: int = APART) -> int:
    """The time from which on a part of rotated() has its faults, if they do not come late."""
    return apart_ns * (number + 1)


def rotated(
    folder: Path, n: int, apart_ns: int = APART, late: Mapping[int, int] | None = None, sessions: int = 1
) -> dict[str, bytes]:
    """The parts of a trace by name: so many with faults, so far apart from each other in time, the last one without.

    late: part -> by how much earlier its faults are, as if they had waited. sessions: how many wrote so many each.
    """
    for session in range(sessions):
        exporter, context = started(folder / "x.wst", rotate_bytes=1, fsync="none", resume=session > 0)
        exporter.export(synthetic.mappings(context.strings))
        for number in range(session * n, session * n + n):
            begin = begin_of(number, apart_ns) - (late or {}).get(number, 0)
            for batch in synthetic.faults(context.strings, ROWS, seed=number, begin=begin):
                exporter.export(batch)
            exporter.flush(1)
        exporter.close()
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def many(parts: Mapping[str, bytes], monkeypatch):
    """The requests of a server of parts."""
    listed = listing({name: len(parts[name]) for name in sorted(parts)})

    def answer(method, path, headers, body):
        if "list-type" in path:
            return 200, {}, listed(path)
        return one_file(parts[path.rpartition("/")[2]])(method, path, headers, body)

    with serving(answer) as (url, requests):
        s3_environment(monkeypatch, url)
        yield requests


def opened(requests) -> set[str]:
    """The objects that were requested since the last call, without listings."""
    found = {one.split()[1] for one in requests if "list-type" not in one}
    requests.clear()
    return found


def test_a_window_opens_only_the_parts_that_can_hold_it(tmp_path, monkeypatch):
    parts, n = rotated(tmp_path, 300), 300
    with many(parts, monkeypatch) as requests, wstrace.open_trace("s3://bucket/x.wst") as trace:
        assert opened(requests) == {"/bucket/x.wst"}
        for number in (n * 2 // 5, n * 2 // 5 + 1, 0, n - 1):
            begin = begin_of(number)
            found = list(trace.batches("page_fault", ["time_ns", "file"], begin, begin + WINDOW))
            assert len(column(found, "time_ns")) == ROWS
            assert {found[0].strings[code].rpartition("/")[2][:3] for code in found[0]["file"]} <= {"lib", "[an"}
            wanted = len(requests)
            assert len(opened(requests)) <= wanted <= n.bit_length() + 5
        begin = begin_of(n // 3) + APART // 2
        assert not list(trace.batches("page_fault", None, begin, begin + WINDOW))
        assert len(opened(requests)) <= n.bit_length() + 2


def test_a_record_that_was_written_late_is_in_its_window(tmp_path, monkeypatch):
    """Parts overlap in time: the rows of one wait while the next one begins."""
    parts = rotated(tmp_path, 50, LATE_NS // 3, late={20: LATE_NS - 1})
    begin = begin_of(20, LATE_NS // 3) - LATE_NS
    with many(parts, monkeypatch) as requests, wstrace.open_trace("s3://bucket/x.wst") as trace:
        found = column(list(trace.batches("page_fault", ["time_ns"], begin, begin + WINDOW)), "time_ns")
        assert len(opened(requests)) < 25
        times = column(list(trace.batches("page_fault", ["time_ns"])), "time_ns")
        assert sorted(found) == sorted(times[(times >= begin) & (times < begin + WINDOW)])
        assert len(found) > ROWS


@pytest.mark.parametrize("why", ["another session", "another trace"])
def test_parts_that_need_not_follow_each_other_are_all_read(why, tmp_path, monkeypatch):
    parts = rotated(tmp_path, 20, sessions=2)
    if why == "another trace":
        parts["y.wst"] = parts.pop(f"x.{len(parts) - 1:04}.wst")
    with many(parts, monkeypatch) as requests, wstrace.open_trace("s3://bucket/*.wst") as trace:
        assert len(list(trace.batches("page_fault", ["time_ns"], begin_of(12), begin_of(12) + WINDOW))) == 1
        assert len(opened(requests)) == len(parts)
