"""`wstrace query`: answers an SQL query over a trace file, without converting the file."""

from __future__ import annotations

import atexit
import gc
import sys

import click

from wstrace.cli.tracing import warn
from wstrace.errors import UsageError
from wstrace.text import printable
from wstrace_exporters.msgpack.interchange.sql import connect


@click.command()
@click.argument("path", metavar="[FILE]", required=False, default="")
@click.argument("sql", metavar="[SQL]", required=False, default="")
@click.option("--schema", is_flag=True, help="Print the tables, of FILE or all known ones, and run no query.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the rows are printed.",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows of a table shown at most.")
def query(path: str, sql: str, schema: bool, shape: str, limit: int) -> None:
    """Query a trace file in SQL (DuckDB): its streams are tables, and these views have names for ids, codes and flags.

    \b
    faults          every page fault: file, process, thread, own line, function, package
    pages           every page that was resident at the end, with the fault that brought it
    stacks          the stacks that faults name, with their frames as text
    processes       every process: name, parent, life, exit code, threads
    unshared        copies of pages that processes had shared since a fork
    still_resident  rows of `resident` of the last whole snapshot of each process

    \b
    wstrace query x.wst "select own_line, count(*) from faults group by 1 order by 2 desc limit 10"
    wstrace query x.wst "select file, sum(pages) from still_resident group by file order by 2 desc"
    wstrace query --schema      every column with its unit and meaning

    Needs wstrace[sql].
    """
    if schema:
        _schema(path, shape)
        return
    if not sql:
        raise UsageError("query needs a FILE and a question in SQL", "wstrace query --schema prints the tables")
    # The command line freezes the collector at its end, and DuckDB's binding reports each object left as leaked.
    atexit.register(gc.unfreeze)
    with connect(path, sql) as answer:
        names, rows = answer.names, answer.rows
        if answer.incomplete:
            warn(printable(f"{path}: {answer.incomplete}"))
        _show(names, rows, shape, limit)


def _show(names: list[str], rows: list[tuple[object, ...]], shape: str, limit: int) -> None:
    if shape == "json":
        _json(names, rows)
    elif shape == "csv":
        _csv(names, rows)
    else:
        _table(names, rows[:limit], len(rows) - limit)


def _schema(path: str, shape: str) -> None:
    """Prints the tables of a file, or all known ones, with their columns."""
    from wstrace_exporters.msgpack.interchange.tables import known_tables, meaning, unit

    tables = known_tables(path)
    rows = [(name, c.name, unit(c), meaning(c)) for name, (_, columns) in tables.items() for c in columns]
    _show(["table", "column", "unit", "meaning"], list(rows), shape, len(rows))


def _json(names: list[str], rows: list[tuple[object, ...]]) -> None:
    import json

    for row in rows:
        click.echo(json.dumps(dict(zip(names, row, strict=True)), default=str))


def _csv(names: list[str], rows: list[tuple[object, ...]]) -> None:
    """Writes CSV, with control characters in the values escaped."""
    import csv

    from wstrace.text import spreadsheet_text

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (names, *rows):
        writer.writerow(spreadsheet_text(printable(value)) if isinstance(value, str) else value for value in row)


def _table(names: list[str], rows: list[tuple[object, ...]], more: int) -> None:
    from wstrace.terminal import Column, Output, TextTable

    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(names))]
    columns = [Column(name, "number" if number else "text") for name, number in zip(names, numeric, strict=True)]
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    rest = [f"... and {more:,} rows more (--limit)"] if more > 0 else []
    Output.standard("stdout").show(TextTable(columns, cells, whole=True), *rest)
