"""Which program a command starts on Windows, and which interpreter stands behind a launcher.

CreateProcess by itself looks first in the folder of the running executable, which is that of wstrace's own Python: so
the program is looked up as the shell does it (PATH, PATHEXT) and given by its full path.
Sources: Microsoft Learn, CreateProcessW, NeedCurrentDirectoryForExePathW; CPython, venvlauncher.c.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wstrace.errors import CannotExecute, CommandNotFound
from wstrace_os.windows import launchers

_PATHEXT = ".COM;.EXE;.BAT;.CMD;.VBS;.JS;.WS;.MSC"
#: set: cmd.exe and CreateProcess do not look into the current folder for a name without a path
_NOT_HERE_VARIABLE = "NoDefaultCurrentDirectoryInExePath"


class Program(NamedTuple):
    """What CreateProcess is given: the executable, the words of its command line, the environment (None = ours).

    launcher: it starts the program that is meant, which only it knows.
    """

    path: str
    arguments: list[str]
    environment: dict[str, str] | None
    launcher: bool = False


def resolve(command: Sequence[str], *, elevated: bool = False) -> Program:
    """The program behind a command. A script's launcher and a venv's python.exe are resolved to what they would start.

    Args:
        command: its words.
        elevated: for a name without a path the current folder is not searched, where anyone may have put a program.

    Raises:
        CommandNotFound: there is no such program.
        CannotExecute: it is no program but a script; says what to write.
    """
    path = next(_candidates(command[0], elevated=elevated), None)
    if path is None:
        here = next(_candidates(os.path.join(os.curdir, command[0]), elevated=False), None)
        if here is not None and not os.path.dirname(command[0]):
            raise CommandNotFound(
                f"there is no command {command[0]!r} in PATH, and that of the current folder is not started by its name"
                + (" in an elevated terminal" if elevated else f" ({_NOT_HERE_VARIABLE} is set)"),
                f"write {here} if it is meant",
            )
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
    launcher = launchers.read(path)
    if launcher is not None and launcher.script:
        arguments = [launcher.interpreter, path, *command[1:]]
        path = launcher.interpreter
    if base := launchers.venv_base(path):
        return Program(base, arguments, {**os.environ, "__PYVENV_LAUNCHER__": os.path.abspath(path)})
    if launcher is not None:  # uv's name for an interpreter outside of a venv
        return Program(launcher.interpreter, arguments, None)
    return Program(path, arguments, None, launchers.decides_at_run_time(path, command[1:]))


def _candidates(name: str, *, elevated: bool) -> Iterator[str]:
    """The files that a shell would take a name for, the best first."""
    suffixes = [suffix for suffix in os.environ.get("PATHEXT", _PATHEXT).split(";") if suffix]
    names = [name + suffix.lower() for suffix in suffixes]
    if name.lower().endswith(tuple(suffix.lower() for suffix in suffixes)):
        names.insert(0, name)
    folders = [""]
    if not os.path.dirname(name):
        # those of PATH that are no full paths are places in the current folder
        folders = [folder.strip('"') for folder in os.environ.get("PATH", "").split(os.pathsep)]
        folders = [folder for folder in folders if Path(folder).is_absolute() or (folder and not elevated)]
        if not elevated and _NOT_HERE_VARIABLE not in os.environ:
            folders.insert(0, os.curdir)
    for folder in folders:
        for one in names:
            path = os.path.join(folder, one)
            if Path(path).exists() and not Path(path).is_dir():
                yield path
