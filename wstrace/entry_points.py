"""Entry points of installed distributions, as importlib.metadata finds them but without its import.

importlib.metadata imports email, zipfile and what these need, and parses all of a distribution's METADATA whenever it
gives a name: together a quarter of what `wstrace --help` takes. So plain folders are read here; where anything
else has distributions (a zip file on sys.path, a finder of the program's own), importlib.metadata answers.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from typing import Any, NamedTuple


class EntryPoint(NamedTuple):
    """One line of a distribution's entry_points.txt: `name = module` or `name = module:attribute`."""

    name: str
    value: str
    distribution: str
    version: str

    def load(self) -> Any:
        """Imports its module and returns it, or the attribute that the value names."""
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found = importlib.import_module(module.strip())
        return functools.reduce(getattr, filter(None, attributes.strip().split(".")), found)


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group. Of two distributions with one name, only the first on sys.path counts."""
    if _only_folders():
        described = _in_folders(tuple(sys.path))
        return [EntryPoint(*line, *about) for about, lines in described for line in _of_group(group, lines)]
    from importlib import metadata

    found = metadata.entry_points(group=group)
    return [EntryPoint(e.name, e.value, *((e.dist.name, e.dist.version) if e.dist else ("", ""))) for e in found]


@functools.cache  # one reading serves both groups
def _in_folders(folders: Sequence[str]) -> list[tuple[tuple[str, str], list[str]]]:
    """((name, version), the lines of entry_points.txt) of each distribution that has entry points for wstrace."""
    found, seen = [], set()
    for folder in folders:
        for about in _distributions(folder or "."):
            name = os.path.basename(about).rpartition(".")[0].partition("-")[0].lower()
            normalized = name.replace("-", "_").replace(".", "_")
            if normalized not in seen:
                seen.add(normalized)
                if lines := _lines(f"{about}/entry_points.txt", "wstrace"):
                    found.append((_headers(about), lines))
    return found


def _only_folders() -> bool:
    """Whether no distribution can be anywhere but in the folders of sys.path."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return finders == [PathFinder] and not any(os.path.isfile(path) for path in sys.path)


def _distributions(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [f"{folder}/{name}" for name in names if name.lower().endswith((".dist-info", ".egg-info"))]


def _lines(path: str, word: str = "") -> list[str]:
    """The lines of a file; [] where it cannot be read, or has no such word: an environment has hundreds of files."""
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.readall()
    except OSError:
        return []
    return content.decode("utf-8", "replace").splitlines() if word.encode() in content else []


def _of_group(group: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    """The (name, value) of every line in the section of that name."""
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _headers(about: str) -> tuple[str, str]:
    """(name, version) from the head of a distribution's METADATA."""
    fields = {"name": "", "version": ""}
    for line in _lines(os.path.join(about, "METADATA")) or _lines(os.path.join(about, "PKG-INFO")):
        if not line:  # What follows is the description.
            break
        key, _, value = line.partition(":")
        if key.lower() in fields:
            fields[key.lower()] = value.strip()
    return fields["name"], fields["version"]
