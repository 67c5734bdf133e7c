"""Writes a trace in a file format: finds the format by the suffix, and guards its call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import IO

from wstrace.errors import OutputError, UsageError, WstraceError, lifted_by, pass_interrupt, why
from wstrace.hookspecs import Format
from wstrace.output_file import NO_ROOM, whole_file
from wstrace.plugins import Plugins, default_plugins, load
from wstrace.table import Batches, Records, Selection
from wstrace.text import nearest


class Rows(int):
    """How many rows a format has written, and a note: what its reader must know of them, "" = nothing."""

    note: str

    def __new__(cls, n: int, note: str = "") -> Rows:
        """A number like any other."""
        found = super().__new__(cls, n)
        found.note = note
        return found


def format_of(path: str, plugins: Plugins | None = None) -> tuple[str, Format]:
    """(plugin, format) for the suffix of a file's name.

    Raises UsageError: no format has this suffix; the message names the known ones.
    """
    plugins = plugins or default_plugins()
    formats = plugins.formats
    name = os.path.basename(path).lower()
    fits = [suffix for suffix in formats if name.endswith(suffix) and name != suffix]
    if not fits:
        suffix = PurePath(name).suffix
        remedies = [*plugins.failures("wstrace_formats"), f"end it in {', '.join(sorted(formats))}"]
        raise UsageError(f"{path}: the format {suffix!r} is not known", "; ".join(remedies))
    return formats[max(fits, key=len)]


def save(
    trace: Records,
    path: str,
    selection: Selection,
    options: Mapping[str, object],
    *,
    force: bool = False,
    plugins: Plugins | None = None,
) -> int:
    """Writes a trace to a file in the format that its suffix selects; returns the number of rows.

    Args:
        trace: the trace to write.
        path: the file, which appears only once it is complete.
        selection: the rows, for a format that takes those of one stream; without a stream those of `page_fault`.
        options: the format's own. None = not given.
        force: overwrite an existing file.
        plugins: the plugins that provide formats; None = those of the environment.

    Raises:
        UsageError: no such format, or it has no such option; the trace has no such stream or column.
        OutputError: the file exists or cannot be written, or the format failed: the message names its plugin.
    """
    plugin, chosen = format_of(path, plugins)
    named = f"the format {chosen.name!r} of the plugin {plugin!r}"
    try:
        write = load(chosen.write)
    except (ImportError, AttributeError) as missing:
        raise OutputError(f"{named} cannot be used: {missing}", "wstrace plugins shows all") from None
    if not callable(write):
        raise OutputError(f"{named} cannot be used: {chosen.write} is no function", "wstrace plugins shows all")
    given = dict(options) if chosen.takes == "rows" else {**selection._asdict(), **options}
    given = {name: value for name, value in given.items() if value is not None}
    _check(chosen, write, given)
    taken = _selected(trace, selection) if chosen.takes == "rows" else trace
    with whole_file(path, force=force) as file:
        try:
            rows = _rows(write(taken, file, **given), trace, file)
        except WstraceError:
            raise
        except OSError as error:
            failed = f"cannot write {path}: {error.strerror or error} ({named})"
            raise OutputError(failed, NO_ROOM.get(error.errno or 0, "")) from None
        except BaseException as error:
            pass_interrupt(error)
            remedy = lifted_by(error) or "no file was written"
            raise OutputError(f"{named} failed: {why(error)}", remedy) from error
        return rows


def _rows(rows: object, trace: Records, file: IO[bytes]) -> int:
    """What a format returned. Raises TypeError, ValueError: it is no number of rows, or trace or file is closed."""
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
        raise TypeError(f"it returned {rows!r}, not the number of rows")
    for what, closed in (("trace", trace.closed), ("file", file.closed)):
        if closed:
            raise ValueError(f"it closed the {what}, which is not its own")
    return rows


def _check(chosen: Format, write: Callable[..., object], given: dict[str, object]) -> None:
    """Raises UsageError for an option that the format does not have."""
    parameters = inspect.signature(write).parameters.values()
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    for name in given:
        if name not in known:
            all_of_it = "it takes the whole trace" if name in Selection._fields else nearest(name, known)
            raise UsageError(f"the format {chosen.name!r} has no option {name!r}", all_of_it)


def _selected(trace: Records, selection: Selection) -> Batches:
    """The selected rows. Raises UsageError for an unknown stream or column, and names the nearest known one."""
    stream = selection.stream or "page_fault"
    if stream not in trace.streams:
        raise UsageError(f"the trace has no stream {stream!r}", nearest(stream, trace.streams))
    if selection.columns is not None:
        known = [column.name for column in trace.columns_of(stream)]
        for name in selection.columns:
            if name not in known:
                raise UsageError(f"{stream} has no column {name!r}", nearest(name, known))
    return Batches(trace, selection._replace(stream=stream))
