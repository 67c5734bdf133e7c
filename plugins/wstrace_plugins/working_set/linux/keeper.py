"""A helper process that keeps an address space alive: `python -I -S keeper.py N`, N the number of userfaultfd(2).

Its standard input is a Unix socket. It writes `+` there when it is ready. For each opened /proc/PID/pagemap that it
receives it answers `+` when that address space is kept, `-` when it has ended, `!` when there is no room for a thread.
It keeps the last one, until it receives another, or the socket closes, or it ends itself.

A read of a pagemap keeps the address space (mmget_not_zero() in fs/proc/task_mmu.c) until its answer has been copied
out, and here it is copied to a page that a userfaultfd leaves absent. A thread that waits there cannot be stopped: on a
signal, from Ctrl-Z or a debugger, handle_userfault() (fs/userfaultfd.c) retries until the page comes, because only a
fatal signal ends a fault of kernel code. Hence a process that shares no terminal and no debugger with any other.

Every `wstrace run` starts one, with all signals blocked, and waits for it. So it imports nothing of wstrace, and of
`ctypes`, `socket` and `threading` only the parts in C: the rest took two thirds of its start.
"""

from __future__ import annotations

import _ctypes
import _socket
import _thread
import fcntl
import mmap
import os
import select
import struct
import sys

TYPE_CHECKING = False  # that of `typing`, whose import takes 10 ms
if TYPE_CHECKING:
    from typing import Any

_PAGE = mmap.PAGESIZE
_API, _REGISTER, _ZEROPAGE, _NEW = 0xC018AA3F, 0xC020AA00, 0xC020AA04, 0xAA00  # UFFDIO_*, USERFAULTFD_IOC_NEW
_MISSING = 1  # UFFDIO_REGISTER_MODE_MISSING

_c: Any = _ctypes
_Byte: Any = type("_Byte", (_c._SimpleCData,), {"_type_": "B"})
_Int: Any = type("_Int", (_c._SimpleCData,), {"_type_": "i"})
#: A function of the C library that returns an int.
_Function: Any = type("_Function", (_c.CFuncPtr,), {"_flags_": _c.FUNCFLAG_CDECL, "_restype_": _Int})


def create(number: int) -> int:
    """A userfaultfd that can make the kernel itself wait."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    fd = _Function(_c.dlsym(_c.dlopen(None, 0), "syscall"))(number, flags)
    if fd < 0:
        device = os.open("/dev/userfaultfd", os.O_RDWR)
        fd = fcntl.ioctl(device, _NEW, flags)
        os.close(device)
    fcntl.ioctl(fd, _API, struct.pack("QQQ", 0xAA, 0, 0))
    return int(fd)


class Kept:
    """A read of a pagemap that does not return before end(). Raises RuntimeError: there is no room for a thread."""

    def __init__(self, uffd: int, pagemap: int) -> None:
        self._uffd, self._pagemap = uffd, pagemap
        self._page = mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._at = _c.addressof(_Byte.from_buffer(self._page))
        fcntl.ioctl(uffd, _REGISTER, struct.pack("QQQQ", self._at, _PAGE, _MISSING, 0))
        self._reading = _thread.allocate_lock()
        self._reading.acquire()  # released at the end of the read
        _thread.start_new_thread(self._read, ())
        poll = select.poll()
        poll.register(uffd, select.POLLIN)
        self.stays = True
        while not poll.poll(10):
            if not self._reading.locked():  # the address space has ended
                self.stays = False
                return
        os.read(uffd, 32)  # the message that the read waits

    def end(self) -> None:
        """Gives the waiting read its page."""
        if self.stays:
            fcntl.ioctl(self._uffd, _ZEROPAGE, struct.pack("QQQq", self._at, _PAGE, 0, 0))
        self._reading.acquire()

    def _read(self) -> None:
        try:
            os.preadv(self._pagemap, [self._page], 0)
        except OSError:
            pass
        finally:
            os.close(self._pagemap)
            self._reading.release()


def main() -> None:
    """Keeps what it receives until the sender has gone."""
    uffd, kept = create(int(sys.argv[1])), None
    requests = _socket.socket(fileno=0)
    requests.sendall(b"+")
    while True:
        try:
            word, sent, _, _ = requests.recvmsg(1, _socket.CMSG_LEN(4))
        except ConnectionError:  # the sender was killed before it read the last answer
            word = b""
        if not word:
            os._exit(0)  # a waiting thread ends with the process
        try:
            before, kept = kept, Kept(uffd, int.from_bytes(sent[0][2], sys.byteorder))
        except RuntimeError:  # ulimit -u, or pids.max of the cgroup
            requests.sendall(b"!")
            os._exit(0)
        requests.sendall(b"+" if kept.stays else b"-")
        if before is not None:
            before.end()


if __name__ == "__main__":
    main()
