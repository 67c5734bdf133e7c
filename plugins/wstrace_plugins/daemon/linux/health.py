"""The health endpoint: an HTTP server on this machine that reports the daemon's state, and nothing else.

A thread serves each client, and beyond a fixed number of connections the oldest is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import stat
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, NamedTuple, cast

from wstrace.errors import OutputError
from wstrace.output_folder import in_folder
from wstrace.text import json_safe

#: Connections at a time, and the seconds that each may wait for its client.
_MOST, _SECONDS = 16, 3.0


class State(NamedTuple):
    """The daemon's state: whether it does what it is for, in a word, and all that is known."""

    healthy: bool
    word: str
    facts: dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float] = _SECONDS
    error_content_type, error_message_format = "text/plain", "%(message)s\n"

    def do_GET(self) -> None:
        """Answers a request."""
        state, path = cast(_Server, self.server).ask(), self.path.partition("?")[0]
        if path == "/health":
            self._answer(200 if state.healthy else 503, "text/plain", f"{state.word}\n")
        elif path == "/":
            self._answer(200, "application/json", json.dumps(json_safe(state.facts), indent=1) + "\n")
        else:
            self.send_error(404, "there is / and /health")

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # else the kernel keeps up to 4 MB for a client that does not read, for minutes
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise

    def version_string(self) -> str:
        """What the header `Server` says."""
        return "wstrace"

    def log_message(self, *_: Any) -> None:  # a client's words are not for the daemon's log
        pass


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, listening: socket.socket, ask: Callable[[], State]) -> None:
        socketserver.BaseServer.__init__(self, listening.getsockname(), _Handler)
        self.socket, self.ask, self.ended = listening, ask, False
        self._open: list[Any] = []
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serves until close(), without waking up in between as serve_forever() does."""
        while not self.ended:
            self.handle_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.append(request)
            oldest = self._open.pop(0) if len(self._open) > _MOST else None
        if oldest is not None:
            _shut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):  # it is the oldest one
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:  # a client that is gone
        pass

    def close(self) -> None:
        """Ends serve(), and all connections."""
        self.ended = True
        _shut(self.socket)
        with self._lock:
            for one in self._open:
                _shut(one)


def _shut(one: socket.socket) -> None:
    """Ends what a thread waits for on a socket; that thread closes it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class Health:
    """Serves `GET /health` (200 or 503 with the word of the state) and `GET /` (all facts as JSON).

    Args:
        where: the path of a unix socket, or (host, port); port 0 = any free one.
        ask: returns the state; called on the server's threads.

    Raises:
        OutputError: the address is taken or cannot be opened.
    """

    def __init__(self, where: str | tuple[str, int], ask: Callable[[], State]) -> None:
        self._where, self._server = where, _Server(_listen(where), ask)
        self.thread = threading.Thread(target=self._server.serve, name="wstrace-health", daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        """Where it answers: `127.0.0.1:9465`, or `unix:` and the path."""
        if isinstance(self._where, str):
            return f"unix:{self._where}"
        host, port = self._server.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Ends it, and all connections; removes the unix socket."""
        if isinstance(self._where, str):
            with contextlib.suppress(OSError), in_folder(self._where, None) as folder:
                os.unlink(_in(folder, self._where)[0], dir_fd=folder)
        self._server.close()
        self.thread.join(2 * _SECONDS)
        self._server.server_close()


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
    except OSError as error:
        place = where if isinstance(where, str) else ":".join(map(str, where))
        raise OutputError(
            f"cannot answer at {place}: {error.strerror or error}",
            "set health in [daemon] to another address, or to an empty text",
        ) from None
    return one


def _unix(path: str) -> socket.socket:
    """A listening unix socket that only its owner may use, in place of one that nobody listens at any more."""
    one = socket.socket(socket.AF_UNIX)
    try:
        # bind() makes the file with this mode, so that there is no name to exchange before it has it
        os.fchmod(one.fileno(), 0o600)
        with in_folder(path, None) as folder:
            name, place = _in(folder, path)
            with contextlib.suppress(FileNotFoundError):
                left = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISSOCK(left.st_mode) and not _answers(place):
                    os.unlink(name, dir_fd=folder)
            one.bind(place)
        one.listen(_MOST)
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
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.settimeout(1.0)
            asking.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
