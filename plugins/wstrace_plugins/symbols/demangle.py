"""Readable names of C++ and Rust symbols, by the library `demangle`, which is bounded and pure Python."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_LENGTH = 2048
MAX_READABLE = 4096
#: suffixes that LLVM adds to a local name that it makes visible to other units (ThinLTO), and any suffix of a Rust
#: name: they mean nothing to a reader
_SUFFIX = re.compile(r"(?<=17h[0-9a-f]{16}E)\..*|(?<=^_R)([^.]*)\..*|\.llvm\.[0-9A-Fa-f]+")


@lru_cache(maxsize=16_384)
def demangle(name: str) -> str:
    """The name as its programmer wrote it; the name itself when it is not mangled or cannot be read.

    A readable name of more than MAX_READABLE characters is of no use to a reader: it stays mangled too.
    """
    if not name.startswith(("_R", "_Z", "___Z")) or len(name) > MAX_LENGTH:
        return name
    import demangle as library  # 30 ms

    short = _SUFFIX.sub(r"\1", name)
    readable = library.demangle(short, language=["itanium", "rust"], style="gnu")
    return name if readable == short or not 0 < len(readable) <= MAX_READABLE else readable
