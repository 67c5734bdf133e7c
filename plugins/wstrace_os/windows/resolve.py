"""Which program a command starts on Windows, and which interpreter stands behind a launcher.

CreateProcess by itself looks first in the folder of the running executable, which is that of wstrace's own Python: so
the program is looked up as the shell does it (PATH, PATHEXT) and given by its full path.
Sources: Microsoft Learn, CreateProcessW; CPython, venvlauncher.c and multiprocessing; distlib, t32/t64 launchers.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from wstrace.errors import CannotExecute, CommandNotFound

_MAX_SHEBANG = 4096
_END_OF_ZIP = 22 + 65_535  # the record at the end of a zip, with the longest comment


class Program(NamedTuple):
    """What CreateProcess is given: the executable, the words of its command line, the environment (None = ours)."""

    path: str
    arguments: list[str]
    environment: dict[str, str] | None


def resolve(command: Sequence[str]) -> Program:
    """The program behind a command. A script's launcher and a venv's python.exe are resolved to what they would start.

    Raises:
        CommandNotFound: there is no such program.
        CannotExecute: it is no program but a script; says what to write.
    """
    path = shutil.which(command[0])
    if path is None:
        raise CommandNotFound(f"there is no command {command[0]!r}", "give its path, or look at PATHEXT and PATH")
    suffix = Path(path).suffix.lower()
    if suffix in (".bat", ".cmd"):
        raise CannotExecute(f"{command[0]!r} is a batch file", f"write: wstrace run -- cmd /c {command[0]} ...")
    if suffix not in (".exe", ".com"):
        raise CannotExecute(
            f"{command[0]!r} is {path}, which is no program but a file for one",
            f"write the program first: wstrace run -- python {command[0]} ...",
        )
    arguments = list(command)
    script_interpreter = _shebang(path)
    if script_interpreter:
        arguments = [script_interpreter, path, *command[1:]]
        path = script_interpreter
    base = _venv_base(path)
    if base is None:
        return Program(path, arguments, None)
    return Program(str(base), arguments, {**os.environ, "__PYVENV_LAUNCHER__": os.path.abspath(path)})


def _shebang(path: str) -> str:
    """The interpreter of a launcher that pip made for a script (pytest.exe), "" for any other program.

    Such a launcher runs `INTERPRETER launcher.exe ARGUMENTS`: it ends in a line `#!INTERPRETER` and the script's zip.
    """
    try:
        with Path(path).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _END_OF_ZIP, 0))
            if b"PK\5\6" not in file.read():
                return ""
        with zipfile.ZipFile(path) as archive, Path(path).open("rb") as file:
            if "__main__.py" not in archive.namelist():
                return ""
            start = min(info.header_offset for info in archive.infolist())
            file.seek(max(start - _MAX_SHEBANG, 0))
            before = file.read(min(start, _MAX_SHEBANG))
    except (OSError, zipfile.BadZipFile, ValueError):
        return ""
    _, mark, line = before.rpartition(b"#!")
    words = line.decode("utf-8", "replace").strip().strip('"')
    return words if mark and words.lower().endswith(".exe") and Path(words).is_file() else ""


def _venv_base(path: str) -> Path | None:
    """The interpreter that a venv's python.exe starts, as multiprocessing finds it; None for any other program."""
    here = Path(path)
    for folder in (here.parent, here.parent.parent):
        home = _home(folder / "pyvenv.cfg")
        if home is None:
            continue
        base = home / here.name
        if not base.is_file():
            base = Path(getattr(sys, "_base_executable", "")) if _same(path, sys.executable) else base
        if base.is_file() and not _same(str(base), path) and here.stem.lower().startswith("python"):
            return base
    return None


def _home(file: Path) -> Path | None:
    """The folder of the base interpreter that a pyvenv.cfg names."""
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for key, _, value in (line.partition("=") for line in lines[:100]):
        if key.strip().lower() == "home":
            return Path(value.strip())
    return None


def _same(one: str, other: str) -> bool:
    return os.path.normcase(os.path.abspath(one)) == os.path.normcase(os.path.abspath(other))
