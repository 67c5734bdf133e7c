"""The hooks that a plugin may implement.

A plugin is a module (or object) behind an entry point of the group `wstrace`, built-ins and third parties alike. Its
module must import nothing heavy: import what a hook returns inside the hook. Hooks only *find* classes; no record ever
passes through pluggy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pluggy

from wstrace.interfaces import Command, Enricher, Exporter, Format, Platform, Resolver, Source

hookspec = pluggy.HookspecMarker("wstrace")
hookimpl = pluggy.HookimplMarker("wstrace")


@hookspec
def wstrace_sources() -> Sequence[type[Source]]:  # type: ignore[empty-body]
    """When a session is built, and by `doctor`. By: who can take records from a system.

    Returns Source classes; each is known to users by its `name` (`-s NAME:opt=val`). Classes only: the session makes
    the objects. On a system that it does not serve a source is still returned; its start() raises Unavailable.
    """


@hookspec
def wstrace_enrichers() -> Sequence[type[Enricher]]:  # type: ignore[empty-body]
    """When a session is built. By: who adds columns to the records of others.

    Returns Enricher classes. They run in the order of their plugins' names; one that raises is detached.
    """


@hookspec
def wstrace_resolvers() -> Sequence[type[Resolver]]:  # type: ignore[empty-body]
    """When a session or a report is built. By: who can name what lies at an offset of a file.

    Returns Resolver classes, made without arguments and handed to exporters in `Context.resolvers` by `name`.
    """


@hookspec
def wstrace_exporters() -> Sequence[type[Exporter]]:  # type: ignore[empty-body]
    """When a session is built. By: who takes batches to an output.

    Returns Exporter classes, known to users by their `name` (`-e NAME:opt=val`).
    """


@hookspec
def wstrace_commands() -> Sequence[Command]:  # type: ignore[empty-body]
    """When the command line starts, `--help` included. By: who adds a word to it.

    Returns Commands: word, one-line help and "module:attribute" of a click command, imported only when it is used.
    """


@hookspec
def wstrace_formats() -> Sequence[Format]:  # type: ignore[empty-body]
    """When a trace is written by `convert` or `Trace.save`, or read by `query`. By: who writes traces in a file format.

    Returns Formats; each is known to users by the suffixes of its file names. A suffix that another plugin has is left
    to that one, wstrace's own first, and the plugin is told to have failed.
    """


@hookspec
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:  # type: ignore[empty-body]
    """When a session or a report is built. By: who adds to the ledger at stages that `wstrace.ledger.STAGES` lacks.

    Returns stage -> (is it loss?, what it counts, in words). Asked of every plugin, for a trace file may tell of
    stages of a plugin that has no part in its report.
    """


@hookspec
def wstrace_target_environment(exporters: Sequence[str]) -> Mapping[str, str]:  # type: ignore[empty-body]
    """When a command is about to be launched. By: who wants the target to know something (a trace to continue).

    Args:
        exporters: names of the exporters that the trace will have.

    Returns variables that are added to the target's environment; {} for none.
    """


@hookspec(firstresult=True)
def wstrace_platform() -> Platform | None:
    """When a process is launched or attached. By: wstrace_os.

    Returns the Platform of the running system, or None to leave it to another plugin.
    """
