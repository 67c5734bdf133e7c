"""`wstrace replay`: sends the records of trace files to exporters."""

from __future__ import annotations

import click

from wstrace.cli.common import exit_on_exporter_error, is_administrator, time_window
from wstrace.config import Config
from wstrace.options import Spec
from wstrace.session import Session


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-e", "--exporter", "exporters", multiple=True, metavar="NAME[:OPT=VAL,...]", help="Where it goes.")
@click.option("--speed", type=float, default=0.0, help="1.0 = as fast as the records came; 0 = full speed.")
@time_window
def replay(
    paths: tuple[str, ...],
    exporters: tuple[str, ...],
    speed: float,
    start: float | None,
    end: float | None,
) -> None:
    """Feed trace files to exporters, through the enrichers: the summary on the terminal, or what -e names."""
    options = {"path": list(paths), "speed": speed, "start": start, "end": end}
    session = Session(
        sources=[Spec("replay", options)],
        exporters=list(exporters or ("console",)),
        record=False,
        config=Config.load(project=not is_administrator()),
    )
    with session:
        session.wait()
    exit_on_exporter_error(session)
