"""The errors that wstrace raises: each names what failed, why, and what to do.

The command line prints each as one line on stderr and exits with the exit code of its class. The guards around calls of
plugins turn whatever those raise into such errors, which name the plugin; the log has what is no error.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from wstrace.text import printable

if TYPE_CHECKING:
    import logging


class WstraceError(Exception):
    """Base of all errors of wstrace. `why` says what failed; `remedy`, what the reader can do about it, may be ""."""

    exit_code = 125

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


class UsageError(WstraceError):
    """An option, a name or a value is not one that wstrace accepts."""


class BudgetError(WstraceError):
    """A command takes more page faults or memory than its baseline or a limit allows (`wstrace check`)."""

    exit_code = 120


class LossError(WstraceError):
    """Records were lost under `--fail-on-loss`, although every exporter wrote all that it accepted."""

    exit_code = 121


class Unavailable(WstraceError):
    """The system, kernel or privilege does not permit what was requested; the error says why and what lifts it."""

    exit_code = 122


def missing(package: str, error: ImportError, remedy: str, who: str = "") -> Unavailable:
    """What it means that a package cannot be imported: it is not installed, which `remedy` mends, or it is broken.

    A library that finds no memory below `ulimit -v`, or lacks one of the system's, is no reason to install it again.
    error: what its import raised. remedy: the command that installs it. who: what needs it, as the user calls it; "" =
    that goes without saying.
    """
    needed = f"{who} needs the package {package}, which" if who else f"the package {package}"
    if isinstance(error, ModuleNotFoundError):
        return Unavailable(f"{needed} is not installed", remedy)
    return Unavailable(f"{needed} is installed, and cannot be loaded: {' '.join(str(error).split())}")


class TargetExited(Unavailable):
    """The process to trace has ended, or there is none."""


class OutputError(WstraceError):
    """An output could not be created or written, or lacks records that its exporter had accepted."""

    exit_code = 123


class TraceFileError(WstraceError):
    """A file is not a trace file, or its content violates the limits of the format."""


class TraceFileNotFound(TraceFileError, FileNotFoundError):
    """The trace file does not exist. This is also a FileNotFoundError, with errno and filename."""

    def __init__(self, path: str) -> None:
        super().__init__(f"cannot read {path}: {os.strerror(errno.ENOENT)}")
        self.errno, self.strerror, self.filename = errno.ENOENT, os.strerror(errno.ENOENT), path


class PluginError(WstraceError):
    """A source, enricher, exporter or other plugin raised an unexpected error; the text names the plugin."""


class LimitError(PluginError):
    """A source, enricher, exporter or other plugin met a limit of this process; the remedy says which one."""

    exit_code = Unavailable.exit_code


class CannotExecute(WstraceError):
    """The command to launch exists, but the system refuses to execute it."""

    exit_code = 126


class CommandNotFound(WstraceError):
    """The command to launch does not exist."""

    exit_code = 127


_T = TypeVar("_T")


def why(error: BaseException) -> str:
    """The error in one line: the text of a WstraceError, the type and text of any other."""
    if isinstance(error, WstraceError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def lifted_by(error: BaseException) -> str:
    """What lifts the limit of the process that an error tells of; "" when it tells of none."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return "allow more open files: ulimit -n"
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "allow more memory: ulimit -v, or the limit of the container"
    return ""


def pass_interrupt(error: BaseException) -> None:
    """Re-raises a KeyboardInterrupt on the main thread, which is the user's Ctrl-C; returns for every other error.

    Called first wherever a plugin's BaseException is caught: neither sys.exit() in a plugin nor a plugin's own subclass
    of BaseException may end the process.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


@contextmanager
def named(who: str) -> Iterator[None]:
    """Turns what the body raises into a PluginError that names the plugin.

    who: the plugin's role and name, such as "source page_faults". Raises WstraceError: unchanged, as its text names its
    subject already. LimitError: for a limit of this process. PluginError: for anything else, SystemExit included,
    except the user's KeyboardInterrupt.
    """
    try:
        yield
    except WstraceError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not error.args:  # the user waited for this plugin in vain
            error.args = (f"interrupted in {who}",)
        pass_interrupt(error)
        failed = f"{who} failed: {why(error)}"
        if remedy := lifted_by(error):
            raise LimitError(failed, remedy) from error
        raise PluginError(failed, "WSTRACE_DEBUG=1 shows where") from error


def quietly(call: Callable[[], _T], otherwise: _T) -> _T:
    """The result of the call, or `otherwise` when it raises: for calls of a plugin whose failure loses no record."""
    try:
        return call()
    except BaseException as error:
        pass_interrupt(error)
        return otherwise


_as_lines = False


def log() -> logging.Logger:
    """The logger `wstrace`."""
    import logging

    shape()
    return logging.getLogger("wstrace")


def print_as_lines() -> None:
    """Makes one line of each message that no handler takes, `wstrace: MESSAGE` on stderr; called by commands."""
    global _as_lines
    _as_lines = True
    shape()


def shape() -> None:
    """Does so for the messages of other packages, too, if they have imported `logging` by now."""
    if not _as_lines or "logging" not in sys.modules:
        return
    import logging

    class Line(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return f"wstrace: {printable(record.getMessage())}"

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Line())


class Closing:
    """A context manager of itself: the end of the block calls close()."""

    def close(self) -> None:
        """Gives back what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
