"""`wstrace recover`: writes what can be read of a cut or damaged file as a clean file."""

from __future__ import annotations

from pathlib import Path

import click

from wstrace.errors import UsageError
from wstrace.text import printable
from wstrace_exporters.msgpack.commands.info import unknown_lines
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.copy import copy


@click.command()
@click.argument("path", metavar="FILE")
@click.option("-o", "--output", metavar="OUT", required=True, help="The clean file.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
def recover(path: str, output: str, force: bool) -> None:
    """Write a clean trace of all that can be read of FILE; tell what is lost."""
    if Path(output).exists() and Path(path).exists() and Path(output).samefile(path):
        raise UsageError(f"{output} is the damaged file itself", "name another one; the original stays as it is")
    with open_trace(path, scan=True) as trace:
        state = trace.state
        rows = copy([trace], output, force=force)
        unknown = list(unknown_lines(trace.unknown()))
        damage = {name.replace("_", " "): n for name, n in trace.damage().items() if n}
    told = ", ".join(f"{n:,} {name}" for name, n in damage.items())
    for line in unknown:
        click.echo(printable(line.strip()), err=True)
    click.echo(printable(f"{path} was {state}{': ' + told if told else ''}; {output} holds {rows:,} rows"))
