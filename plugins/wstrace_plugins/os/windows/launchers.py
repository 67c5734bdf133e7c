"""Launchers, which only start another program: finds the interpreter that a launcher's file names.

`py` and `uv run` decide at run time: they are traced themselves, and what they start as a child.
Sources: distlib, t32/t64 launchers (stub, `#!INTERPRETER`, zip); uv, uv-trampoline-builder (the resources
UV_TRAMPOLINE_KIND and UV_PYTHON_PATH, since 0.8); CPython, venvlauncher.c and multiprocessing; Microsoft Learn,
libloaderapi.h. Launchers are untrusted input, so every read is bounded.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi

_MAX_PATH_BYTES = 4096
_LOAD_LIBRARY_AS_DATAFILE, _RT_RCDATA = 2, 10
_END_OF_ZIP = 22 + 65_535  # the end record of a zip file, with the longest comment
_UV_KIND, _UV_PYTHON = "UV_TRAMPOLINE_KIND", "UV_PYTHON_PATH"
_UV_SCRIPT = {b"\x01": True, b"\x02": False}


class Launcher(NamedTuple):
    """What a launcher's file says: the interpreter that it starts, and whether it passes itself to that as a script."""

    interpreter: str
    script: bool


def read(path: str) -> Launcher | None:
    """What a launcher of pip or uv would start; None for any other program, or if that does not exist."""
    try:
        with Path(path).open("rb") as file:
            found = _uv(path) or _shebang(file)
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    interpreter = os.path.join(os.path.dirname(path), found.interpreter)  # uv's may be relative to the launcher
    return found._replace(interpreter=interpreter) if Path(interpreter).is_file() else None


def venv_base(path: str) -> str:
    """The interpreter that a venv's python.exe starts, as multiprocessing finds it; "" for any other program."""
    here = Path(path)
    if any(here.parent.glob("python3*.dll")) or any(here.parent.glob("libpypy*.dll")):
        return ""  # an interpreter by itself: a venv that was made by copying (uv of an embedded Python, PyPy)
    for folder in (here.parent, here.parent.parent):
        home = _home(folder / "pyvenv.cfg")
        if home is None:
            continue
        base = home / here.name
        if not base.is_file():
            base = Path(getattr(sys, "_base_executable", "")) if _same(path, sys.executable) else base
        if base.is_file() and not _same(str(base), path) and here.stem.lower().startswith("python"):
            return str(base)
    return ""


def _uv(launcher: str) -> Launcher | None:
    """What a launcher of uv would start; no code of its file is run."""
    try:
        module = winapi.LoadLibraryExW(os.path.abspath(launcher), None, _LOAD_LIBRARY_AS_DATAFILE)
    except Unavailable:  # not on Windows
        return None
    if not module:
        return None
    try:
        kind, path = (_resource(module, name) for name in (_UV_KIND, _UV_PYTHON))
    finally:
        winapi.FreeLibrary(module)
    known = kind in _UV_SCRIPT and path and b"\0" not in path
    return Launcher(path.decode("utf-8", "replace"), _UV_SCRIPT[kind]) if known else None


def _resource(module: int, name: str) -> bytes:
    """The content of a resource (RT_RCDATA); b"" where there is none, or one that is too long."""
    found = winapi.FindResourceW(module, name, _RT_RCDATA)
    size = winapi.SizeofResource(module, found) if found else 0
    at = winapi.LockResource(winapi.LoadResource(module, found)) if 0 < size <= _MAX_PATH_BYTES else 0
    return ctypes.string_at(at, size) if at else b""


def _shebang(file: BinaryIO) -> Launcher | None:
    """What a launcher that pip made for a script, such as pytest.exe, would start; None for any other program.

    Such a launcher runs `INTERPRETER launcher.exe ARGUMENTS`; its file ends with a line `#!INTERPRETER` and a zip.
    """
    if b"PK\5\6" not in _last(file, _END_OF_ZIP):
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            if "__main__.py" not in archive.namelist():
                return None
            start = min(info.header_offset for info in archive.infolist())
    except zipfile.BadZipFile:
        return None
    file.seek(max(start - _MAX_PATH_BYTES, 0))
    _, mark, line = file.read(min(start, _MAX_PATH_BYTES)).rpartition(b"#!")
    words = line.decode("utf-8", "replace").strip().strip('"')
    return Launcher(words, True) if mark and words.lower().endswith(".exe") else None


def _last(file: BinaryIO, count: int) -> bytes:
    file.seek(0, os.SEEK_END)
    file.seek(max(file.tell() - count, 0))
    return file.read(count)


def _home(file: Path) -> Path | None:
    """The folder of the base interpreter that a pyvenv.cfg names, or None."""
    try:
        with file.open("rb") as config:
            lines = config.read(1 << 16).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    for key, _, value in (line.partition("=") for line in lines[:100]):
        if key.strip().lower() == "home":
            return Path(value.strip())
    return None


def _same(one: str, other: str) -> bool:
    return os.path.normcase(os.path.abspath(one)) == os.path.normcase(os.path.abspath(other))
