"""The health endpoint: an HTTP server on this machine that reports the daemon's state, and nothing else.

A thread serves each client, and beyond a fixed number of connections the oldest is closed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, NamedTuple, cast

from wstrace.errors import OutputError
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
    daemon_threads, block_on_close, allow_reuse_address, request_queue_size = True, False, True, _MOST

    def __init__(self, where: tuple[str, int], ask: Callable[[], State]) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        self.ask, self.ended = ask, False
        self._open: list[Any] = []
        self._lock = threading.Lock()
        super().__init__(where, _Handler)

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
        where: (host, port); port 0 = any free one.
        ask: returns the state; called on the server's threads.

    Raises:
        OutputError: the address is taken or cannot be opened.
    """

    def __init__(self, where: tuple[str, int], ask: Callable[[], State]) -> None:
        try:
            self._server = _Server(where, ask)
        except OSError as error:
            raise OutputError(
                f"cannot answer at {':'.join(map(str, where))}: {error.strerror or error}",
                "set health in [daemon] to another address, or to an empty text",
            ) from None
        self.thread = threading.Thread(target=self._server.serve, name="wstrace-health", daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        """Where it answers: `127.0.0.1:9465`."""
        host, port = self._server.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Ends it, and all connections."""
        self._server.close()
        self.thread.join(2 * _SECONDS)
        self._server.server_close()
