"""What the programs are told of files, so that they know each process that executes one, from its first fault on."""

from __future__ import annotations

import os
import struct

from wstrace_plugins.os.linux.cpython.elf import Python
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import File, Files
from wstrace_plugins.page_faults.linux.python_stacks.maps import Maps
from wstrace_plugins.page_faults.linux.python_stacks.protocol import NEEDS

#: how the kernel itself writes a device (MKDEV in include/linux/kdev_t.h)
_MINOR_BITS = 20
_KEY, _RUNTIME, _ALL_BITS = struct.Struct("<QIIQ"), struct.Struct("<QQ"), (1 << 64) - 1
_ENABLED = struct.pack("<I", 0), struct.pack("<Q", 1)


def tell_files(maps: Maps, files: Files, python: Python, walker: int) -> None:
    """Tells the programs of the files that a CPython is in.

    Args:
        maps: the programs' memory.
        files: the program, and the library that it needs, if the CPython is in that.
        python: the CPython.
        walker: the index of the program that reads its frames.

    Raises:
        OSError: the kernel refuses it.
    """
    if files.libpython is None:
        maps.programs.set(_key(files.program), _RUNTIME.pack(python.runtime - python.code & _ALL_BITS, walker))
    else:
        from_begin = python.runtime - (python.code - python.code_offset)
        maps.libraries.set(_key(files.libpython), _RUNTIME.pack(from_begin & _ALL_BITS, walker))
        maps.programs.set(_key(files.program), _RUNTIME.pack(0, NEEDS))
    maps.enabled.set(*_ENABLED)


def _key(file: File) -> bytes:
    """What the programs know a file by."""
    device = os.major(file.device) << _MINOR_BITS | os.minor(file.device)
    seconds, nanoseconds = divmod(file.changed_ns, 10**9)
    return _KEY.pack(file.inode, device, nanoseconds, seconds & _ALL_BITS)
