"""`wstrace query`: answers an SQL query over a trace file, without converting the file."""

from __future__ import annotations

import atexit
import gc
import sys

import click

from wstrace.cli.tracing import warn
from wstrace.text import printable
from wstrace_msgpack.interchange.sql import connect


@click.command()
@click.argument("path", metavar="FILE")
@click.argument("sql")
@click.option("--format", "shape", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option("--limit", type=int, default=100, show_default=True, help="Rows of a table shown at most.")
def query(path: str, sql: str, shape: str, limit: int) -> None:
    """Ask a trace file in SQL (DuckDB): its streams are tables, `page_fault` has file and pc_file in clear.

    \b
    wstrace query x.wst "select file, count(*) from page_fault group by file order by 2 desc limit 10"
    wstrace query x.wst "select file, sum(pages) from still_resident group by file order by 2 desc"
    wstrace query x.wst "select own_line, count(*) from page_fault f left join stacks s on f.stack = s.id group by 1"
    stacks: the call sites that page_fault.stack and native_stack name, with their frames in clear.
    pages: resident pages, with own_line, function and package of the fault that brought each.
    unshared: copies of pages that processes had shared since a fork.
    still_resident: rows of `resident` of the last whole snapshot of each process, as report and diff count them.
    Also reads what `convert` wrote: wstrace query x.parquet "select count(*) from page_fault"
    Needs wstrace[sql].
    """
    # The command line freezes the collector at its end, and DuckDB's binding reports each object left as leaked.
    atexit.register(gc.unfreeze)
    with connect(path, sql) as answer:
        names, rows = answer.names, answer.rows
        if answer.incomplete:
            warn(printable(f"{path}: {answer.incomplete}"))
        if shape == "json":
            _json(names, rows)
        elif shape == "csv":
            _csv(names, rows)
        else:
            _table(names, rows[:limit], len(rows) - limit)


def _json(names: list[str], rows: list[tuple[object, ...]]) -> None:
    import json

    for row in rows:
        click.echo(json.dumps(dict(zip(names, row, strict=True)), default=str))


def _csv(names: list[str], rows: list[tuple[object, ...]]) -> None:
    """Writes CSV; on a terminal, control characters in the values are escaped."""
    import csv

    from wstrace.text import printable, spreadsheet_text, well_formed

    safe = printable if sys.stdout.isatty() else well_formed
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (names, *rows):
        writer.writerow(safe(spreadsheet_text(value)) if isinstance(value, str) else value for value in row)


def _table(names: list[str], rows: list[tuple[object, ...]], more: int) -> None:
    from wstrace.terminal.output import Output
    from wstrace.terminal.table import Column, TextTable

    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(names))]
    columns = [Column(name, "number" if number else "text") for name, number in zip(names, numeric, strict=True)]
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    rest = [f"... and {more:,} rows more (--limit)"] if more > 0 else []
    Output.standard("stdout").show(TextTable(columns, cells, whole=True), *rest)
