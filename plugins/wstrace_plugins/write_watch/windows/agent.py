r"""The agent on Windows: a process reports, through a named pipe, writes into memory that WriteWatch made in it.

The pipe is `\\.\pipe\wstrace-PID`. Only the owner's user may open it. Each side also checks the process at the other
end: the agent answers its own user only, and the tracer accepts only the process that it asked for.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import token
from wstrace_plugins.write_watch.windows import pipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A request; the reply is the number of runs, then their starts (u64) and pages (u32).
_WRITTEN = b"w"
_COUNT = struct.Struct("<Q")
_MAX_ANSWER = 256 << 20
_PAUSE_SECONDS = 0.01  # between two tracers


def default_path(pid: int) -> str:
    """The default name of a process's pipe."""
    return f"{pipe.PREFIX}wstrace-{pid}"


class Agent:
    """A running agent, which serves one tracer at a time.

    Args:
        path: the name of the pipe; None = default_path().
        watcher: makes the watcher for a tracer.

    Raises:
        Unavailable: the pipe cannot be created.
    """

    def __init__(self, path: str | None, watcher: Callable[[], Any]) -> None:
        self.path = path or default_path(os.getpid())
        self._watcher = watcher
        try:
            self._server = pipe.Server(self.path)
        except OSError as error:
            raise Unavailable(f"the agent cannot listen at {self.path}: {error}", "give another name") from None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="wstrace-agent", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the agent and removes its pipe; a connected tracer is still served."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):  # wakes the thread in accept(), if it serves no tracer
                pipe.connect(self.path, 0).close()
                self._thread.join(5)

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._answer(self._server.accept())
            except OSError:  # the tracer has gone
                time.sleep(_PAUSE_SECONDS)
            self._server.release()
        self._server.close()

    def _answer(self, peer: pipe.Pipe) -> None:
        """Answers one tracer until it disconnects; an error of a request is its reply."""
        if self._closed or not _same_user(peer.client()):
            return
        with contextlib.closing(self._watcher()) as watcher:
            while True:
                peer.receive(len(_WRITTEN))
                try:
                    starts, pages = watcher.written()
                    answer = b"".join((b"+", _COUNT.pack(len(starts)), starts.astype("<u8"), pages.astype("<u4")))
                except Unavailable as refused:
                    answer = b"-" + str(refused).encode("utf-8", "replace")
                peer.send(answer)


class RemoteWatcher:
    """A watcher of another process through its agent: see backend.Watch."""

    page_size = 4096

    def __init__(self, peer: pipe.Pipe, pid: int) -> None:
        self._peer, self._pid = peer, pid

    def written(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Runs of written pages: their addresses (u64) and numbers of pages (u32). Raises Unavailable, TargetExited."""
        answer = self._ask()
        count = _COUNT.unpack_from(answer)[0] if len(answer) >= 8 else 0
        if len(answer) != 8 + 12 * count:
            raise Unavailable(f"process {self._pid}'s agent answered {len(answer)} bytes for {count} runs")
        return np.frombuffer(answer, "<u8", count, 8), np.frombuffer(answer, "<u4", count, 8 + 8 * count)

    def close(self) -> None:
        """Ends the watch."""
        self._peer.close()

    after_fork_in_child = close

    def _ask(self) -> bytes:
        try:
            self._peer.send(_WRITTEN)
            answer = self._peer.receive(_MAX_ANSWER, pipe.SECONDS)
        except TimeoutError as error:
            self._peer.close()  # a late reply would be taken for that of the next request
            why = f"process {self._pid}'s agent gives {error}"
            raise Unavailable(why, "look whether it is suspended or stands in a debugger") from None
        except OSError:
            raise TargetExited(f"process {self._pid} has ended, or its agent was closed") from None
        if answer[:1] != b"+":
            raise Unavailable(f"process {self._pid}'s agent: {answer[1:].decode('utf-8', 'replace')}")
        return answer[1:]


def connect(pid: int, path: str = "") -> RemoteWatcher:
    """A watcher of a process that runs an agent.

    Raises:
        TargetExited: there is no such process.
        Unavailable: the process runs no agent, refuses us, or the pipe belongs to another process.
    """
    winapi.CloseHandle(winapi.open_process(winapi, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION))
    path = path or default_path(pid)
    try:
        peer = pipe.connect(path)
    except OSError as error:
        if getattr(error, "winerror", None) == winapi.ERROR_ACCESS_DENIED:  # its agent has more rights than ours
            raise Unavailable(
                f"process {pid}'s agent refuses us: it runs elevated, or as another user",
                "run wstrace as that process runs",
            ) from None
        why = f"process {pid} cannot be watched from outside: it runs no agent ({error})"
        raise Unavailable(why, "call wstrace.agent() in that process") from None
    server = peer.server()
    if server != pid:
        peer.close()
        raise Unavailable(f"{path} is process {server}'s, not process {pid}'s")
    watcher = RemoteWatcher(peer, pid)
    watcher.written()  # from its answer on it is watched
    return watcher


def _same_user(pid: int) -> bool:
    """Whether a process runs as our user; False for pid 0."""
    try:
        handle = winapi.open_process(winapi, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION)
    except Unavailable:
        return False
    try:
        return token.user(winapi, handle) == token.user(winapi, winapi.GetCurrentProcess())
    except Unavailable:
        return False
    finally:
        winapi.CloseHandle(handle)
