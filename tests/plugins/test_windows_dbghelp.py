"""What is done with the answers of dbghelp, on stand-ins of its functions."""

import ctypes
import struct

import numpy as np
import pytest

from wstrace.errors import Unavailable
from wstrace.interfaces import Place
from wstrace_plugins.symbols import dbghelp, pe
from wstrace_plugins.symbols.image import SECTION, SEGMENT, SYMBOL, Image

GUID = bytes(range(16))
BUILD = GUID.hex() + "1"
CODE = 0x180001000
IGNORE_CVREC, EXACT_SYMBOLS, EXPORTS = 0x80, 0x400, 4


@pytest.fixture
def stand_ins(monkeypatch):
    """stand_ins(...): dbghelp has such symbols of every image; gives the list of those that are cleaned up."""

    def stand_in(*, kind=3, guid=GUID, pdb_unmatched=0, dbg_unmatched=0):
        def described(image, base, info):
            # the record in the image names its PDB: without it (IGNORE_CVREC) there are the exports alone
            # and without EXACT_SYMBOLS one of another build, which is beside the image, comes first
            other = pdb_unmatched or not options[-1] & EXACT_SYMBOLS
            fields = (EXPORTS if options[-1] & IGNORE_CVREC else kind, guid, other, dbg_unmatched)
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

        cleaned, options = [], [0]
        monkeypatch.setattr(dbghelp, "_loaded", type(dbghelp._loaded)())
        monkeypatch.setattr(dbghelp, "lost", False)
        functions = {
            "SymGetOptions": lambda: 0, "SymSetOptions": options.append, "SymCleanup": cleaned.append,
            "SymInitializeW": lambda *_: 1, "SymLoadModuleExW": lambda *_: 0x180000000,
            "SymGetModuleInfoW64": described, "SymFromAddrW": function,
        }  # fmt: skip
        for name, answer in functions.items():
            monkeypatch.setattr(dbghelp, name, answer)
        return cleaned

    return stand_in


@pytest.fixture
def names(stand_ins):
    """What functions() gives for an image whose symbols dbghelp describes in that way."""

    def ask(**described):
        cleaned = stand_ins(**described)
        found = dbghelp.functions("C:\\a.dll", 1, BUILD, [CODE])
        assert len(cleaned) == (0 if found else 1)
        return found

    return ask


@pytest.mark.parametrize("guid", [GUID, bytes(16)])
def test_symbols_of_this_build_name_functions(names, guid):
    assert names(guid=guid) == {CODE: ("f", 0)}


@pytest.mark.parametrize("described", [{"guid": GUID[::-1]}, {"pdb_unmatched": 1}, {"dbg_unmatched": 1}, {"kind": 4}])
def test_symbols_of_another_build_name_nothing(names, described):
    assert names(**described) == {}


@pytest.fixture
def crashing(stand_ins, monkeypatch):
    """crashing(name, ...): dbghelp of which that function crashes; returns the names of those that were called."""

    def crash(where, **described):
        stand_ins(**described)
        called = []

        def replace(name, answer):
            def call(*arguments):
                called.append((name, *arguments) if name == "SymSetOptions" else name)
                if name == where:
                    raise OSError("exception: access violation reading 0xFFFFFFFFFFFFFFFF")  # as ctypes says it
                return 5 if name == "SymGetOptions" else answer(*arguments)

            monkeypatch.setattr(dbghelp, name, call)

        for name in ("SymGetOptions", "SymSetOptions", "SymInitializeW", "SymLoadModuleExW", "SymGetModuleInfoW64",
                     "SymFromAddrW", "SymCleanup", "UnDecorateSymbolName"):  # fmt: skip
            replace(name, getattr(dbghelp, name))
        return called

    return crash


def image(function=""):
    """An image with one page of code, which dbghelp may name."""
    at = np.array([(0x1000, 0x1000, CODE, 0x1000)], SEGMENT)
    code = np.array([(CODE, CODE + 0x1000, 1)], SECTION)
    symbols = np.array([(CODE, CODE + 0x1000, 0)] if function else [], SYMBOL)

    def ask(addresses):
        return pe._ask("C:\\a.dll", 1, BUILD, code, addresses)

    name = function.encode() + b"\0"
    return Image(at, code, (".text",), symbols, name, BUILD, pe.readable, complete=False, ask=ask)


@pytest.mark.parametrize("where", ["SymInitializeW", "SymLoadModuleExW", "SymGetModuleInfoW64", "SymFromAddrW"])
def test_an_image_at_which_dbghelp_crashes_costs_names_once(crashing, where, caplog):
    """A foreign image may crash it, and what it holds in memory is not known then: it is not called again."""
    called = crashing(where)
    (place,) = image().places("a.dll", np.array([0x1000], "u8"))
    assert place == Place("a.dll", ".text", 1, "", 0, CODE, dbghelp.LOST)
    assert called[-1] == ("SymSetOptions", 5)  # the process has its options again
    assert not dbghelp._lock.locked()
    assert [record.getMessage() for record in caplog.records] == [
        "functions of Windows images that only dbghelp.dll knows stay unnamed: it crashed (exception: access violation"
        " reading 0xFFFFFFFFFFFFFFFF)"
    ]
    before = list(called)
    with pytest.raises(Unavailable, match="dbghelp"):
        dbghelp.functions("C:\\b.dll", 2, BUILD, [CODE])
    assert dbghelp.undecorated("?f@@YAHH@Z") == ""
    assert called == before
    assert len(caplog.records) == 1
