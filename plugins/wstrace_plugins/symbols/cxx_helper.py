"""A helper process that demangles C++ names: `python -I -S cxx_helper.py SECONDS`.

libstdc++'s __cxa_demangle() does not return from some names of ten letters (`_ZptDTsrUL`), and whoever made the file
chose its names. Standard input carries names, each after its length in 4 bytes; standard output carries the readable
names in the same form, empty for a name that is not mangled. When one name takes SECONDS of processor time the kernel
ends the process, whatever the library is doing. It imports nothing of wstrace: it starts in 30 ms, not 70.

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
    """Answers until standard input ends."""
    try:
        library, free = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None).free
    except OSError:
        sys.exit(NO_LIBRARY)
    demangle = library.__cxa_demangle
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.argtypes = [ctypes.c_void_p]
    seconds, asked, told = float(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the inherited mask is whatever the starter had
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
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
