"""C++ names, demangled by a helper process (cxx_helper.py): a hostile name that hangs or ends it costs names only."""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from wstrace.errors import Unavailable
from wstrace.logs import log
from wstrace_plugins.os import system
from wstrace_plugins.symbols.cxx_helper import LENGTH, NO_LIBRARY

_select: Any = select  # its POSIX functions have no types where mypy checks for Windows
_MOST_BYTES = 8 << 20  # of one readable name: demangle() does not request longer ones
#: for a helper that was stopped from outside, 5 s for the four that may be lost; the kernel ends one that hangs before
_PATIENCE_MS = 1_250


class CxxNames:
    """Demangles names one at a time; a name that the helper does not answer in time stays as it is.

    Args:
        seconds: processor time per name; libstdc++ needs microseconds.
        losses: how many helpers may be lost; after that all names stay as they are.
    """

    def __init__(self, *, seconds: float = 0.5, losses: int = 4) -> None:
        self._seconds, self._left = seconds, losses
        self._helper: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._reported = False
        self.lost = 0  #: names at which the helper was lost

    def demangle(self, name: str) -> str:
        """The readable name; the name itself when it is not mangled or cannot be demangled here."""
        with self._lock:
            if self._left <= 0:
                return name
            try:
                readable = self._ask(name.encode())
            except (OSError, EOFError, Unavailable):
                self._lose()
                return name
        return readable.decode("utf-8", "backslashreplace") or name

    def _ask(self, name: bytes) -> bytes:
        if self._helper is None or self._owner != os.getpid():  # a forked child must not read its parent's answers
            self._start()
        pipes: Any = self._helper
        pipes.stdin.write(LENGTH.pack(len(name)) + name)
        return self._read(pipes.stdout, LENGTH.unpack(self._read(pipes.stdout, LENGTH.size))[0])

    def _read(self, pipe: Any, size: int) -> bytes:
        content = b""
        poll = _select.poll()
        poll.register(pipe, _select.POLLIN)
        while len(content) < size:
            if size > _MOST_BYTES:
                raise EOFError
            if not poll.poll(_PATIENCE_MS):
                self._say_silent()
                raise EOFError
            part = pipe.read(size - len(content))
            if not part:
                raise EOFError
            content += part
        return content

    def _say_silent(self) -> None:
        if not self._reported:
            self._reported = True
            log().warning("C++ names stay mangled: their demangler has not answered for %g s", _PATIENCE_MS / 1000)

    def _start(self) -> None:
        if system() != "linux":
            self._left = 0
            raise Unavailable("no libstdc++ is looked for on this system")
        words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("cxx_helper.py")), str(self._seconds)]
        self._helper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0)  # fmt: skip
        self._owner = os.getpid()
        atexit.register(self.close)

    def _lose(self) -> None:
        if self._left <= 0:
            return
        code = self.close()
        self._left = 0 if code == NO_LIBRARY else self._left - 1
        self.lost += code != NO_LIBRARY

    def close(self) -> int | None:
        """Ends the helper and returns its exit code; the next name starts a new one. May be called again."""
        helper, self._helper = self._helper, None
        atexit.unregister(self.close)
        if helper is None or self._owner != os.getpid():
            return None
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not written yet has no reader any more
                    continue
        try:
            return helper.wait(0.2)
        except subprocess.TimeoutExpired:
            helper.kill()
            return helper.wait()
