"""A process of its own that demangles C++ names: `python -I -S cxx_helper.py SECONDS`.

libstdc++'s __cxa_demangle() does not return from some names of ten letters (`_ZptDTsrUL`), and whoever made the file
chose its names. On standard input stand names, each behind its length in 4 bytes; on standard output come what people
read, the same way, nothing for a name that is none. SECONDS of processor time for one name end the process: the kernel
does that, whatever the library is at. It imports nothing of ours: that makes it 30 ms, not 70.

Source: Itanium C++ ABI, section 3.4; setitimer(2), ITIMER_VIRTUAL.
"""

# mypy: disable-error-code="attr-defined"
# (what it imports has no such names where mypy checks for Windows)

from __future__ import annotations

import ctypes
import signal
import struct
import sys

LENGTH = struct.Struct("<I")
NO_LIBRARY = 3  # the exit code where there is no libstdc++


def main() -> None:
    """Answers until there is nobody to answer."""
    try:
        library, free = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None).free
    except OSError:
        sys.exit(NO_LIBRARY)
    demangle = library.__cxa_demangle
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.argtypes = [ctypes.c_void_p]
    seconds, asked, told = float(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # what it inherits is whatever its starter had
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    status = ctypes.c_int32()
    while len(head := asked.read(LENGTH.size)) == LENGTH.size:
        name = asked.read(LENGTH.unpack(head)[0])
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        text = demangle(name, None, None, ctypes.byref(status))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        readable = ctypes.string_at(text) if text else b""
        free(text)
        told.write(LENGTH.pack(len(readable)) + readable)
        told.flush()


if __name__ == "__main__":
    main()
