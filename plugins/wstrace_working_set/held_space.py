"""An address space that stays after its process has ended, on Linux: what was resident at the exit can still be read.

A read of /proc/PID/pagemap keeps the address space (mmget_not_zero() in fs/proc/task_mmu.c) until its answer is copied
out. Ours is copied to a page that a userfaultfd leaves absent, so it lasts as long as we like, in a thread of its own.
The target notices nothing: no signal, no stop, no ptrace; only its memory is freed when we let go, or die. Its files in
/proc, opened before, answer for a zombie too, which a launched target is until the trace closes it.

Source: userfaultfd(2); fs/proc/task_mmu.c, fs/userfaultfd.c handle_userfault().
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import threading
from typing import Any

from wstrace.errors import TargetExited
from wstrace_os import pagemap as pm
from wstrace_os import procfs
from wstrace_os.userfaultfd import MODE_MISSING, Userfaultfd
from wstrace_working_set import smaps
from wstrace_working_set.linux import Space
from wstrace_working_set.working_set import Totals

_os: Any = os  # their POSIX half is not typed where mypy checks for Windows
_mmap: Any = mmap
_signal: Any = signal


class HeldSpace(Space):
    """A Space that outlives its process, until close().

    Raises:
        TargetExited: the process is gone.
        Unavailable: it belongs to someone else, or the kernel may not be made to wait; says what lifts it.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self._files: dict[str, int] = {}
        self._stay: _Stay | None = None
        try:
            self._stay = _Stay(self._pagemap.fd)
            self._files = {name: _os.open(f"/proc/{pid}/{name}", _os.O_CLOEXEC) for name in ("maps", "smaps")}
            self._seen, self._last_status = procfs.stat(pid), procfs.status(pid)
        except (FileNotFoundError, ProcessLookupError):
            self.close()
            raise TargetExited(f"there is no process {pid}") from None
        except BaseException:
            self.close()
            raise

    def look(self) -> bool:
        """Whether this is still the process's address space, or was its last one: False after another execve().

        Of a process that has ended only its name is left to tell.

        Raises:
            TargetExited: it has been reaped.
        """
        now = procfs.stat(self.pid)
        if now.gone:
            return now.name == self._seen.name
        if now.image != self._seen.image:
            return False
        self._seen, self._last_status = now, procfs.status(self.pid)
        return True

    def totals(self) -> Totals:
        """Nothing: the counters that the system keeps end with the process."""
        return Totals()

    def close(self) -> None:
        """Lets the address space go; again is no error."""
        if self._stay is not None:
            self._stay.end()
            self._stay = None
        for fd in self._files.values():
            os.close(fd)
        self._files = {}
        super().close()

    def _maps(self) -> procfs.Maps:
        return procfs.parse_maps(self._read("maps"))

    def _status(self) -> dict[str, str]:
        return self._last_status  # of a zombie it has no fields of memory

    def _mapping_flags(self) -> dict[int, frozenset[str]]:
        return smaps.parse(self._read("smaps").decode(errors="replace"))

    def _read(self, name: str) -> bytes:
        fd, parts = self._files[name], []
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            while part := os.read(fd, 1 << 16):
                parts.append(part)
        except ProcessLookupError:
            raise self._gone() from None
        return b"".join(parts)


class _Stay:
    """A read of a pagemap that does not return before end()."""

    def __init__(self, pagemap: int) -> None:
        self._pagemap, self._ended = pagemap, False
        self._uffd = Userfaultfd(mode=MODE_MISSING)
        self._page = _mmap.mmap(-1, pm.PAGE, flags=_mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS)
        self._at = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._page))
        self._thread = threading.Thread(target=self._wait, name="wstrace-hold", daemon=True)
        self._uffd.register(self._at, self._at + pm.PAGE)
        self._thread.start()
        while not self._uffd.waited_at(0.01):
            if not self._thread.is_alive():  # there is no address space any more
                self._uffd.close()
                raise ProcessLookupError

    def end(self) -> None:
        """Gives the read its page."""
        self._ended = True
        self._uffd.fill(self._at, self._at + pm.PAGE)
        self._thread.join()
        self._uffd.close()

    def _wait(self) -> None:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        read = None
        while read is None and not self._ended:
            with contextlib.suppress(OSError):  # EFAULT: a stop of our own process (Ctrl-Z) ends the wait
                read = _os.preadv(self._pagemap, [self._page], 0)
