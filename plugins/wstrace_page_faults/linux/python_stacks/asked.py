"""Opens the capture of Python stacks where it was asked for, and says whether it can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstrace.errors import Unavailable
from wstrace_page_faults.linux.python_stacks.none import NoStacks

if TYPE_CHECKING:
    from wstrace.interfaces import Context, Level
    from wstrace_page_faults.stacks_option import Stacks


def python_stacks(asked: Stacks, context: Context, source: str, cpus: list[int]) -> NoStacks:
    """The capture of Python stacks, if they were asked for; that of `auto` waits for the first CPython.

    Raises:
        Unavailable: they were asked for by name and cannot be had.
    """
    if not asked.python:
        return NoStacks()
    if asked.required:
        return _opened(context, source, cpus, required=True)
    from wstrace_page_faults.linux.python_stacks.waiting import WaitingStacks

    return WaitingStacks(context.strings, lambda: _opened(context, source, cpus, required=False))


def _opened(context: Context, source: str, cpus: list[int], *, required: bool) -> NoStacks:
    """The capture; where it cannot be and is not required, NoStacks with a note."""
    from wstrace_page_faults.linux.python_stacks.capture import PythonStacks
    from wstrace_page_faults.linux.python_stacks.kernel import refusal

    try:
        return PythonStacks(context, source, cpus)
    except (Unavailable, OSError) as error:
        no = error if isinstance(error, Unavailable) else refusal(error)
        if required:
            raise no from None
        context.info.lack(f"Python stacks: {no}")
        return NoStacks()


def level() -> Level:
    """Whether Python stacks can be had here: "exact" or "none", by loading the programs."""
    from wstrace_page_faults.linux.python_stacks.kernel import tried

    return tried()
