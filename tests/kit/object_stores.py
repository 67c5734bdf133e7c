"""Servers of objects for tests: moto (S3), and scripted ones, some of them hostile.

Each counts the requests that reach it. The S3 server is what the environment of the test says: AWS_ENDPOINT_URL.
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

import pytest

KEY, SECRET = "wstrace-test-key", "wstrace-test-secret-never-printed"
BUCKET = "traces"
#: When every object was changed: obstore does without no time.
CHANGED = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
Answer = tuple[int, dict[str, str], bytes]


class Requests(list[str]):
    """The requests that a server got, as `GET /path 100-199`; while it is `refusing`, moto's S3 denies each."""

    refusing = False

    def since(self, method: str = "") -> int:
        """The number of requests, of a method or all, since the last call."""
        found = sum(one.startswith(method) for one in self)
        self.clear()
        return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is no event."""


@contextmanager
def serving(answer: Callable[[str, str, dict[str, str], bytes], Answer]) -> Iterator[tuple[str, Requests]]:
    """(URL, requests) of a web server whose answers are those of a function of method, path, headers and body."""
    requests = Requests()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            requests.append(f"{self.command} {self.path} {headers.get('range', '').removeprefix('bytes=')}".strip())
            status, shown, data = answer(self.command, self.path, headers, body)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **shown}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            if shown.get("Connection") == "close":
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _any

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def one_file(data: bytes) -> Callable[[str, str, dict[str, str], bytes], Answer]:
    """The answers of a server with one object."""

    def answer(method, path, headers, body):
        shown = {"ETag": '"1"', **CHANGED, "Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if found is None:
            return 200, {**shown, "Content-Length": str(len(data))}, data
        start, end = int(found[1]), int(found[2]) + 1
        return 206, {**shown, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    return answer


def listing(sizes: Mapping[str, int], page: int = 1000) -> Callable[[str], bytes]:
    """The pages that S3 gives of the keys of objects of these sizes, by the path of the request."""
    keys = list(sizes)

    def listed(path):
        token = re.search(r"continuation-token=(\d+)", path)
        first = int(token[1]) if token else 0
        rows = "".join(f"<Contents><Key>{escape(key)}</Key><Size>{sizes[key]}</Size><ETag>\"1\"</ETag>"
                       "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                       for key in keys[first : first + page])  # fmt: skip
        more = first + page < len(keys)
        following = f"<NextContinuationToken>{first + page}</NextContinuationToken>" if more else ""
        return (f"<ListBucketResult><Name>b</Name><IsTruncated>{str(more).lower()}</IsTruncated>{following}{rows}"
                "</ListBucketResult>").encode()  # fmt: skip

    return listed


def s3_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Makes a server the S3 of this process and of its children, with the test's credentials."""
    from wstrace_exporters.msgpack.storage.store import store_at

    store_at.cache_clear()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)


@contextmanager
def moto() -> Iterator[tuple[str, Requests]]:
    """(URL, requests) of moto's S3, with the bucket."""
    pytest.importorskip("obstore", reason="needs wstrace[store]")
    server_module = pytest.importorskip("moto.server", reason="needs moto (the extra `test`)")
    from werkzeug.serving import make_server

    application, requests = server_module.DomainDispatcherApplication(server_module.create_backend_app), Requests()

    def counted(environ, start):
        length = environ.get("HTTP_RANGE", "").removeprefix("bytes=")
        requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {length}".strip())
        if requests.refusing:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code></Error>"]
        return application(environ, start)

    server = make_server("127.0.0.1", 0, counted, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
