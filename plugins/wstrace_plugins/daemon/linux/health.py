"""The health endpoint: it answers HTTP on this machine with the daemon's state, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from wstrace.errors import OutputError
from wstrace.text import json_safe

#: Connections at a time, and how many more may wait.
_MOST, _WAITING = 16, 64
#: What each connection has for all of its request and answer, and what passes before the next one is taken: any user of
#: the machine may connect all the time.
_SECONDS, _BETWEEN_SECONDS = 3.0, 0.02
#: What the kernel may hold of an answer for a client that does not read it.
_SENT_BYTES = 1 << 16


class State(NamedTuple):
    """The daemon's state: whether it does what it is for, and all that is known, with the state in a word."""

    healthy: bool
    facts: dict[str, Any]


def listening(where: tuple[str, int]) -> socket.socket:
    """The socket at which the endpoint listens: (host, port), 0 = any free port. Raises OutputError."""
    made = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)
    try:
        made.bind(where)
        made.listen(_WAITING)
    except OSError as error:
        made.close()
        raise OutputError(
            f"cannot answer at {':'.join(map(str, where))}: {error.strerror or error}",
            "set health in [daemon] to another address, or to an empty text",
        ) from None
    return made


async def serve(listener: socket.socket, ask: Callable[[], State]) -> None:
    """Answers `GET /health` (200 or 503, the state in a word) and `GET /` (all facts as JSON) until it is cancelled.

    Beyond a fixed number of connections the oldest is closed.
    """
    clients: list[asyncio.Task[None]] = []

    async def answer(client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=_SENT_BYTES)
        try:
            async with asyncio.timeout(_SECONDS):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                writer.transport.set_write_buffer_limits(0)
                writer.write(_answer(request, ask()))
                await writer.drain()
            writer.close()
        except (OSError, ValueError, TimeoutError):  # a client that is gone, slow or sends a line without an end
            pass
        finally:
            writer.transport.abort()

    listener.setblocking(False)
    while True:
        with contextlib.suppress(OSError):  # it is gone again, or there are no more descriptors
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            clients = [*(one for one in clients if not one.done()), asyncio.ensure_future(answer(client))]
            if len(clients) > _MOST:
                clients.pop(0).cancel()
        await asyncio.sleep(_BETWEEN_SECONDS)


def _answer(request: bytes, state: State) -> bytes:
    """The answer to the first line of a request."""
    method, path = [*request.split()[:2], b"", b""][:2]
    code, kind, text = "404 Not Found", "text/plain", "there is / and /health\n"
    if method == b"GET" and path == b"/health":
        code, text = "200 OK" if state.healthy else "503 Service Unavailable", f"{state.facts['state']}\n"
    elif method == b"GET" and path.partition(b"?")[0] == b"/":
        code, kind, text = "200 OK", "application/json", json.dumps(json_safe(state.facts), indent=1) + "\n"
    body = text.encode("utf-8", "backslashreplace")
    head = f"HTTP/1.1 {code}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + body
