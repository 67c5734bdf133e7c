"""Functions that no export names, through dbghelp: of Wine's own DLLs, and of one that tests/wine/run builds."""

import ctypes
import os
import shutil
import sys
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path

import numpy as np
import pytest

from wstrace.interfaces import MappedFile
from wstrace_plugins.symbols import dbghelp
from wstrace_plugins.symbols.resolver import ImageResolver

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")

FOLDER = Path(sys.executable).parent
DEBUGGED, STRIPPED, NAMED = (str(FOLDER / f"{name}.dll") for name in ("debugged", "stripped", "named"))
NAMES = ["hidden_static", "hidden_external", "shown"]


def rvas(path):
    """Where the three functions lie, as the loaded DLL itself says."""
    library = ctypes.WinDLL(path)
    places = (ctypes.c_void_p * 3).in_dll(library, "places")
    return np.array([place - library._handle for place in places], "<u8")


def functions(path, offsets, resolver=None):
    return [
        (place.function, place.displacement)
        for place in (resolver or ImageResolver()).resolve(MappedFile(path), offsets)
    ]


def test_functions_that_are_not_exported_are_named():
    at = rvas(DEBUGGED)
    assert functions(DEBUGGED, at) == [(name, 0) for name in NAMES]
    assert functions(DEBUGGED, at + 3) == [(name, 3) for name in NAMES]
    library = ctypes.WinDLL(DEBUGGED)
    data = ctypes.addressof(ctypes.c_char.in_dll(library, "places")) - library._handle
    assert functions(DEBUGGED, np.array([0, data], "<u8")) == [("", 0), ("", 0)]  # headers and data are none


def test_without_debug_information_the_exports_remain():
    """The same code: what lies before the only export has no name, and none is invented."""
    assert functions(STRIPPED, rvas(STRIPPED)) == [("", 0), ("", 0), ("shown", 0)]


def test_a_function_of_a_pdb_is_named_by_the_pdb_of_this_build_alone(tmp_path):
    library = ctypes.CDLL(NAMED)
    places = (ctypes.c_void_p * 2).in_dll(library, "places")
    at = np.array([place - library._handle for place in places], "<u8")
    assert functions(NAMED, at) == [("hidden", 0), ("shown", 0)]
    other = bytearray(Path(NAMED).read_bytes())
    other[other.index(b"RSDS") + 4] ^= 1  # its GUID
    (tmp_path / "named.dll").write_bytes(other)
    assert functions(str(tmp_path / "named.dll"), at) == [("", 0), ("shown", 0)]
    shutil.copy(NAMED.replace(".dll", ".pdb"), tmp_path)
    assert functions(str(tmp_path / "named.dll"), at, ImageResolver()) == [("", 0), ("shown", 0)]


def test_exports_lie_where_dbghelp_finds_them():
    """Wine's DLLs carry DWARF: at an exported function both readers give one name."""
    ntdll = ctypes.WinDLL("ntdll")
    for name in ("NtClose", "RtlAllocateHeap", "LdrLoadDll"):
        offset = ctypes.cast(getattr(ntdll, name), ctypes.c_void_p).value - ntdll._handle
        assert functions(r"C:\windows\system32\ntdll.dll", np.array([offset + 1], "<u8")) == [(name, 1)]


def test_the_options_of_the_process_are_given_back():
    before = dbghelp.SymGetOptions()
    functions(DEBUGGED, rvas(DEBUGGED))
    assert dbghelp.SymGetOptions() == before


def test_only_so_many_images_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(dbghelp, "MAX_IMAGES", 2)
    at, resolver = rvas(DEBUGGED), ImageResolver()
    copies = [str(shutil.copy(DEBUGGED, tmp_path / f"copy{n}.dll")) for n in range(4)]
    for _ in range(2):
        for copy in copies:
            assert functions(copy, at, resolver) == [(name, 0) for name in NAMES]
    assert len(dbghelp._loaded) <= 2


def test_threads_may_ask_at_once():
    at, wrong = rvas(DEBUGGED), []

    def ask():
        for _ in range(50):
            if functions(DEBUGGED, at) != [(name, 0) for name in NAMES]:
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_folder_that_would_change_the_search_path_is_not_searched(tmp_path):
    folder = tmp_path / "a;srv"
    folder.mkdir()
    copy = str(shutil.copy(DEBUGGED, folder / "debugged.dll"))
    assert functions(copy, rvas(DEBUGGED))[:2] == [("", 0), ("", 0)]


def test_a_damaged_image_costs_names_only(tmp_path):
    whole = Path(DEBUGGED).read_bytes()
    at = rvas(DEBUGGED)
    for size in (0, 1, 64, 400, 1024, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / f"cut{size}.dll"
        cut.write_bytes(whole[:size])
        assert len(functions(str(cut), at)) == 3


def test_a_trace_that_names_a_pipe_does_not_connect_us_to_it():
    """Its server could act as us, and a trace comes from anywhere."""
    with Listener(r"\\.\pipe\wstrace-trap", "AF_PIPE") as trap:
        called = []
        thread = threading.Thread(target=lambda: called.append(trap.accept()), daemon=True)
        thread.start()
        for name in (r"\Device\NamedPipe\wstrace-trap", r"\??\pipe\wstrace-trap", r"\\.\pipe\wstrace-trap"):
            ImageResolver().resolve(MappedFile(name), np.array([0x1000], "<u8"))
        thread.join(0.5)
        assert not called
        Client(r"\\.\pipe\wstrace-trap", "AF_PIPE").close()  # the trap would have been sprung
        thread.join(10)
        assert called
