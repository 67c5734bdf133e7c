"""Launchers, which only start another program: finds the interpreter that a launcher's file names.

Others (`py`, those of uv) are traced themselves, and what they start as a child.
Sources: distlib, t32/t64 launchers (stub, `#!INTERPRETER`, zip); CPython, venvlauncher.c and multiprocessing.
Launchers are untrusted input, so every read is bounded.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO

_MAX_PATH_BYTES = 4096
_END_OF_ZIP = 22 + 65_535  # the end record of a zip file, with the longest comment


def interpreter_of(path: str) -> str:
    """The interpreter that a launcher of pip starts with itself as the script; "" for any other program."""
    try:
        with Path(path).open("rb") as file:
            found = os.path.join(os.path.dirname(path), _shebang(file))
    except (OSError, ValueError):
        return ""
    return found if Path(found).is_file() else ""


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


def _shebang(file: BinaryIO) -> str:
    """The interpreter that a launcher which pip made for a script, such as pytest.exe, names; "" for another program.

    Such a launcher runs `INTERPRETER launcher.exe ARGUMENTS`; its file ends with a line `#!INTERPRETER` and a zip.
    """
    if b"PK\5\6" not in _last(file, _END_OF_ZIP):
        return ""
    try:
        with zipfile.ZipFile(file) as archive:
            if "__main__.py" not in archive.namelist():
                return ""
            start = min(info.header_offset for info in archive.infolist())
    except zipfile.BadZipFile:
        return ""
    file.seek(max(start - _MAX_PATH_BYTES, 0))
    _, mark, line = file.read(min(start, _MAX_PATH_BYTES)).rpartition(b"#!")
    words = line.decode("utf-8", "replace").strip().strip('"')
    return words if mark and words.lower().endswith(".exe") else ""


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
