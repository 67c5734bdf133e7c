"""What a plugin declares in words alone: a Command of the command line, a Format of files.

Apart from the classes of `wstrace.interfaces`, because `wstrace --help` needs the commands and none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Command:
    """A word of the command line.

    help is a sentence that begins with a verb; target is the path of its click command ("module:attribute"); section is
    the part of `--help` that lists it: "Record", "Inspect", "Files", "Set-up" or one of your own.
    """

    word: str
    help: str
    target: str
    section: str = "More"


@dataclass(frozen=True, slots=True)
class Format:
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
