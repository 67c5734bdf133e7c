"""A helper process that keeps an address space alive: `python -I -S keeper.py N`, N the number of userfaultfd(2).

Its standard input is a Unix socket. It writes `+` there when it is ready. For each opened /proc/PID/pagemap that it
receives it answers `+` when that address space is kept, `-` when it has ended. It keeps the last one, until it receives
another, or the socket closes, or it ends itself.

A read of a pagemap keeps the address space (mmget_not_zero() in fs/proc/task_mmu.c) until its answer has been copied
out, and here it is copied to a page that a userfaultfd leaves absent. A thread that waits there cannot be stopped: on a
signal, from Ctrl-Z or a debugger, handle_userfault() (fs/userfaultfd.c) retries until the page comes, because only a
fatal signal ends a fault of kernel code. Hence a process that shares no terminal and no debugger with any other. It
imports nothing of wstrace, so it starts in 20 ms, not 70.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading

_PAGE = mmap.PAGESIZE
_API, _REGISTER, _ZEROPAGE, _NEW = 0xC018AA3F, 0xC020AA00, 0xC020AA04, 0xAA00  # UFFDIO_*, USERFAULTFD_IOC_NEW
_MISSING = 1  # UFFDIO_REGISTER_MODE_MISSING


def create(number: int) -> int:
    """A userfaultfd that can make the kernel itself wait."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    fd = ctypes.CDLL(None).syscall(number, flags)
    if fd < 0:
        device = os.open("/dev/userfaultfd", os.O_RDWR)
        fd = fcntl.ioctl(device, _NEW, flags)
        os.close(device)
    fcntl.ioctl(fd, _API, struct.pack("QQQ", 0xAA, 0, 0))
    return int(fd)


class Kept:
    """A read of a pagemap that does not return before end()."""

    def __init__(self, uffd: int, pagemap: int) -> None:
        self._uffd, self._pagemap = uffd, pagemap
        self._page = mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._at = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._page))
        fcntl.ioctl(uffd, _REGISTER, struct.pack("QQQQ", self._at, _PAGE, _MISSING, 0))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        poll = select.poll()
        poll.register(uffd, select.POLLIN)
        self.stays = True
        while not poll.poll(10):
            if not self._thread.is_alive():  # the address space has ended
                self.stays = False
                return
        os.read(uffd, 32)  # the message that the read waits

    def end(self) -> None:
        """Gives the waiting read its page."""
        if self.stays:
            fcntl.ioctl(self._uffd, _ZEROPAGE, struct.pack("QQQq", self._at, _PAGE, 0, 0))
        self._thread.join()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            os.preadv(self._pagemap, [self._page], 0)
        os.close(self._pagemap)


def main() -> None:
    """Keeps what it receives until the sender has gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    uffd, kept = create(int(sys.argv[1])), None
    with socket.socket(fileno=0) as asked:
        asked.sendall(b"+")
        while True:
            try:
                word, fds, _, _ = socket.recv_fds(asked, 1, 1)
            except ConnectionError:  # the sender was killed before it read the last answer
                word = b""
            if not word:
                os._exit(0)  # a waiting thread ends with the process
            before, kept = kept, Kept(uffd, fds[0])
            asked.sendall(b"+" if kept.stays else b"-")
            if before is not None:
                before.end()


if __name__ == "__main__":
    main()
