"""A progress bar on stderr for work on files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar by a number of steps out of `total`.

    Args:
        what: the label of the bar.
        total: the number of steps when the work is done.
        shown: False draws no bar.
    """
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console as RichConsole
    from rich.progress import Progress

    with Progress(console=RichConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.update(task, advance=steps)
