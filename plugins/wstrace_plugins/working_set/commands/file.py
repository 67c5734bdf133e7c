"""`wstrace file PATH`: what of a file is in memory, where in it, and of which of its named parts."""

from __future__ import annotations

import math
import sys
from typing import Any

import click
import numpy as np

from wstrace.cli.common import debug_privilege, json_option, print_json
from wstrace.terminal import Column, Output, TextTable, has_blocks, shades
from wstrace.text import plural, printable, size
from wstrace_plugins.os.intervals import Ranges, n_bytes
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.file_heat import FileHeat

STRIP = 60


@click.command()
@click.argument("path", metavar="PATH")
@click.option("--pid", "pids", type=int, multiple=True, help="Only this process; may be repeated.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="At most this many rows of a table.")
@json_option
@debug_privilege
def file(path: str, pids: tuple[int, ...], top: int, as_json: bool) -> None:
    """Show what of a file is in memory: mapped and resident in processes, and in the page cache, by offset.

    Files of known formats (safetensors, ELF) are shown by tensor or section. Linux.
    """
    heat = backend().file_heat(path, pids)
    if as_json:
        print_json(_plain(heat))
        return
    marks = shades(unicode=has_blocks(sys.stdout.encoding))

    def strip(ranges: Ranges) -> str:
        return "".join(marks[math.ceil(part * 4)] for part in heat.strip(ranges, STRIP))

    known = [("mapped", heat.mapped), ("resident", heat.resident), ("page cache", heat.cached)]
    lines = [f"{name:>10}  [{strip(ranges)}]" for name, ranges in known if ranges is not None]
    parts: list[str | TextTable] = [_headline(heat), "", *lines]
    if heat.holders:
        columns = [Column("pid", spare=False), Column("mapped"), Column("resident"), Column("copied"),
                   Column("name", "name")]  # fmt: skip
        rows = [[str(h.pid), *map(size, (h.mapped, h.resident, h.copied)), h.name]
                for h in sorted(heat.holders, key=lambda holder: -holder.resident)]  # fmt: skip
        parts += ["", TextTable.of(columns, rows, top)]
    if heat.parts:
        columns = [Column("resident"), Column("page cache"), Column("size"), Column("part", "name")]
        parts_ = sorted(heat.part_rows(), key=lambda row: (-row[1], -(row[2] or 0), row[0].start))
        cells = [[size(resident), "-" if cached is None else size(cached), size(part.end - part.start), part.name]
                 for part, resident, cached in parts_]  # fmt: skip
        parts += ["", TextTable.of(columns, cells, top)]
    Output.standard("stdout").show(*parts)
    for note in _notes(heat):
        click.echo(f"wstrace: note: {note}", err=True)


def _headline(heat: FileHeat) -> str:
    """The answer in a line."""
    holders = plural(len(heat.holders), "process")
    found = [f"{size(n_bytes(heat.resident))} of {size(heat.size)} resident in {holders}"]
    if heat.cached is not None:
        found.append(f"{size(n_bytes(heat.cached))} in the page cache")
    return f"{printable(heat.path)}: {', '.join(found)}"


def _notes(heat: FileHeat) -> list[str]:
    notes = []
    if heat.not_cached:
        notes.append(heat.not_cached)
    if heat.refused:
        notes.append(f"processes that could not be read: {heat.refused:,}")
    return notes


def _plain(heat: FileHeat) -> dict[str, Any]:
    """The values for JSON."""

    def ranges(found: Ranges | None) -> list[list[int]] | None:
        return None if found is None else np.stack(found, axis=1).tolist()

    return {
        "schema": 1, "path": heat.path, "size": heat.size, "mapped": ranges(heat.mapped),
        "resident": ranges(heat.resident), "cached": ranges(heat.cached), "resident_bytes": n_bytes(heat.resident),
        "cached_bytes": None if heat.cached is None else n_bytes(heat.cached), "notes": _notes(heat),
        "processes": [holder._asdict() for holder in heat.holders],
        "parts": [{"name": part.name, "start": part.start, "end": part.end, "resident": resident, "cached": cached}
                  for part, resident, cached in heat.part_rows()],
    }  # fmt: skip
