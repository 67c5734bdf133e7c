"""dbghelp.dll: functions from the PDB of a PE image, and C++ names undecorated. Elsewhere it knows nothing.

Nothing is downloaded: symbols are looked for in the image, its folder, and where its linker wrote them, whatever
_NT_SYMBOL_PATH names. dbghelp reads them in this process, as it does in any debugger: Microsoft's PDB, DBG and COFF,
Wine's DWARF too.
Where a foreign image crashes it (ctypes raises OSError then), it is not called again: see `lost`. Wine 8 crashes,
for one, at an image that names its PDB "", with any file beside it: it frees what it never set (pdb_fetch_file_info).
Source: Microsoft Learn, dbghelp.h: SymInitialize, SymSetOptions, SymLoadModuleEx, SymFromAddr, UnDecorateSymbolName.
"""

from __future__ import annotations

import ctypes
import itertools
import ntpath
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int32, c_uint32, c_uint64, c_void_p, c_wchar_p

from wstrace.errors import Unavailable, log
from wstrace_plugins.os.foreign import Foreign

MAX_NAME = 4096
MAX_IMAGES = 128  # the most images that dbghelp keeps loaded

#: by its path in System32: a dbghelp.dll in the working directory or beside the target is not trusted
_DLL = os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "dbghelp.dll")
UnDecorateSymbolName = Foreign(_DLL, "UnDecorateSymbolName", c_uint32, c_char_p, c_void_p, c_uint32, c_uint32)
SymGetOptions = Foreign(_DLL, "SymGetOptions", c_uint32)
SymSetOptions = Foreign(_DLL, "SymSetOptions", c_uint32, c_uint32)
SymInitializeW = Foreign(_DLL, "SymInitializeW", c_int32, c_void_p, c_wchar_p, c_int32)
SymCleanup = Foreign(_DLL, "SymCleanup", c_int32, c_void_p)
SymLoadModuleExW = Foreign(
    _DLL, "SymLoadModuleExW", c_uint64, c_void_p, c_void_p, c_wchar_p, c_void_p, c_uint64, c_uint32, c_void_p, c_uint32
)
SymGetModuleInfoW64 = Foreign(_DLL, "SymGetModuleInfoW64", c_int32, c_void_p, c_uint64, c_void_p)
SymFromAddrW = Foreign(_DLL, "SymFromAddrW", c_int32, c_void_p, c_uint64, c_void_p, c_void_p)

UNDNAME_NAME_ONLY = 0x1000
#: UNDNAME, FAIL_CRITICAL_ERRORS (no box on the screen), EXACT_SYMBOLS (the PDB of this very build, by the record in the
#: image, which IGNORE_CVREC would leave out), IGNORE_NT_SYMPATH, SECURE (no symbol server), NO_PROMPTS,
#: DISABLE_SYMSRV_AUTODETECT
_OPTIONS = 0x2 | 0x200 | 0x400 | 0x1000 | 0x4_0000 | 0x8_0000 | 0x200_0000

# IMAGEHLP_MODULEW64 and SYMBOL_INFOW have one layout in both widths (compiled with mingw-w64 for both)
_MODULE_BYTES, _SYM_TYPE_AT = 3264, 32
_PDB_GUID = slice(3204, 3220)
_UNMATCHED_AT = 3224  # PdbUnmatched, DbgUnmatched
_SYMBOL_BYTES, _NAME_AT = 88, 84
_SYMBOL = struct.Struct("<I24xI24xQ8xII")  # SizeOfStruct, Size, Address, Tag, NameLen
_MAX_NAME_LEN_AT = 80
assert _SYMBOL.size == _MAX_NAME_LEN_AT
#: SYM_TYPE without functions of its own: SymNone, SymExport (we read those ourselves), SymDeferred
_NO_SYMBOLS = (0, 4, 5)
#: SymTagEnum: function, public symbol, thunk
_CODE = (5, 10, 27)

#: why an image has no functions of dbghelp, in the words of Place.why
LOST = "has no names of dbghelp.dll, which crashed before"
lost = False  #: whether dbghelp crashed in this process: what it holds in memory is not known then, so it is not called

_lock = threading.Lock()  # "All DbgHelp functions are single threaded"
_names = itertools.count(0x7773_0001, 2)  # SymInitialize wants a name, not a handle; handles are never odd
#: image -> its name in dbghelp, 0 where it has no symbols; the latest used last
_loaded: OrderedDict[Hashable, int] = OrderedDict()


def undecorated(name: str) -> str:
    """A name of Microsoft's C++ (`?f@@YAHH@Z`) as its programmer wrote it; "" where nobody here can read it."""
    buffer = ctypes.create_string_buffer(MAX_NAME)
    try:
        with _alone():
            size = UnDecorateSymbolName(name.encode("utf-8"), ctypes.addressof(buffer), MAX_NAME, UNDNAME_NAME_ONLY)
    except (Unavailable, UnicodeEncodeError):
        return ""
    return buffer.value.decode("utf-8", "backslashreplace") if size else ""


def functions(path: str, identity: Hashable, build_id: str, addresses: Sequence[int]) -> dict[int, tuple[str, int]]:
    """The functions at link-time addresses of an image: address -> (name, bytes into it), where one is known.

    path: the image file. identity: what tells this content of the file from another. build_id: its id, see
    wstrace_plugins.os.pe; a PDB of another build is not used. addresses: ImageBase + RVA. Raises Unavailable: dbghelp
    crashed, now or before.
    """
    try:
        with _alone(), _our_options():
            image = _load(path, identity, build_id)
            found = ((address, _function(image, address)) for address in addresses if image)
            return {address: function for address, function in found if function is not None}
    except Unavailable:
        if lost:
            raise
        return {}  # there is no dbghelp here


@contextmanager
def _alone() -> Iterator[None]:
    """One caller at a time, and none after a crash. Raises Unavailable."""
    global lost
    with _lock:
        if lost:
            raise Unavailable(LOST)
        try:
            yield
        except OSError as crash:
            lost = True
            log().warning(
                "functions of Windows images that only dbghelp.dll knows stay unnamed: it crashed (%s)", crash
            )
            raise Unavailable(LOST) from crash


@contextmanager
def _our_options() -> Iterator[None]:
    """dbghelp's options belong to the whole process: they are given back."""
    before = SymGetOptions()
    SymSetOptions(_OPTIONS)
    try:
        yield
    finally:
        SymSetOptions(before)


def _load(path: str, identity: Hashable, build_id: str) -> int:
    """dbghelp's name for the image, its symbols loaded; 0 when it has none beyond its exports."""
    if identity in _loaded:
        _loaded.move_to_end(identity)
        return _loaded[identity]
    while len(_loaded) >= MAX_IMAGES:
        _, oldest = _loaded.popitem(last=False)
        SymCleanup(oldest)  # refuses 0
    _loaded[identity] = image = _opened(path, build_id)
    return image


def _opened(path: str, build_id: str) -> int:
    """The name in dbghelp of an image with symbols of this build; 0 = none."""
    folder = ntpath.dirname(path)
    if any(mark in folder for mark in ";*"):  # they have a meaning in a search path
        return 0
    image = next(_names)
    if not SymInitializeW(image, folder, 0):  # 0: no process is looked into
        return 0
    base = SymLoadModuleExW(image, None, path, None, 0, 0, None, 0)  # 0: at the address of its headers
    info = ctypes.create_string_buffer(_MODULE_BYTES)
    struct.pack_into("<I", info, 0, _MODULE_BYTES)
    known = base and SymGetModuleInfoW64(image, base, ctypes.addressof(info))
    if known and struct.unpack_from("<I", info, _SYM_TYPE_AT)[0] not in _NO_SYMBOLS and _matches(info.raw, build_id):
        return image
    SymCleanup(image)
    return 0


def _matches(info: bytes, build_id: str) -> bool:
    """Whether the symbols of an IMAGEHLP_MODULEW64 are of this build."""
    guid = info[_PDB_GUID]
    return not any(struct.unpack_from("<2I", info, _UNMATCHED_AT)) and (
        not any(guid) or build_id.startswith(guid.hex())
    )


def _function(image: int, address: int) -> tuple[str, int] | None:
    """The function at an address, and how far behind its begin that is; None = not known."""
    symbol = ctypes.create_string_buffer(_SYMBOL_BYTES + 2 * MAX_NAME)
    struct.pack_into("<I", symbol, 0, _SYMBOL_BYTES)
    struct.pack_into("<I", symbol, _MAX_NAME_LEN_AT, MAX_NAME)
    displacement = c_uint64()
    if not SymFromAddrW(image, address, ctypes.addressof(displacement), ctypes.addressof(symbol)):
        return None
    _, size, start, tag, length = _SYMBOL.unpack_from(symbol)
    inside = start <= address and (not size or address < start + size)  # 0: a public symbol has no size
    if tag not in _CODE or not inside:
        return None
    name = symbol.raw[_NAME_AT : _NAME_AT + 2 * min(length, MAX_NAME)].decode("utf-16-le", "replace").partition("\0")[0]
    return (name, address - start) if name else None
