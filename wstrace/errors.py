"""The errors wstrace raises: each names what failed, why, and what to do.

The command line turns every one of them into one line on stderr and the exit code of its class.
"""

from __future__ import annotations

import errno
import os


class WstraceError(Exception):
    """Base of all errors of wstrace. `remedy` is what the reader can do about it, or ""."""

    exit_code = 125

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


class UsageError(WstraceError):
    """An option, a name or a value that wstrace does not know."""


class LossError(WstraceError):
    """`--fail-on-loss` was asked for and the ledger is not clean, though every output has what was taken over."""

    exit_code = 121


class Unavailable(WstraceError):
    """This system, kernel or privilege does not give what was asked: says why and what lifts it."""

    exit_code = 122


class TargetExited(Unavailable):
    """The traced process is gone."""


class OutputError(WstraceError):
    """An output could not be created or written, or lacks records that were taken for it."""

    exit_code = 123


class TraceFileError(WstraceError):
    """A file that is no trace, or one whose content breaks the format's limits."""


class TraceFileNotFound(TraceFileError, FileNotFoundError):
    """There is no such trace file; also a FileNotFoundError, with errno and filename."""

    def __init__(self, path: str) -> None:
        super().__init__(f"cannot read {path}: {os.strerror(errno.ENOENT)}")
        self.errno, self.strerror, self.filename = errno.ENOENT, os.strerror(errno.ENOENT), path


class PluginError(WstraceError):
    """A source, exporter, enricher or other plugin failed in a way that it should not: it is named."""


class CannotExecute(WstraceError):
    """The command exists but the system refuses to execute it."""

    exit_code = 126


class CommandNotFound(WstraceError):
    """There is no such command."""

    exit_code = 127
