"""What a plugin declares in words alone: a Format of files, a Reference to a class, a Dimension, a Measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple


class Reference(NamedTuple):
    """A source or exporter that is imported when a trace uses it: what a hook gives in place of a class.

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
    sql: the table function of DuckDB that reads such a file, for `query`; "" = there is none.
    """

    name: str
    suffixes: tuple[str, ...]
    help: str
    write: str
    takes: Literal["rows", "trace"] = "trace"
    sql: str = ""


class Dimension(NamedTuple):
    """What rows of a report can be by.

    name: in `--by` and in JSON.
    title: the heading of its column.
    about: what it is, in a sentence.
    keys: the keys of a cube's cells that it needs; one that no cube has otherwise is a column of faults.
    labels: (Cube) -> Labels of its cells, see wstrace.analysis.
    code: (Batch, Names) -> the first of its keys, of each fault of a batch; None = it is a column of faults.
    owner: whether a row says who brought a page, so that one is `(not known)`.
    """

    name: str
    title: str
    about: str
    keys: tuple[str, ...]
    labels: Callable[[Any], Any]
    code: Callable[[Any, Any], Any] | None = None
    owner: bool = False


class Measure(NamedTuple):
    """What a report sums: a column of its tables.

    name: in JSON and in `--sort`.
    title: the heading of its column.
    about: what it is, in a sentence.
    unit: of its sums.
    always: whether its column is shown where all rows have none of it, too.
    """

    name: str
    title: str
    about: str
    unit: Literal["bytes", "count", "ns"] = "bytes"
    always: bool = False
