"""Traces in object stores: what is requested, counted at the server, and what servers do wrong."""

import threading

import numpy as np
import pytest
from kit.command_line import wstrace as command
from kit.msgpack_scripted import column, recorded
from kit.object_stores import BUCKET, CHANGED, SECRET, listing, moto, one_file, s3_environment, serving

import wstrace
from wstrace.errors import TraceFileError, Unavailable
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


def test_a_missing_extra_is_one_line_that_names_it(monkeypatch):
    import sys

    store_module.store_at.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unavailable) as caught:
        wstrace.open_trace("gs://bucket/x.wst")
    assert str(caught.value) == "gs:// needs the package obstore, which is not installed; pip install 'wstrace[store]'"


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_object_that_is_replaced_by_equal_bytes_is_one_line(scheme, large, monkeypatch):
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
        with wstrace.open_trace("s3://bucket/x.wst" if scheme == "s3" else f"{url}/x.wst") as trace:
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


# -- web servers ----------------------------------------------------------------------------------------------------


def test_a_web_server_with_ranges(large):
    path, faults = large
    start = int(column(faults, "time_ns")[400_000])
    signed = f"/x.wst?signature={SECRET}"
    with serving(one_file(path.read_bytes())) as (url, requests), wstrace.open_trace(url + signed) as trace:
        assert 0 < requests.since() <= 4
        assert trace.name == f"{url}/x.wst"
        assert any(map(len, trace.batches("page_fault", ["va"], start, start + WINDOW)))
        assert 0 < requests.since() <= 5


def test_a_web_server_without_ranges_is_one_line(large):
    with (
        serving(one_file(large[0].read_bytes(), ranges=False)) as (url, _),
        pytest.raises(TraceFileError, match=r"the server sends no parts of it \(no HTTP ranges\); download it first"),
    ):
        wstrace.open_trace(f"{url}/x.wst")


def _lying(data: bytes, how: str):
    honest = one_file(data)

    def answer(method, path, headers, body):
        status, reported, sent = honest(method, path, headers, body)
        if method == "HEAD":
            return status, reported, sent
        if how == "short":
            return status, reported, sent[:-10]
        if how == "torn":
            return status, {**reported, "Content-Length": str(len(sent)), "Connection": "close"}, sent[:-10]
        if how == "long":
            return status, reported, sent + b"0" * 10
        return 403, {}, b""

    return answer


@pytest.mark.parametrize(("how", "why"), [
    ("short", "the server sent"),
    ("torn", "cannot read"),
    ("long", "the server sent"),
    ("refuses", "access is denied; check the URL"),
])  # fmt: skip
def test_a_server_that_sends_something_else_is_one_line(how, why, large):
    with serving(_lying(large[0].read_bytes(), how)) as (url, _), pytest.raises(TraceFileError, match=why) as caught:
        wstrace.open_trace(f"{url}/x.wst?key={SECRET}")
    assert SECRET not in str(caught.value)


def test_a_redirect_to_another_host_gets_no_credentials(large):
    headers_of = []
    honest = one_file(large[0].read_bytes())

    def answer(method, path, headers, body):
        headers_of.append(headers)
        return honest(method, path, headers, body)

    with (
        serving(answer) as (other, _),
        serving(lambda method, path, *_: (302, {"Location": other + path}, b"")) as (url, _),
        wstrace.open_trace(f"{url.replace('//', f'//me:{SECRET}@')}/x.wst") as trace,
    ):
        assert trace.rows["page_fault"] == 800_000
    assert headers_of
    assert not any("authorization" in headers for headers in headers_of)


@pytest.mark.parametrize("how", ["hangs", "stops within the body"])
def test_an_answer_that_is_not_whole_in_time_is_refused(how, large, monkeypatch):
    monkeypatch.setattr(store_module, "REQUEST_SECONDS", 1)
    honest, ended = one_file(large[0].read_bytes()), threading.Event()

    def answer(method, path, headers, body):
        if how == "hangs":
            ended.wait(30)
        status, reported, sent = honest(method, path, headers, body)
        return status, {"Content-Length": str(len(sent) + 10), **reported}, sent

    with serving(answer) as (url, _), pytest.raises(TraceFileError, match="cannot read") as caught:
        wstrace.open_trace(f"{url}/x.wst")
    ended.set()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [str(1 << 60), "9" * 5000])
def test_a_size_that_no_trace_has_is_one_line(size):
    with (
        serving(lambda *_: (200, {"Content-Length": size, **CHANGED}, b"")) as (url, _),
        pytest.raises(TraceFileError, match="cannot read") as caught,
    ):
        wstrace.open_trace(f"{url}/x.wst")
    assert len(str(caught.value)) < 500


# -- pieces ---------------------------------------------------------------------------------------------------------


def test_what_is_shown_has_no_credentials(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert shown(f"https://me:{SECRET}@host/x.wst?sig={SECRET}") == "https://host/x.wst"
    for password in (f"a@{SECRET}", f"'{SECRET}"):
        assert shown(f"https://me:{password}@host/x.wst") == "https://host/x.wst"
    text = without_secrets(f"ValueError at https://me:{SECRET}@host/x?sig=1 with\n{SECRET}")
    assert text == "ValueError at https://host/x with ***"
