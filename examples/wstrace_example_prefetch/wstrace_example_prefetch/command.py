"""`wstrace prefetch`: makes a list from a trace, or reads one ahead."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable

import click

import wstrace
from wstrace.errors import CommandNotFound, UsageError, WstraceError
from wstrace.output_file import whole_file
from wstrace.text import plural, printable, size
from wstrace_example_prefetch.start_list import Range, encoded, made, read

#: One call of posix_fadvise() reads no more than the device's read-ahead, of which this is the smallest usual one.
PIECE = 128 << 10


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", metavar="FILE", help="Write the list of the trace to FILE.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
@click.option("--apply", "path", metavar="LIST", help="Read the files of a list ahead; then run COMMAND, if any.")
@click.option("--limit", default=1024, show_default=True, metavar="MIB", help="Read at most this much ahead.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TRACE.wst] [-- COMMAND]")
def prefetch(words: tuple[str, ...], output: str | None, force: bool, path: str | None, limit: int) -> None:
    """Read what a start needs of its files ahead of it, by a list made from the trace of an earlier start.

    \b
    wstrace run -o x.wst -- COMMAND                   record a start
    wstrace prefetch x.wst -o start.list              make the list
    wstrace prefetch --apply start.list               read it ahead, for example at boot
    wstrace prefetch --apply start.list -- COMMAND    read it ahead beside the command
    """
    if path is None:
        if len(words) != 1 or output is None:
            raise UsageError("what is to be done?", "write: wstrace prefetch TRACE.wst -o LIST, or --apply LIST")
        _make(words[0], output, force)
    elif words:
        _become(words, path, limit << 20)
    else:
        _say(applied(read(path), limit << 20))


def _make(trace_path: str, output: str, force: bool) -> None:
    with wstrace.open_trace(trace_path) as trace:
        ranges, gone = made(trace)
    if not ranges:
        raise UsageError(f"{trace_path} touches no file that could be read ahead")
    with whole_file(output, force=force) as file:
        file.writelines(encoded(ranges))
    n_bytes, files = sum(one.length for one in ranges), len({one.path for one in ranges})
    left_out = f"; {plural(gone, 'file')} left out: gone, or changed since the trace" if gone else ""
    _say(f"{size(n_bytes)} of {plural(files, 'file')} are in {printable(output)}{left_out}")


def applied(ranges: Iterable[Range], limit: int) -> str:
    """Begins to read ranges into the page cache, at most `limit` bytes; says how much, and what was skipped."""
    skipped: dict[str, str] = {}
    done: Counter[str] = Counter()
    for one in ranges:
        if one.path in skipped:
            continue
        if sum(done.values()) + one.length > limit:
            skipped[one.path] = "past --limit"
            continue
        try:
            _read_ahead(one)
        except OSError as error:
            skipped[one.path] = error.strerror or str(error)
        else:
            done[one.path] += one.length
    reasons = ", ".join(f"{n} {why}" for why, n in sorted(Counter(skipped.values()).items()))
    note = f"; skipped {plural(len(skipped), 'file')}: {printable(reasons)}" if skipped else ""
    return f"{size(sum(done.values()))} of {plural(len(done), 'file')} are read ahead{note}"


def _read_ahead(one: Range) -> None:
    """Begins to read a range. Raises OSError, also for a file that is not the one of the list."""
    if not stat.S_ISREG(os.lstat(one.path).st_mode):  # to open a device may do something
        raise OSError("not a regular file")
    fd = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if (status.st_size, status.st_mtime_ns) != (one.size, one.mtime_ns) or not stat.S_ISREG(status.st_mode):
            raise OSError("changed since the list was made")
        for at in range(one.offset, one.offset + one.length, PIECE):
            os.posix_fadvise(fd, at, min(PIECE, one.offset + one.length - at), os.POSIX_FADV_WILLNEED)
    finally:
        os.close(fd)


def _become(command: tuple[str, ...], path: str, limit: int) -> None:
    """Takes the command's place, while an orphan reads the list ahead; what is wrong with it is only said."""
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            try:
                applied(read(path), limit)
            except WstraceError as error:
                _say(f"nothing is read ahead: {error}")
        os._exit(0)
    os.waitpid(child, 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise CommandNotFound(f"{command[0]}: {error.strerror}") from None


def _say(text: str) -> None:
    click.echo(f"wstrace: {printable(text)}", err=True)
