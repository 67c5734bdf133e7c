"""Readable names of the symbols of PE files: Microsoft's C++ by dbghelp.dll where it is, the others as ELF's."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import lru_cache

from wstrace.errors import Unavailable
from wstrace_os.foreign import declare
from wstrace_sections.demangle import demangle

_MAX = 4096
_UNDNAME_NAME_ONLY = 0x1000
#: by its path in System32: a dbghelp.dll in the working directory or beside the target is not trusted
_DBGHELP = os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "dbghelp.dll")
_undecorate = declare(
    _DBGHELP, "UnDecorateSymbolName",
    ctypes.c_uint32, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32,
)  # fmt: skip
_lock = threading.Lock()  # dbghelp is for one thread at a time


@lru_cache(maxsize=65_536)
def readable(name: str) -> str:
    """The name as its programmer wrote it; the name itself where nobody here can read it."""
    if not name.startswith("?") or len(name) > _MAX:
        return demangle(name)
    buffer = ctypes.create_string_buffer(_MAX)
    try:
        with _lock:
            size = _undecorate(name.encode("utf-8"), ctypes.addressof(buffer), _MAX, _UNDNAME_NAME_ONLY)
    except (Unavailable, UnicodeEncodeError):
        return name
    return buffer.value.decode("utf-8", "backslashreplace") if size else name
