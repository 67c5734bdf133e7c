"""The hooks that a plugin may implement.

A plugin is a module (or object) behind an entry point of the group `wstrace`, for built-ins and third parties alike.
Its module must import nothing heavy: import what a hook returns inside the hook. Hooks say what a plugin offers; no
record ever passes through pluggy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstrace.interfaces import Enricher, Exporter, Platform, Resolver, Source


class Reference(NamedTuple):
    """A source, enricher or exporter that is imported when a trace uses it: what a hook gives in place of a class.

    name: that of the class, as users know it.
    target: "module:class".
    takes_output, default, reports: as the class's own, which decide whether a trace uses it.
    by_the_way: the options with which `wstrace run` adds the source where a trace is kept and no source was chosen;
        "" = it does not.
    """

    name: str
    target: str
    takes_output: bool = False
    by_the_way: str = ""
    default: bool = False
    reports: bool = False


class Format(NamedTuple):
    """A file format in which traces are written by `convert -o FILE` and `Trace.save(path)`.

    name: as users know it ("csv").
    suffixes: the file name endings that select it, with the dot, in lower case; the first one is the usual one.
    help: one line.
    write: "module:function", imported when it is used. It is called as write(taken, file, **options) with what it takes
        and an open binary file, and returns the number of rows written. Its options are its keyword-only, annotated
        arguments. It opens no file itself, so that one that raises leaves nothing behind.
    takes: "trace" = all of it, a Trace; "rows" = the rows of one stream that the user selected (`--stream`,
        `--columns`, `--start`, `--end`), a Batches.
    """

    name: str
    suffixes: tuple[str, ...]
    help: str
    write: str
    takes: Literal["rows", "trace"] = "trace"


class Dimension(NamedTuple):
    """What rows of a report can be by.

    name: in `--by` and in JSON.
    title: the heading of its column.
    keys: the keys of a cube's cells that it needs; one that no cube has otherwise is a column of faults.
    labels: (Cube) -> Labels of its cells, see wstrace.analysis.
    code: (Batch, Names) -> the first of its keys, of each fault of a batch; None = it is a column of faults.
    owner: whether a row says who brought a page, so that one is `(not known)`.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    labels: Callable[[Any], Any]
    code: Callable[[Any, Any], Any] | None = None
    owner: bool = False


hookspec = pluggy.HookspecMarker("wstrace")
hookimpl = pluggy.HookimplMarker("wstrace")


@hookspec
def wstrace_sources() -> Sequence[type[Source] | Reference]:
    """When a session is built, and by `doctor`. By: plugins that take records from a system.

    Returns Source classes, known to users by their `name` (`-s NAME:opt=val`); the session makes the objects. A source
    is returned also on a system that it does not support, where its start() raises Unavailable. Instead of a class that
    few sessions need, a Reference saves all others its import.
    """


@hookspec
def wstrace_enrichers() -> Sequence[type[Enricher] | Reference]:
    """When a session is built. By: plugins that add columns to the records of others.

    Returns Enricher classes, or References to them. They run in the alphabetical order of their own names; one that
    raises is detached.
    """


@hookspec
def wstrace_resolvers() -> Sequence[type[Resolver]]:
    """When a session or a report is built. By: plugins that can name what lies at an offset of a file.

    Returns Resolver classes, made without arguments; exporters find them in `Context.resolvers` by `name`.
    """


@hookspec
def wstrace_exporters() -> Sequence[type[Exporter] | Reference]:
    """When a session is built. By: plugins that write batches to an output.

    Returns Exporter classes, known to users by their `name` (`-e NAME:opt=val`), or References to them.
    """


@hookspec
def wstrace_formats() -> Sequence[Format]:
    """When a trace is written by `convert` or `Trace.save`, or read by `query`. By: plugins with a file format.

    Returns Formats, known to users by the suffixes of their file names. The first plugin with a suffix keeps it,
    wstrace's own first; another plugin with that suffix is reported as failed.
    """


@hookspec
def wstrace_dimensions() -> Sequence[Dimension]:
    """When a report is made. By: plugins that know what else the rows of a table can be by.

    Returns Dimensions, known to users by their `name` (`report --by NAME`). wstrace's own keep their names.
    """


@hookspec
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """When a session or a report is built. By: plugins whose ledger stages are not in `wstrace.ledger.STAGES`.

    Returns stage -> (is it loss?, what it counts, in words). Every plugin is queried, because a trace file may contain
    stages of a plugin that takes no part in its report.
    """


@hookspec
def wstrace_target_environment(exporters: Sequence[str]) -> Mapping[str, str]:
    """When a command is about to be launched. By: plugins that pass something to the target (a trace to continue).

    Args:
        exporters: names of the exporters that the trace will have.

    Returns variables that are added to the target's environment; {} for none.
    """


@hookspec(firstresult=True)
def wstrace_platform() -> Platform | None:
    """When a process is launched or attached. By: wstrace_plugins.os.

    Returns the Platform of the running system, or None to leave it to another plugin.
    """
