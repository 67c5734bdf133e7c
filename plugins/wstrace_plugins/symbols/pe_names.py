"""Readable names of the symbols of PE files: Microsoft's C++ by dbghelp.dll where there is one, others as in ELF."""

from __future__ import annotations

from functools import lru_cache

from wstrace_plugins.symbols.dbghelp import MAX_NAME, undecorated
from wstrace_plugins.symbols.demangle import demangle


@lru_cache(maxsize=65_536)
def readable(name: str) -> str:
    """The name as its programmer wrote it; the name itself where it cannot be demangled here."""
    if not name.startswith("?") or len(name) > MAX_NAME:
        return demangle(name)
    return undecorated(name) or name
