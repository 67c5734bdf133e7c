"""`wstrace query`: SQL over a trace file, streamed: no conversion first."""

from __future__ import annotations

import sys

import click

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
    Also reads what `convert` wrote: wstrace query x.parquet "select count(*) from page_fault"
    Needs wstrace[sql].
    """
    with connect(path, sql) as answer:
        names, rows = answer.names, answer.rows
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
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def _table(names: list[str], rows: list[tuple[object, ...]], more: int) -> None:
    from wstrace.text import printable

    cells = [[printable(_text(value)) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(names), *cells]) for i in range(len(names))]
    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(names))]
    for line in [list(names), *cells]:
        padded = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True))
        click.echo("  ".join(padded).rstrip())
    if more > 0:
        click.echo(f"... and {more:,} rows more (--limit)")


def _text(value: object) -> str:
    return "" if value is None else str(value)
