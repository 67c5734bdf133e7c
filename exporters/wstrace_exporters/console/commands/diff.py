"""`wstrace diff A.wst B.wst`: what grew or shrank in memory between two runs, and which line did it."""

from __future__ import annotations

import click
from click.core import ParameterSource

from wstrace.cli.common import json_option, print_json
from wstrace.errors import UsageError
from wstrace.text import damage_note, plural, printable
from wstrace_exporters.console.recorded import TOP, VERBOSE


@click.command()
@click.argument("first", metavar="A.wst")
@click.argument("second", metavar="B.wst")
@click.option("--by", default="", metavar="DIM", help="package, function, line, file, kind, process ...")
@click.option("--at", metavar="peak|exit|start|MARK",
              help="The moment; by default the peak if both traces have it, else the last snapshots.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Also what did not change.")
@TOP
@VERBOSE
@click.option("--html", metavar="FILE.html", help="Write an offline page with the stacks of both instead.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.html.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context, /, first: str, second: str, by: str, at: str | None, everything: bool, top: int, verbose: bool,
    html: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare the resident pages of two trace files: two releases, two settings, or two moments of a process.

    \b
    wstrace report -o a.wst -- python3 app.py      before
    wstrace report -o b.wst -- python3 app.py      after
    wstrace diff a.wst b.wst --by function
    wstrace diff a.wst b.wst --html grown.html
    """
    chosen = everything or verbose or as_json or ctx.get_parameter_source("top") is ParameterSource.COMMANDLINE
    if html and chosen:
        raise UsageError("--html FILE has all of both traces, and no table", "leave the other options out")
    import wstrace
    from wstrace_exporters.console.report_table import parts, show

    with wstrace.open_trace(first) as one, wstrace.open_trace(second) as other:
        if html:
            rows = other.html(html, force=force, at=at or "", before=first, by=by)
            damage = damage_note(one.state) + damage_note(other.state)
            click.echo(f"{printable(html)}: {plural(rows, 'row')}{damage}", err=True)
            return
        found = one.diff(other, at).report(by, everything=everything)
        if as_json:
            print_json(found.as_dict())
        else:
            show(parts(found, top, everything=bool(by or verbose)), everything=bool(by or verbose))
