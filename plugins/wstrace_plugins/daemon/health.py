"""The health endpoint: a small HTTP server on this machine that tells the daemon's state, and nothing else.

One thread serves all clients, without waiting for any: a connection has so many seconds and bytes for its request and
for taking the answer, and beyond a fixed number of connections the oldest is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from wstrace.errors import OutputError
from wstrace.output_folder import in_folder
from wstrace.text import json_safe

#: Connections at a time, and what each of them may take.
_MOST, _SECONDS, _REQUEST_BYTES = 16, 3.0, 4096
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
            431: "Request Header Fields Too Large", 503: "Service Unavailable"}  # fmt: skip


class Told(NamedTuple):
    """The daemon's state: whether it does what it is for, in a word, and all that is known."""

    healthy: bool
    word: str
    facts: dict[str, Any]


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.until = connection, time.monotonic() + _SECONDS
        self.request, self.answer = b"", b""


class Health:
    """Serves `GET /health` (200 or 503 with the word of the state) and `GET /` (all facts as JSON).

    Args:
        where: the path of a unix socket, or (host, port); port 0 = any free one.
        tell: returns the state; called on the server's thread.

    Raises:
        OutputError: the address is taken or cannot be opened.
    """

    def __init__(self, where: str | tuple[str, int], tell: Callable[[], Told]) -> None:
        self._where, self._tell = where, tell
        self._listening = _listen(where)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, _Client] = {}
        for one in (self._listening, self._woken):
            self._selector.register(one, selectors.EVENT_READ, one)
        self.thread = threading.Thread(target=self._serve, name="wstrace-health", daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        """Where it answers: `127.0.0.1:9465`, or `unix:` and the path."""
        if isinstance(self._where, str):
            return f"unix:{self._where}"
        host, port = self._listening.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Ends it, and all connections; removes the unix socket."""
        if isinstance(self._where, str):
            with contextlib.suppress(OSError), in_folder(self._where, None) as folder:
                os.unlink(_in(folder, self._where)[0], dir_fd=folder)
        self._wake.close()
        self.thread.join(2 * _SECONDS)

    def _serve(self) -> None:
        while True:
            overdue = min((client.until for client in self._clients.values()), default=None)
            wait = None if overdue is None else max(0.0, overdue - time.monotonic())
            for key, _ in self._selector.select(wait):
                if key.data is self._woken:
                    self._end()
                    return
                with contextlib.suppress(OSError):
                    self._take(key.data)
            now = time.monotonic()
            for client in [client for client in self._clients.values() if client.until <= now]:
                self._drop(client)

    def _take(self, one: socket.socket) -> None:
        """Goes on with what is ready: a new client, its request, or the rest of its answer."""
        if one is self._listening:
            connection, _ = one.accept()
            connection.setblocking(False)
            while len(self._clients) >= _MOST:
                self._drop(next(iter(self._clients.values())))
            self._clients[connection] = _Client(connection)
            self._selector.register(connection, selectors.EVENT_READ, connection)
            return
        client = self._clients.get(one)
        if client is None:  # dropped meanwhile
            return
        try:
            self._read(client) if not client.answer else self._write(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        part = client.connection.recv(_REQUEST_BYTES)
        client.request += part
        ended = b"\r\n\r\n" in client.request or b"\n\n" in client.request
        if not part:
            self._drop(client)
        elif ended or len(client.request) >= _REQUEST_BYTES:
            client.answer = self._answer(client.request) if ended else _response(431, "text/plain", "too long\n")
            self._selector.modify(client.connection, selectors.EVENT_WRITE, client.connection)
            self._write(client)

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return _response(400, "text/plain", "this is HTTP: GET / or GET /health\n")
        if words[0] != b"GET":
            return _response(405, "text/plain", "only GET\n")
        path = words[1].partition(b"?")[0]
        if path not in (b"/", b"/health"):
            return _response(404, "text/plain", "there is / and /health\n")
        told = self._tell()
        if path == b"/health":
            return _response(200 if told.healthy else 503, "text/plain", f"{told.word}\n")
        return _response(200, "application/json", json.dumps(json_safe(told.facts), indent=1) + "\n")

    def _write(self, client: _Client) -> None:
        client.answer = client.answer[client.connection.send(client.answer) :]
        if not client.answer:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.connection]
        self._selector.unregister(client.connection)
        client.connection.close()

    def _end(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        for one in (self._listening, self._woken):
            one.close()
        self._selector.close()


def _response(code: int, kind: str, text: str) -> bytes:
    body = text.encode("utf-8", "backslashreplace")
    head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}; charset=utf-8\r\n"
    head += f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    return head.encode("ascii") + body


def _listen(where: str | tuple[str, int]) -> socket.socket:
    try:
        if isinstance(where, str):
            return _unix(where)
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(where)
            one.listen(_MOST)
        except BaseException:
            one.close()
            raise
    except (OSError, AttributeError) as error:  # no AF_UNIX on this system
        place = where if isinstance(where, str) else ":".join(map(str, where))
        raise OutputError(
            f"cannot answer at {place}: {getattr(error, 'strerror', None) or error}",
            "set health in [daemon] to another address, or to an empty text",
        ) from None
    one.setblocking(False)
    return one


def _unix(path: str) -> socket.socket:
    """A listening unix socket that only its owner may use, in place of one that nobody listens at any more."""
    one = _unix_socket()
    try:
        # bind() makes the file with this mode, so that there is no name to exchange before it has it
        getattr(os, "fchmod")(one.fileno(), 0o600)  # noqa: B009  Windows lacks it
        with in_folder(path, None) as folder:
            name, place = _in(folder, path)
            with contextlib.suppress(FileNotFoundError):
                left = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISSOCK(left.st_mode) and not _answers(place):
                    os.unlink(name, dir_fd=folder)
            one.bind(place)
        one.listen(_MOST)
        one.setblocking(False)
    except BaseException:
        one.close()
        raise
    return one


def _in(folder: int | None, path: str) -> tuple[str, str]:
    """A path's name in its folder, and a path that leads there through the folder's descriptor, where it has one."""
    if folder is None:
        return path, path
    name = os.path.basename(path)
    return name, f"/proc/self/fd/{folder}/{name}"


def _answers(path: str) -> bool:
    """Whether somebody listens at a unix socket."""
    with _unix_socket() as asking:
        try:
            asking.settimeout(1.0)
            asking.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


def _unix_socket() -> socket.socket:
    return socket.socket(getattr(socket, "AF_UNIX"), socket.SOCK_STREAM)  # noqa: B009  Windows lacks it
