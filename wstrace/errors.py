"""The errors that wstrace raises: each names what failed, why, and what to do.

The command line prints each as one line on stderr and exits with the exit code of its class.
"""

from __future__ import annotations

import errno
import os


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

    Args:
        package: its name. error: what its import raised. remedy: the command that installs it.
        who: what needs it, as the user calls it; "" = that goes without saying.
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
