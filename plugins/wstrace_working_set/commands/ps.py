"""`wstrace ps`: processes with their working sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from wstrace.cli.common import json_option, print_json
from wstrace.terminal.output import Output
from wstrace.terminal.table import Column, TextTable
from wstrace.text import printable, size


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process: bytes resident, of them private (no other process has them); None where that may not be read.

    large: bytes of large pages (hugetlb), which are not part of resident.
    """

    pid: int
    user: str
    resident: int
    private: int | None
    shared: int | None
    large: int | None
    name: str


@click.command()
@click.option("--sort", type=click.Choice(["resident", "private", "shared", "pid", "name"]), default="resident")
@click.option("--top", type=click.IntRange(1), help="So many at most.")
@json_option
def ps(sort: str, top: int | None, as_json: bool) -> None:
    """Show the processes with their working sets: resident, private and shared bytes."""
    found = sorted(_processes(), key=lambda process: process.pid)
    found.sort(key=lambda process: getattr(process, sort) or ("" if sort == "name" else 0),
               reverse=sort in ("resident", "private", "shared"))  # fmt: skip
    found = found[:top]
    if as_json:
        print_json([asdict(process) for process in found])
        return
    large = any(process.large for process in found)
    columns = [Column("pid", spare=False), Column("working set"), Column("private"), Column("shared"),
               *([Column("large")] if large else []), Column("user", "text"), Column("name", "name")]  # fmt: skip
    rows = [
        [str(p.pid), size(p.resident), _size(p.private), _size(p.shared), *([_size(p.large)] if large else []),
         printable(p.user, 16), p.name] for p in found
    ]  # fmt: skip
    Output.standard("stdout").show(TextTable(columns, rows))


def _size(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else size(n_bytes)


def _processes() -> Iterator[ProcessRow]:
    """Every process with an address space, including those that refuse; one that ends meanwhile is left out."""
    from wstrace_working_set.backend import backend

    system = backend()
    for pid, name, user, resident in system.listed():
        private, large = system.private_and_large(pid)
        private = None if private is None else min(private, resident)  # they are not read at the same moment
        shared = None if private is None else resident - private
        yield ProcessRow(pid, user or "-", resident, private, shared, large, name)
