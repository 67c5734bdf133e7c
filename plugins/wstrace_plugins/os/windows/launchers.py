"""Launchers, which only start another program: finds the interpreter that a launcher names or chooses.

Others (`py`, those of uv) are traced themselves, and what they start as a child.
Sources: distlib, launcher.c (stub, `#!INTERPRETER ARGUMENTS`, zip); setuptools, launcher.c (NAME-script.py, conda's are
copies); CPython, venvlauncher.c and multiprocessing; pymanager, main.cpp (python.exe chooses by a script's shebang).
Launchers are untrusted input, so every read is bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

_MAX_PATH_BYTES = 4096
_ANSWER_SECONDS = 30
#: An interpreter, in quotes if its path has blanks, and its options.
_SHEBANG = r'(?is)\s*"?(?:<launcher_dir>[/\\])?(.+?\.exe)(?="|\s|$)"?(.*)'
_WHICH = "import sys; sys.stdout.buffer.write(sys.executable.encode('utf-8', 'surrogatepass'))"


def script_of(path: str) -> list[str]:
    """What a script's launcher starts: interpreter, its options, and the script; [] for any other program.

    The script is the launcher itself (pip), or NAME-script.py beside NAME.exe (setuptools, conda).
    """
    folder = os.path.dirname(path)
    script = str(Path(path).with_suffix("")) + "-script.py"
    if line := _first_line(script):
        folder = os.path.dirname(folder)  # a relative interpreter is in the one above
        line = line[2:] if line.startswith(b"#!") else b"python.exe"
    else:
        script, line = path, _shebang(path)
    found = re.match(_SHEBANG, line.decode("utf-8", "replace"))
    interpreter = os.path.join(folder, found[1]) if found else ""
    if found is None or not Path(interpreter).is_file():
        return []
    options = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', found[2])]
    return [interpreter, *options, script]


def chosen_by(path: str, words: Sequence[str]) -> str:
    """The interpreter that a python.exe which is none itself starts, by its own answer; "" for any other program.

    Such are the Python Install Manager's, alias of the Store or not, and shims: beside them is no DLL of Python. words:
    the words behind it; with a script that has a shebang, by which the manager chooses, no answer would be right.
    """
    here = Path(path)
    if not here.stem.lower().startswith("python") or _has_library(here.parent):
        return ""
    if any(_first_line(word).startswith(b"#!") for word in words):
        return ""
    question = [path, "-I", "-S", "-c", _WHICH]
    try:
        answer = subprocess.run(
            question, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS, check=True,
        )  # fmt: skip
        found = answer.stdout.decode("utf-8", "surrogatepass")
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""  # it is traced itself, and shows its own message
    return found if Path(found).is_file() and not _same(found, path) else ""


def venv_base(path: str) -> str:
    """The interpreter that a venv's python.exe starts, as multiprocessing finds it; "" for any other program."""
    here = Path(path)
    if _has_library(here.parent):
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


def _has_library(folder: Path) -> bool:
    """Whether a python.exe in a folder is an interpreter: the library of one is there."""
    return any(folder.glob("python3*.dll")) or any(folder.glob("libpypy*.dll"))


def _first_line(path: str) -> bytes:
    """b"" where there is none."""
    try:
        with Path(path).open("rb") as file:
            return file.readline(_MAX_PATH_BYTES)
    except (OSError, ValueError):
        return b""


def _shebang(path: str) -> bytes:
    """The line behind the `#!` of a launcher which pip made for a script, such as pytest.exe; b"" of another program.

    Such a launcher's file ends with this line and a zip.
    """
    try:
        with Path(path).open("rb") as file:
            with zipfile.ZipFile(file) as archive:
                if "__main__.py" not in archive.namelist():
                    return b""
                start = min(info.header_offset for info in archive.infolist())
            file.seek(max(start - _MAX_PATH_BYTES, 0))
            _, mark, line = file.read(min(start, _MAX_PATH_BYTES)).rpartition(b"#!")
            return line if mark else b""
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return b""


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
