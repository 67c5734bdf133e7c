"""What is done with the answers of dbghelp, on stand-ins of its functions."""

import ctypes
import struct

import pytest

from wstrace_symbols import dbghelp

GUID = bytes(range(16))
BUILD = GUID.hex() + "1"


@pytest.fixture
def names(monkeypatch):
    """What functions() gives for an image whose symbols dbghelp describes so."""

    def ask(*, kind=3, guid=GUID, pdb_unmatched=0, dbg_unmatched=0):
        def told(image, base, info):
            fields = (kind, guid, pdb_unmatched, dbg_unmatched)
            for at, form, value in zip((32, 3204, 3224, 3228), ("<I", "16s", "<I", "<I"), fields, strict=True):
                ctypes.memmove(info + at, struct.pack(form, value), struct.calcsize(form))
            return 1

        def function(image, address, displacement, symbol):
            name = "f".encode("utf-16-le")
            ctypes.memmove(symbol + 28, struct.pack("<I", 16), 4)  # Size
            ctypes.memmove(symbol + 56, struct.pack("<Q8xI", address, 5), 20)  # Address, Tag
            ctypes.memmove(symbol + 76, struct.pack("<I", 1), 4)  # NameLen
            ctypes.memmove(symbol + 84, name, len(name))
            return 1

        cleaned = []
        stand_ins = {
            "SymGetOptions": lambda: 0, "SymSetOptions": lambda options: 0, "SymCleanup": cleaned.append,
            "SymInitializeW": lambda *_: 1, "SymLoadModuleExW": lambda *_: 0x180000000, "SymGetModuleInfoW64": told,
            "SymFromAddrW": function,
        }  # fmt: skip
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(dbghelp, name, stand_in)
        monkeypatch.setattr(dbghelp, "_loaded", type(dbghelp._loaded)())
        found = dbghelp.functions("C:\\a.dll", 1, BUILD, [0x180001000])
        assert len(cleaned) == (0 if found else 1)
        return found

    return ask


@pytest.mark.parametrize("guid", [GUID, bytes(16)])
def test_symbols_of_this_build_name_functions(names, guid):
    assert names(guid=guid) == {0x180001000: ("f", 0)}


@pytest.mark.parametrize("told", [{"guid": GUID[::-1]}, {"pdb_unmatched": 1}, {"dbg_unmatched": 1}, {"kind": 4}])
def test_symbols_of_another_build_name_nothing(names, told):
    assert names(**told) == {}
