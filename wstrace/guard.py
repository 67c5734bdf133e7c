"""What plugins raise and give back, caught where they are called: the plugin is named, and the host lives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from wstrace.batch import Batch
from wstrace.errors import PluginError, WstraceError
from wstrace.schema import DTYPES

_T = TypeVar("_T")


def why(error: BaseException) -> str:
    """What was raised, in one line: the text of our own errors, the type and text of any other."""
    return str(error) if isinstance(error, WstraceError) else f"{type(error).__name__}: {error}"


def pass_interrupt(error: BaseException) -> None:
    """Raises what the user's Ctrl-C raised again: it comes on the main thread only. All else is the plugin's failure.

    Called first wherever a plugin's BaseException is caught: sys.exit() belongs to the command line alone, and a class
    of its own below BaseException must not end us either.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


@contextmanager
def named(who: str) -> Iterator[None]:
    """Whatever the body raises names the plugin.

    Args:
        who: its role and name: "source page_faults".

    Raises:
        WstraceError: as it was raised: it says what it is about.
        PluginError: instead of anything else, SystemExit included; only the user's KeyboardInterrupt passes.
    """
    try:
        yield
    except WstraceError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not error.args:  # somebody waited for it in vain
            error.args = (f"interrupted in {who}",)
        pass_interrupt(error)
        raise PluginError(f"{who} failed: {why(error)}", "WSTRACE_DEBUG=1 shows where") from error


def checked(batch: Any) -> Batch:
    """What a source or an enricher gave, if it is a batch whose columns have their types. Raises TypeError."""
    if not isinstance(batch, Batch):
        raise TypeError(f"it gave {type(batch).__name__}, not a Batch")
    for column in batch.schema.columns:
        if column.name in batch and batch[column.name].dtype != DTYPES[column.type]:
            found = batch[column.name].dtype
            raise TypeError(f"its column {column.name} of {batch.schema.name} is {found}, not {column.type}")
    return batch


def quietly(call: Callable[[], _T], otherwise: _T) -> _T:
    """What the call gives, or the other value when it raises: for what a plugin tells beside its work."""
    try:
        return call()
    except BaseException as error:
        pass_interrupt(error)
        return otherwise


def counts(plugin: Any) -> dict[str, Any]:
    """A plugin's statistics(); {} when it raises or gives no mapping."""
    found: Any = quietly(plugin.statistics, {})
    return dict(found) if isinstance(found, Mapping) else {}
