"""The target's side of the stand-in psapi.dll: a script that states its own page faults, every one known in advance.

import faulting
faulting.fault(pc, va, tid=0, hard=False)
"""

import ctypes
import mmap
import os
import struct

CAPACITY = 1024
_HEAD = struct.Struct("<IIQQ")  # enabled, count, lost, faults: struct watch of psapi.c
_RECORD = struct.Struct("<QQQQ")
_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.CreateMutexA.restype = ctypes.c_void_p
for _name in ("WaitForSingleObject", "ReleaseMutex"):
    getattr(_kernel32, _name).argtypes = [ctypes.c_void_p, *([ctypes.c_uint32] if _name[0] == "W" else [])]

_pid = os.getpid()
_section = mmap.mmap(-1, _HEAD.size + CAPACITY * _RECORD.size, tagname=f"wstrace-watch-{_pid}")
_lock = _kernel32.CreateMutexA(None, 0, f"wstrace-watch-lock-{_pid}".encode())


def faults(rows):
    """Makes a page fault of each (pc, va, tid, hard), as the kernel would record it."""
    _kernel32.WaitForSingleObject(_lock, 0xFFFFFFFF)
    enabled, count, lost, total = _HEAD.unpack_from(_section)
    for pc, va, tid, hard in rows:
        total += 1
        if enabled and count < CAPACITY:
            _RECORD.pack_into(_section, _HEAD.size + count * _RECORD.size, pc, va & ~1 | (not hard), tid, 0)
            count += 1
        elif enabled:
            lost += 1
    _HEAD.pack_into(_section, 0, enabled, count, lost, total)
    _kernel32.ReleaseMutex(_lock)


def fault(pc, va, tid=1, *, hard=False):
    """One page fault."""
    faults([(pc, va, tid, hard)])


def waiting():
    """Records that nobody has taken yet."""
    return _HEAD.unpack_from(_section)[1]


def enabled():
    """Whether somebody watches."""
    return bool(_HEAD.unpack_from(_section)[0])
