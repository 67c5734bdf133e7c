"""`wstrace ps`: processes with their working sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from wstrace.text import printable, size, well_formed


@dataclass(frozen=True, slots=True)
class Process:
    """A process: bytes resident, of them private (no other process has them); None where that may not be read."""

    pid: int
    user: str
    resident: int
    private: int | None
    shared: int | None
    name: str


@click.command()
@click.option("--sort", type=click.Choice(["resident", "private", "shared", "pid", "name"]), default="resident")
@click.option("--top", type=click.IntRange(1), help="So many at most.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
def ps(sort: str, top: int | None, as_json: bool) -> None:
    """Show the processes with their working sets: resident, private (no other process has it) and shared bytes."""
    found = sorted(_processes(), key=lambda process: process.pid)
    found.sort(key=lambda process: getattr(process, sort) or ("" if sort == "name" else 0),
               reverse=sort in ("resident", "private", "shared"))  # fmt: skip
    found = found[:top]
    if as_json:
        rows = [{k: well_formed(v) if isinstance(v, str) else v for k, v in asdict(p).items()} for p in found]
        click.echo(json.dumps(rows, indent=1))
        return
    from wstrace_working_set import render

    cells = [
        [str(p.pid), size(p.resident), _size(p.private), _size(p.shared), printable(p.user, 16), printable(p.name)]
        for p in found
    ]
    render.show(["pid", "working set", "private", "shared", "user", "name"], cells, left=2)


def _size(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else size(n_bytes)


def _processes() -> Iterator[Process]:
    """Every process with an address space; one that ends meanwhile is left out."""
    import psutil

    for process in psutil.process_iter():
        try:
            resident = process.memory_info().rss
            if not resident:  # a kernel thread or a zombie
                continue
            name, user = process.name(), process.username()
        except (psutil.Error, OSError, KeyError):
            continue
        try:
            private = min(process.memory_full_info().uss, resident)
        except (psutil.Error, OSError):
            private = None
        yield Process(process.pid, user, resident, private, None if private is None else resident - private, name)
