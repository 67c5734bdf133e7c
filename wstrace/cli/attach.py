"""`wstrace attach`: traces running processes and leaves them running at the end."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

import click

from wstrace.cli.common import Duration
from wstrace.cli.tracing import RECORDER, Recording, Tracing, tracing_options
from wstrace.errors import TargetExited, UsageError
from wstrace.options import Spec, parse_spec
from wstrace.plugins import own_platform

_ON = "When to record what is kept: also growth=100MiB/30s, end, psi=300ms/2s; may be repeated."


@click.command()
@tracing_options
@click.option("-p", "--pid", "more", type=int, multiple=True, help="A process id.")
@click.option("--name", "names", multiple=True, metavar="GLOB", help="All processes whose name matches.")
@click.option("--keep", type=Duration(), metavar="2m", help="Keep only the last minutes, and record them when --on.")
@click.option("--on", "triggers", multiple=True, metavar="rss=400MiB|oom_kill|...", help=_ON)
@click.option("--cgroup", multiple=True, metavar="PATH|GLOB", help="All processes of a control group, new ones too.")
@click.option("--container", multiple=True, metavar="ID", help="Those of a container: 8 or more digits of its id.")
@click.option("--unit", multiple=True, metavar="NAME", help="Those of a unit of systemd: nginx.service.")
@click.option("-a", "--all", "everything", is_flag=True, help="All processes of the machine.")
@click.argument("pids", nargs=-1, type=int)
def attach(
    options: Tracing,
    more: tuple[int, ...],
    names: tuple[str, ...],
    keep: float | None,
    triggers: tuple[str, ...],
    pids: tuple[int, ...],
    everything: bool,
    **groups: tuple[str, ...],
) -> int:
    """Trace running processes until Ctrl-C, --duration or their end; they go on.

    \b
    wstrace attach 4711 --duration 30s
    wstrace attach --name 'redis-*' -o redis.wst
    wstrace attach 4711 --keep 2m --on rss=400MiB
    wstrace attach --container 0a1b2c3d4e5f -o api.wst
    wstrace attach -a --duration 10s -o node.wst
    """
    if keep is not None or triggers:
        options = _flight_recorder(options, keep, triggers)
    recording = Recording(options)
    wanted = list(dict.fromkeys([*pids, *more, *pids_by_name(names)]))
    chosen = [(kind, name) for kind, given in groups.items() for name in given] + [("all", "")] * everything
    if wanted and chosen:
        raise UsageError("processes and control groups exclude each other", "trace them in two commands")
    if not wanted and not chosen:
        raise UsageError(
            "no process given", "write: wstrace attach PID, --name GLOB, --container ID, --unit NAME or -a"
        )
    platform = recording.plugins.platform
    with ExitStack() as opened:
        other = everything or recording.options.sources or recording.options.over_time
        if (recording.kept or recording.answers) and not other:
            recording.options = recording.options._replace(sources=("working_set",))  # at the start and at the end
        if chosen:
            return recording.record((), groups=[opened.enter_context(closing(platform.group(*one))) for one in chosen])
        found = []
        for pid in wanted:
            try:
                found.append(opened.enter_context(closing(platform.attach(pid))))
            except TargetExited:
                if pid in (*pids, *more):  # of those with a name, one may have ended
                    raise
        if not found:
            raise TargetExited(f"every process named {' or '.join(names)} has ended")
        return recording.record(found)


def _flight_recorder(options: Tracing, keep: float | None, triggers: tuple[str, ...]) -> Tracing:
    """The options of a flight recorder: what -o names are its recordings, and there is no other file."""
    given = {"path": options.output, "keep": keep}
    sources = _with(options.sources, "triggers", {"on": triggers} if triggers else {})
    recorder = {name: value for name, value in given.items() if value is not None}
    exporters = _with(options.exporters, RECORDER, recorder)
    return options._replace(sources=sources, exporters=exporters, output=None)


def _with(specs: Sequence[str | Spec], name: str, options: Mapping[str, object]) -> tuple[str | Spec, ...]:
    """The specs and one more of this name, with what the last one of it was given beside these options."""
    same = [spec.options for spec in map(parse_spec, specs) if spec.name == name]
    return (*specs, Spec(name, {**(same[-1] if same else {}), **options}))


def pids_by_name(names: tuple[str, ...]) -> list[int]:
    """The ids of the other processes whose name matches a glob. Raises TargetExited when there is none."""
    if not names:
        return []
    platform = own_platform()
    found = [
        pid
        for pid, name in (platform.process_names() if platform is not None else {}).items()
        if pid != os.getpid() and any(fnmatch.fnmatch(name, glob) for glob in names)
    ]
    if not found:
        raise TargetExited(f"no process is named {' or '.join(names)}", "wstrace ps shows the names")
    return found
