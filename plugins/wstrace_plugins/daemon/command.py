"""`wstrace daemon`: traces the cgroups of a node until SIGTERM."""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

import click

from wstrace.text import printable
from wstrace_plugins.os import backend

#: Linux capability -> its bit, and what a trace lacks without it: capabilities(7).
#: Source: include/uapi/linux/capability.h.
_NEEDED = {
    "CAP_PERFMON": (38, "the kernel gives no page faults of other processes"),
    "CAP_SYS_PTRACE": (
        19,
        "nothing is read below /proc/PID/root, where the files of containers are, on older kernels no mappings either",
    ),
    "CAP_IPC_LOCK": (14, "the kernel's buffers find room only within kernel.perf_event_mlock_kb"),
    "CAP_DAC_READ_SEARCH": (2, "programs that only their owners may read have neither build ids nor symbols"),
}
_ADMIN = 21  # CAP_SYS_ADMIN stands for CAP_PERFMON, as before Linux 5.8


@click.command()
@click.option("--config", metavar="FILE", help="The settings, TOML; see docs/daemon.md.")
@click.option("--check", is_flag=True, help="Check FILE and end.")
def daemon(config: str | None, check: bool) -> int:
    """Trace the page faults of a node's cgroups, within limits on CPU and memory, until SIGTERM.

    \b
    wstrace daemon --config /etc/wstrace.toml --check
    wstrace daemon --config /etc/wstrace.toml
    """
    if check:
        from wstrace.options import Config
        from wstrace.plugins import default_plugins
        from wstrace_plugins.daemon.settings import Settings

        Settings(Config.load(config, project=False), default_plugins())
        click.echo(f"{printable(config or 'the defaults')}: no error")
        return 0
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    node = backend("wstrace_plugins.daemon").NodeDaemon(config, _say)
    everything = ["no --config FILE: the page faults of the whole machine are traced, and go to no output"] * (
        config is None
    )
    for line in (*everything, *missing()) if not node.goes_on else ():
        _say(line)
    node.run(_ready)
    _notify("STOPPING=1")
    _say("ended")
    return 0


def _ready(what: str) -> None:
    _notify("READY=1")
    _say(what)


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


def missing(status: Path = Path("/proc/self/status")) -> list[str]:
    """A line for each capability that this process lacks; [] where the system has none."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text("ascii", "replace"), re.MULTILINE)
    except OSError:
        return []
    held = int(found[1], 16) if found else -1
    admin = held >> _ADMIN & 1
    return [
        f"without {name} {lacks}"
        for name, (bit, lacks) in _NEEDED.items()
        if not held >> bit & 1 and not (name == "CAP_PERFMON" and admin)
    ]
