"""Finds the program that a command starts on Windows, and the interpreter behind a launcher.

CreateProcess searches the folder of the running executable first, which is that of wstrace's Python. Therefore the
program is searched as the shell does (PATH, PATHEXT), and passed with its full path.
Sources: Microsoft Learn, CreateProcessW, NeedCurrentDirectoryForExePathW; CPython, venvlauncher.c.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wstrace.errors import CannotExecute, CommandNotFound
from wstrace_plugins.os.windows import launchers

_PATHEXT = ".COM;.EXE;.BAT;.CMD;.VBS;.JS;.WS;.MSC"
#: With this variable set, cmd.exe and CreateProcess do not search the current folder for a name without a path.
_NOT_HERE_VARIABLE = "NoDefaultCurrentDirectoryInExePath"


class Program(NamedTuple):
    """The arguments of CreateProcess: the executable, the words of the command line, the environment (None = ours)."""

    path: str
    arguments: list[str]
    environment: dict[str, str] | None


def resolve(command: Sequence[str], *, elevated: bool = False) -> Program:
    """The program of a command; for a launcher and a venv's python.exe, the interpreter that they would start.

    command: the words of the command. elevated: whether to leave out the current folder, where anyone may have put a
    program, for a name without a path. Raises CommandNotFound: there is no such program. CannotExecute: the command is
    a script, not a program; the error says what to write instead.
    """
    if cut := [word for word in command if "\0" in word]:
        raise CannotExecute(f"{cut[0]!r} has a NUL character, which no command line can hold")
    found = next(_candidates(command[0], elevated=elevated), None)
    path = found or next(_candidates(os.path.join(os.curdir, command[0]), elevated=False), None)
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
    if found is None:
        raise CommandNotFound(
            f"there is no command {command[0]!r} in PATH, and that of the current folder is not started by its name"
            + (" in an elevated terminal" if elevated else f" ({_NOT_HERE_VARIABLE} is set)"),
            f"write {path} if it is meant",
        )
    arguments = list(command)
    if words := launchers.script_of(path):
        path, arguments = words[0], [*words, *command[1:]]
    base = launchers.venv_base(path)
    if not base and (chosen := launchers.chosen_by(path, arguments[1:])):
        path, base = chosen, launchers.venv_base(chosen)
    if base:
        return Program(base, arguments, {**os.environ, "__PYVENV_LAUNCHER__": os.path.abspath(path)})
    return Program(path, arguments, None)


def _candidates(name: str, *, elevated: bool) -> Iterator[str]:
    """Yields the files that a shell would take a name for, the best one first."""
    suffixes = [suffix for suffix in os.environ.get("PATHEXT", _PATHEXT).split(";") if suffix]
    names = [name + suffix.lower() for suffix in suffixes]
    if name.lower().endswith(tuple(suffix.lower() for suffix in suffixes)):
        names.insert(0, name)
    folders = [""]
    if os.path.dirname(name):
        names.append(name)  # of any other ending, or none: resolve() says what it is
    else:
        # Entries of PATH that are not absolute are relative to the current folder.
        folders = [folder.strip('"') for folder in os.environ.get("PATH", "").split(os.pathsep)]
        folders = [folder for folder in folders if Path(folder).is_absolute() or (folder and not elevated)]
        if not elevated and _NOT_HERE_VARIABLE not in os.environ:
            folders.insert(0, os.curdir)
    for folder in folders:
        for one in names:
            path = os.path.join(folder, one)
            if Path(path).exists() and not Path(path).is_dir():
                yield path
