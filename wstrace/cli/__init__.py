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
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from wstrace.entry_points import EntryPoint, entry_points
from wstrace.errors import OutputError, Unavailable, UsageError, WstraceError, lifted_by, named, print_as_lines, why
from wstrace.text import nearest

#: What ends a process in silence where nothing handles it. Windows has only the first of them.
_ENDING = ("SIGTERM", "SIGHUP")


class Interrupted(KeyboardInterrupt):
    """A signal other than Ctrl-C that ends the command. number: the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def interruption(stopped: BaseException | None) -> str:
    """What was interrupted, where that is known, or by which signal: `interrupted by SIGTERM`."""
    if stopped is not None and stopped.args:
        return str(stopped)
    return f"interrupted by {signal.Signals(getattr(stopped, 'exit_code', 128 + signal.SIGINT) - 128).name}"


@contextmanager
def before_the_trace() -> Iterator[None]:
    """A signal that ends the block says that it came before a trace: it leaves neither a file nor a report."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.args = (f"{interruption(stopped)} before the trace began: nothing was recorded",)
        raise


@contextmanager
def raised() -> Iterator[None]:
    """In the block, the first SIGTERM or SIGHUP raises Interrupted, and later ones are ignored.

    These would break off what undoes the command. A signal that is ignored, as SIGHUP under nohup, or that the caller
    handles stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _: object) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class Ending:
    """Whether the end of the trace was requested: by `needed` interrupts."""

    def __init__(self, needed: int) -> None:
        self.needed, self.interrupts = needed, 0
        self.starting = True
        self.early = 0  # the number of the signal that arrived while the session was starting

    @property
    def requested(self) -> bool:
        """Whether the trace is to end now."""
        return self.interrupts >= self.needed

    def arrive_early(self, number: int) -> None:
        """Notes a signal during the start, and breaks off a start that still hangs in a plugin STOP_SECONDS later.

        An error raised at once could be raised anywhere: between the creation of a file and the line that notes it, or
        when the command runs already. Windows has no such timer.
        """
        from wstrace.bus import STOP_SECONDS  # with all that a session needs

        if not self.early and not alarm_in(STOP_SECONDS):
            raise Interrupted(number)
        self.early = self.early or number

    def check(self) -> None:
        """Raises Interrupted when a signal has arrived during the start."""
        if self.early:
            raise Interrupted(self.early)

    def started(self) -> None:
        """Ends the start; a signal that came too late to be seen by check() is delivered now."""
        self.starting = False
        if self.early:
            signal.raise_signal(self.early)


def alarm_in(seconds: float) -> bool:
    """Has the system send SIGALRM after these seconds (0: never); returns False on Windows, which cannot."""
    set_timer = getattr(signal, "setitimer", None)
    if set_timer is not None:
        set_timer(getattr(signal, "ITIMER_REAL"), seconds)  # noqa: B009  Windows lacks it
    return set_timer is not None


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
        "snapshot": "Show what is in a process's memory, and where it came from.",
        "check": "Fail when a command takes more memory than its baseline.",
        "delta": "Show what a process brings in between two moments.",
        "diff": "Show what grew between two traces, and which line did it.",
        "empty": "Take a process's pages out of memory and show what stayed.",
        "file": "Show what of a file is in memory, and which of its parts.",
        "imports": "Show what imported Python modules bring into memory.",
        "ps": "Show the processes with their working sets.",
        "top": "Watch which page faults and which memory grow, live.",
        "unshared": "Show what forked processes copied of shared memory.",
        "wss": "Show how much of its memory a process uses.",
    },
    "Files": {
        "convert": "Merge traces, write other formats, or replay.",
        "info": "Show what a trace file holds, and whether it is whole.",
        "query": "Query a trace in SQL.",
    },
    "Set-up": {
        "doctor": "Check what this machine can trace, and how to enable the rest.",
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
    wstrace doctor                 what this machine can trace, and how to enable the rest
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
