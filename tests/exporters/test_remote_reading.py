"""Traces in object stores: what is requested, counted at the server, and what servers do wrong."""

import threading

import numpy as np
import pytest
from kit.command_line import wstrace as command
from kit.msgpack_scripted import column, recorded
from kit.object_stores import BUCKET, SECRET, listing, moto, one_file, s3_environment, serving

import wstrace
from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.storage import store as store_module
from wstrace_exporters.msgpack.storage.urls import shown, without_secrets

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


@pytest.fixture
def s3(server, monkeypatch):
    """A function that puts files into the bucket, and the requests since."""
    import boto3

    url, requests = server
    s3_environment(monkeypatch, url)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for one in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=one["Key"])

    def put(key, data):
        client.put_object(Bucket=BUCKET, Key=key, Body=data)
        requests.clear()

    requests.clear()
    return put, requests


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
    listed = listing(keys, 100)
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
    objects, listed = one_file(data), listing(["x.wst"], len(data))
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
    honest, listed = one_file(data), listing(["x.wst"], len(data))

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
