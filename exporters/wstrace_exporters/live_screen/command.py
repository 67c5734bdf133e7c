"""`wstrace top`: attaches to running processes and shows who faults and who grows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path

import click

from wstrace.cli.attach import pids_by_name
from wstrace.cli.common import debug_privilege, sources_option
from wstrace.errors import UsageError, missing

#: Snapshots take at most this share of a CPU, so that they are 50 times their own duration apart: each holds the lock
#: of the target's mappings meanwhile.
_SNAPSHOTS = "working_set:interval=1,max_cpu=0.02"
#: A read of the kernel's buffers costs as much as dozens of faults, and the screen is refreshed about once a second.
_FAULTS = "page_faults:poll_ms=500" if os.name == "posix" else "page_faults"
_ONE_SCREEN = "wstrace attach shows a summary at the end"


@click.command()
@click.option("-p", "--pid", "more", type=int, multiple=True, help="A process id.")
@click.option("--name", "names", multiple=True, metavar="GLOB", help="All processes whose name matches.")
@sources_option
@click.option("--children/--no-children", default=True, help="Trace processes that the target starts (default).")
@debug_privilege
@click.argument("pids", nargs=-1, type=int)
def top(more: tuple[int, ...], names: tuple[str, ...], sources: tuple[str, ...], children: bool,
        pids: tuple[int, ...]) -> int:  # fmt: skip
    """Watch which page faults and which memory grow in running processes; they go on.

    \b
    wstrace top 4711
    wstrace top --name 'gunicorn*'
    """
    wanted = list(dict.fromkeys([*pids, *more, *pids_by_name(names)]))
    if not wanted:
        raise UsageError("no process given", "write: wstrace top PID, or --name GLOB")
    try:
        import textual  # noqa: F401 - refused before anything is attached to
    except ImportError as error:
        raise missing("textual", error, "pip install 'wstrace[top]'", "wstrace top") from None
    refuse_shared_terminal(wanted, own_terminal())
    return _watch(wanted, sources, children)


def own_terminal() -> str:
    """The path of the terminal that the screen takes, which is that of stderr; "" = the system has no names for them.

    Raises UsageError: there is none.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("wstrace top needs a terminal for its screen", _ONE_SCREEN)
    name = getattr(os, "ttyname", None)
    return str(name(sys.stderr.fileno())) if name else ""


def refuse_shared_terminal(pids: Iterable[int], mine: str) -> None:
    """Raises UsageError where a process writes on the terminal that the screen would take.

    mine: the path of the terminal; "" = the system has no names for them.
    """
    from wstrace.plugins import own_platform

    platform = own_platform()
    if platform is None or not mine:
        return
    for pid in pids:
        found = platform.process(pid)  # None: attaching says so
        if found is not None and found.terminal and found.terminal == getattr(Path(mine).stat(), "st_rdev", 0):
            raise UsageError(
                f"process {pid} has this terminal, {mine}: its output and the screen would overwrite each other",
                "run wstrace top in another terminal",
            )


def _watch(pids: list[int], sources: Iterable[str], children: bool) -> int:
    # numpy's OpenBLAS starts a thread a CPU, each of which spins for its first 50 ms
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from wstrace.options import Config, parse_spec
    from wstrace.plugins import default_plugins
    from wstrace.session import Session
    from wstrace_exporters.live_screen.live import Live
    from wstrace_exporters.live_screen.screen import Screen

    plugins, live = default_plugins(), Live()
    wanted = {name: parse_spec(name) for name in plugins.defaults("source")}
    wanted |= {spec.name: spec for spec in map(parse_spec, (_FAULTS, _SNAPSHOTS, *sources))}
    with ExitStack() as opened:
        targets = [opened.enter_context(closing(plugins.platform.attach(pid))) for pid in pids]
        session = Session(targets=targets, sources=list(wanted.values()), exporters=[live], children=children,
                          record=False, plugins=plugins, config=Config.load(project=False))  # fmt: skip
        from wstrace_exporters.live_screen.app import Top

        with session:
            name = session.info.name if len(pids) == 1 else f"{len(pids):,} processes"
            Top(live, Screen(name)).run()
    return 0
