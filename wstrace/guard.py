"""Guards around calls of plugins: errors are caught and name the plugin, and results are checked."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from wstrace.errors import LimitError, PluginError, WstraceError

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

    Args:
        who: the plugin's role and name, such as "source page_faults".

    Raises:
        WstraceError: unchanged, as its text names its subject already.
        LimitError: for a limit of this process. PluginError: for anything else, SystemExit included, except the user's
            KeyboardInterrupt.
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
