"""Readable names of C++ and Rust symbols.

C++ names go through `__cxa_demangle` of libstdc++ in a process of its own; without libstdc++ they stay as they are.
Source: Itanium C++ ABI, section 3.4. rustc's legacy mangling is such a name with a hash and escapes of its own;
`rust_v0` reads its newer one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from wstrace_plugins.symbols.cxx_names import CxxNames
from wstrace_plugins.symbols.rust_v0 import rust_v0

__all__ = ["cxx_names", "demangle"]

#: one helper for the whole process, because each is a process
cxx_names = CxxNames()

MAX_LENGTH = 2048
MAX_OUTPUT = 4 << 20
MAX_READABLE = 4096
_BACK_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
#: suffixes that LLVM adds to a local name that it makes visible to other units (ThinLTO), and any suffix of a Rust
#: name: they mean nothing to a reader, and libstdc++ rejects a name without parameters that has one
_SUFFIX = re.compile(r"(?<=17h[0-9a-f]{16}E)\..*|\.llvm\.[0-9A-Fa-f]+")
_RUST_ESCAPE = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,6})\$")
_RUST_NAMES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}


@lru_cache(maxsize=16_384)
def demangle(name: str) -> str:
    """The name as its programmer wrote it; the name itself when it is not mangled or cannot be read.

    A readable name of more than MAX_READABLE characters is of no use to a reader: it stays mangled too.
    """
    if name.startswith("_R"):
        try:
            readable = rust_v0(name)
        except (ValueError, OverflowError):
            return name
        return readable if 0 < len(readable) <= MAX_READABLE else name  # `_RC0`: a crate without a name
    if not name.startswith(("_Z", "___Z")) or _may_explode(name):
        return name
    readable = cxx_names.demangle(_SUFFIX.sub("", name))
    if readable.startswith("_Z"):
        return name
    if len(readable) > MAX_READABLE:
        return name
    return _rust(readable) if _RUST_HASH.search(readable) else readable


def _may_explode(name: str) -> bool:
    """True when the name could expand to more than MAX_OUTPUT characters.

    Each back reference repeats what comes before it, so three of them may treble the output: a name of 256 characters
    became one of 109 MB. Of the 172,588 C++ names of libLLVM 22 this holds back 658.
    """
    if len(name) > MAX_LENGTH:
        return True
    packs = name.count("Dp") + name.count("sp")
    growth: float = 3 ** (len(_BACK_REFERENCE.findall(name)) / 3) * 4**packs
    return len(name) * growth > MAX_OUTPUT


def _rust(name: str) -> str:
    """Undoes rustc's legacy escapes and removes its hash: `core..fmt..Debug$GT$` -> `core::fmt::Debug>`."""
    name = _RUST_HASH.sub("", name).replace("::_$", "::$").replace("..", "::")
    name = name.removeprefix("_") if name.startswith("_$") else name
    return _RUST_ESCAPE.sub(_rust_character, name)


def _rust_character(found: re.Match[str]) -> str:
    code = found[1]
    if code in _RUST_NAMES:
        return _RUST_NAMES[code]
    point = int(code[1:], 16)
    return chr(point) if point < 0x110000 and not 0xD800 <= point < 0xE000 else found[0]
