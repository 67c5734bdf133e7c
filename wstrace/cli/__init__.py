"""The command line: what `--help` says, which command a word names, and the one line and exit code of every error.

Commands are entry points of the group `wstrace.commands`, in other distributions too. `--help` imports none of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
from collections.abc import Sequence

import click

from wstrace.cli.signals import before_the_trace, interruption, raised
from wstrace.entry_points import EntryPoint, entry_points
from wstrace.errors import OutputError, Unavailable, UsageError, WstraceError
from wstrace.guard import lifted_by, named, why
from wstrace.logs import print_as_lines
from wstrace.text import nearest

#: Exit codes of an internal error and of Ctrl-C; those of errors stand on the classes in wstrace.errors.
INTERNAL, INTERRUPTED = 125, 130
#: Error numbers of a write to an output that is full or failing.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))

#: What `--help` says of wstrace's own commands, by section and in its order.
_HELP = {
    "Record": {
        "run": "Trace a command from its first instruction.",
        "attach": "Trace running processes; they go on when the trace ends.",
        "daemon": "Trace the cgroups of a whole node, within limits.",
    },
    "Inspect": {
        "report": "Show who brought the memory of a trace, command or process.",
        "snapshot": "Show what is in a process's memory, and where it is from.",
        "check": "Fail when a command takes more memory than its baseline.",
        "delta": "Show what a process brings in between two moments.",
        "diff": "Show what a second trace has more in memory, and by whom.",
        "empty": "Take a process's pages out of memory and show what stayed.",
        "file": "Show what of a file is in memory, and which of its parts.",
        "imports": "Show what imported Python modules bring into memory.",
        "ps": "Show the processes with their working sets.",
        "top": "Watch which page faults and which memory grow, live.",
        "unshared": "Show what forked processes copied of shared memory.",
        "wss": "Show what a process uses of its memory in a time.",
    },
    "Files": {
        "convert": "Write traces as one, whole, or in another format; replay them.",
        "info": "Show what a trace file holds, and whether it is whole.",
        "query": "Ask a trace in SQL.",
    },
    "Set-up": {
        "doctor": "Show what can be traced here, and what lifts the rest.",
        "plugins": "Show the plugins found: version, state, hooks, error.",
    },
}


class Words(click.Group):
    """A click group of the entry points of the group `wstrace.commands`, each imported only when it is used."""

    def _commands(self) -> dict[str, EntryPoint]:
        """Word -> its entry point; wstrace's own comes before that of another distribution."""
        found = sorted(
            entry_points("wstrace.commands"), key=lambda entry: (entry.distribution == "wstrace", entry.name)
        )
        return {entry.name: entry for entry in found}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(self._commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command. Raises UsageError for an unknown name; the error suggests the nearest one."""
        commands = self._commands()
        if cmd_name not in commands:
            from wstrace.plugins import NOT_INSTALLED

            unknown = f"there is no command {cmd_name!r}", nearest(cmd_name, commands)
            raise UsageError(*(unknown if "run" in commands else NOT_INSTALLED))
        records = before_the_trace() if cmd_name in _HELP["Record"] else contextlib.nullcontext()
        with records, named(f"the command {cmd_name!r}"):
            loaded = commands[cmd_name].load()
            if not isinstance(loaded, click.Command):
                raise TypeError(f"{commands[cmd_name].value} is {type(loaded).__name__}, not a click command")
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes every command's name and one line of help, without importing the commands."""
        own = {word for words in _HELP.values() for word in words}
        more = {word: f"From {entry.distribution}." for word, entry in self._commands().items() if word not in own}
        for section, words in {**_HELP, "More": more}.items():
            if words:
                with formatter.section(section):
                    formatter.write_dl(list(words.items()))


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import wstrace

        click.echo(f"wstrace {wstrace.__version__}")
        ctx.exit()


@click.group(cls=Words, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def wstrace() -> None:
    """Who brought which page into memory, from which file, by which instruction and thread.

    \b
    wstrace run -- COMMAND ...     trace a command from its first instruction
    wstrace run -o x.wst app.py    the same for Python, kept in a file
    wstrace report x.wst           the summary again; --by file, thread, process ...
    wstrace doctor                 what can be traced here, and what lifts the rest
    """
    if os.environ.get("WSTRACE_DEBUG") != "1":
        print_as_lines()


def main(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code; every error becomes one line on stderr.

    SIGTERM and SIGHUP end it as Ctrl-C does, with 128 + their number. WSTRACE_DEBUG=1 shows the traceback instead.
    """
    _speak_utf8()
    stdout = sys.stdout
    try:
        with raised():
            result = wstrace.main(list(arguments), prog_name="wstrace", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()  # flushed here, where a full disk can still be reported
    except Exception as error:
        if os.environ.get("WSTRACE_DEBUG") == "1":
            raise
        return _complain(error)
    except SystemExit:
        # Where nobody reads what a command writes itself, click wraps stdout, so that its flush fails in silence, and
        # ends with 1: main() of click/core.py, 8.1 to 8.5.
        if sys.stdout is stdout:
            raise
        return _complain(BrokenPipeError())
    except KeyboardInterrupt as stopped:
        return _interrupted(stopped)
    finally:
        _give_up_what_cannot_be_written()
    return result if isinstance(result, int) else 0


def _give_up_what_cannot_be_written() -> None:
    """The interpreter tries once more at exit, and ends with 120 of its own where that fails: a terminal has closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _complain(error: Exception) -> int:
    if _nobody_reads(error):
        return 0
    if isinstance(error, click.exceptions.Abort):  # what click makes of a KeyboardInterrupt
        return _interrupted(error.__cause__)
    if isinstance(error, click.ClickException):
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2; older ones print the help themselves
            click.echo(error.format_message(), err=True)
            return INTERNAL
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context is not None else ""
        text, code = f"{error.format_message().rstrip('.')}{hint}", INTERNAL
    elif isinstance(error, WstraceError):
        text, code = str(error), error.exit_code
    elif isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        text, code = f"cannot write to stdout: {error.strerror}", OutputError.exit_code
    elif limit := lifted_by(error):  # the system's, before anything of ours could name what has met it
        text, code = f"{why(error)}; {limit}", Unavailable.exit_code
    else:
        text, code = f"internal error: {type(error).__name__}: {error}; WSTRACE_DEBUG=1 shows where", INTERNAL
    _say(text)
    return code


def _interrupted(stopped: BaseException | None) -> int:
    """The exit code for the signal; says on stderr what was interrupted, as nothing else tells it of a lone process."""
    _say(interruption(stopped))
    return int(getattr(stopped, "exit_code", INTERRUPTED))


def _say(text: str) -> None:
    from wstrace.text import printable

    with contextlib.suppress(OSError):  # stderr itself may be full or closed; the exit code remains
        click.echo(f"wstrace: {printable(text)}", err=True)


def _nobody_reads(error: Exception) -> bool:
    """Whether the error means that the reader of stdout has closed the pipe, as `| head` does."""
    if isinstance(error, BrokenPipeError) or not isinstance(error, OSError):
        return isinstance(error, BrokenPipeError)
    # On a system without SIGPIPE (Windows), the C runtime reports such a pipe as EINVAL: bpo-19612.
    from_runtime = error.errno == errno.EINVAL and error.filename is None and getattr(error, "winerror", None) is None
    return from_runtime and not hasattr(signal, "SIGPIPE") and stat.S_ISFIFO(os.fstat(1).st_mode)


def _speak_utf8() -> None:
    """Makes stdout and stderr write the escape of a character that they cannot encode, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
