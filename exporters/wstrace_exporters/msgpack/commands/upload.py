"""`wstrace upload`: sends the parts of a trace that an object store did not take while it was recorded."""

from __future__ import annotations

import click

from wstrace.text import plural, printable
from wstrace_exporters.msgpack.write.upload import send_folder


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True)
def upload(folders: tuple[str, ...]) -> None:
    """Send the parts that a trace to s3://, gs:// or az:// left in FOLDER, under the keys that they were meant for.

    Each is removed once the store has it.
    """
    for folder in folders:
        n, url = send_folder(folder)
        click.echo(printable(f"{folder}: {plural(n, 'part')} sent to {url}"))
