"""`wstrace daemon`: traces the cgroups of a node until SIGTERM; SIGHUP reads its settings again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from wstrace.text import printable

if TYPE_CHECKING:
    from wstrace_plugins.daemon.daemon import NodeDaemon


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", metavar="FILE", help="The settings, TOML; see docs/daemon.md.")
@click.option("--check", is_flag=True, help="Check FILE and end.")
def daemon(config: str | None, check: bool) -> int:
    """Trace the page faults of a node's cgroups, within limits on CPU and memory, until SIGTERM.

    SIGHUP reads FILE again: if it is refused, the old settings go on.

    \b
    wstrace daemon --config /etc/wstrace.toml --check
    wstrace daemon --config /etc/wstrace.toml
    """
    # numpy's OpenBLAS starts a thread a CPU, each of which spins for its first 50 ms
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from wstrace.plugins import default_plugins
    from wstrace_plugins.daemon.daemon import NodeDaemon
    from wstrace_plugins.daemon.rights import missing
    from wstrace_plugins.daemon.settings import load

    if check:
        load(config, default_plugins())
        click.echo(f"{printable(config or 'the defaults')}: no error")
        return 0
    for line in missing():
        _say(line)
    node = NodeDaemon(config, default_plugins(), _say)
    with _signals(node):
        node.run(lambda: _ready(node))
    _notify("STOPPING=1")
    _say("ended")
    return 0


def _ready(node: NodeDaemon) -> None:
    _notify("READY=1")
    _say(f"tracing{f'; its state: {node.address}' if node.address else ''}")


@contextmanager
def _signals(node: NodeDaemon) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the daemon, SIGHUP makes it read its settings again."""

    def end(_number: int, _frame: object) -> None:
        node.end()

    def reload(_number: int, _frame: object) -> None:
        node.reload()

    handlers = {"SIGTERM": end, "SIGINT": end, "SIGHUP": reload}
    known = {getattr(signal, name): act for name, act in handlers.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, act) for number, act in known.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    with suppress(OSError):  # stderr itself may be full or closed
        print(f"wstrace: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201


def _notify(state: str) -> None:
    """Tells systemd (sd_notify(3)), where it asks for it; an address with @ is one of the abstract name space."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path or not hasattr(socket, "AF_UNIX"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
