"""Launchers, which only start another program: finds the interpreter that a launcher's file names.

`py` and `uv run` decide at run time: they are traced themselves, and what they start as a child.
Sources: distlib, t32/t64 launchers (stub, `#!INTERPRETER`, zip); uv, uv-trampoline-builder (the resources
UV_TRAMPOLINE_KIND and UV_PYTHON_PATH, since 0.8); CPython,
venvlauncher.c and multiprocessing. Launchers are untrusted input, so every read is
bounded.
"""

from __future__ import annotations

import os
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wstrace_plugins.os.windows.image_id import Read, nt_headers, place

_MAX_PATH_BYTES = 4096
_RESOURCE_DIRECTORY, _RT_RCDATA = 2, 10
_PE32_PLUS = 0x20B
_MAX_ENTRIES, _MAX_SECTIONS = 1024, 96
_HIGH = 0x8000_0000  # in a name: it is a text; in an offset: it leads to a table
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
            found = _uv(file) or _shebang(file)
    except (OSError, ValueError, struct.error):
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


def _uv(file: BinaryIO) -> Launcher | None:
    resources = named_data(file, (_UV_KIND, _UV_PYTHON), _MAX_PATH_BYTES)
    kind, path = resources.get(_UV_KIND, b""), resources.get(_UV_PYTHON, b"")
    known = kind in _UV_SCRIPT and path and b"\0" not in path
    return Launcher(path.decode("utf-8", "replace"), _UV_SCRIPT[kind]) if known else None


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


def named_data(file: BinaryIO, names: Sequence[str], most: int) -> dict[str, bytes]:
    """The resources (RT_RCDATA) of a PE file with these names, in their first languages, of at most `most` bytes.

    No table is entered twice. Source: Microsoft Learn, "PE Format": the .rsrc section.
    """

    def read(at: int, size: int) -> bytes:
        file.seek(at)
        found = file.read(size)
        if len(found) != size:
            raise ValueError("the file is cut off")
        return found

    try:
        return dict(_found(read, set(names), most))
    except (ValueError, struct.error):
        return {}


def _found(read: Read, names: set[str], most: int) -> Iterator[tuple[str, bytes]]:
    at = nt_headers(read)
    sections, optional = struct.unpack("<H", read(at + 6, 2))[0], struct.unpack("<H", read(at + 20, 2))[0]
    wide = struct.unpack("<H", read(at + 24, 2))[0] == _PE32_PLUS
    directory = at + 24 + (112 if wide else 96) + 8 * _RESOURCE_DIRECTORY
    headers = read(at + 24 + optional, 40 * min(sections, _MAX_SECTIONS))
    root = place(headers, struct.unpack("<I", read(directory, 4))[0])
    if not root:
        return
    for kind, types in _entries(read, root, 0):
        if kind != _RT_RCDATA or not types & _HIGH:
            continue
        for name, languages in _entries(read, root, types & ~_HIGH):
            if not name & _HIGH or not languages & _HIGH:
                continue
            text = _name(read, root + (name & ~_HIGH))
            first = next(_entries(read, root, languages & ~_HIGH), (0, _HIGH))[1]
            if text in names and not first & _HIGH:
                rva, size = struct.unpack("<II", read(root + first, 8))
                if (start := place(headers, rva)) and size <= most:
                    yield text, read(start, size)


def _entries(read: Read, root: int, at: int) -> Iterator[tuple[int, int]]:
    """Yields (name or number, offset) of each entry of a table."""
    count = sum(struct.unpack("<HH", read(root + at + 12, 4)))
    yield from struct.iter_unpack("<II", read(root + at + 16, 8 * min(count, _MAX_ENTRIES)))


def _name(read: Read, at: int) -> str:
    length = struct.unpack("<H", read(at, 2))[0]
    return read(at + 2, 2 * min(length, 64)).decode("utf-16-le", "replace")
