"""Opens the capture of Python stacks where it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstrace.errors import Unavailable
from wstrace_plugins.page_faults.linux.python_stacks.none import NoStacks

if TYPE_CHECKING:
    from wstrace.interfaces import Context
    from wstrace_plugins.page_faults.linux.python_stacks.history import History
    from wstrace_plugins.page_faults.linux.python_stacks.interpreters import Interpreters
    from wstrace_plugins.page_faults.stacks_option import Stacks


def python_stacks(asked: Stacks, context: Context, source: str, cpus: list[int]) -> NoStacks:
    """The capture of Python stacks, if they were asked for; the programs of `auto` wait for a CPython.

    Raises:
        Unavailable: they were asked for by name and cannot be had.
    """
    if not asked.python:
        return NoStacks()
    from wstrace_plugins.page_faults.linux.python_stacks.gate import Gate
    from wstrace_plugins.page_faults.linux.python_stacks.waiting import WaitingStacks

    gate: Gate | None = None
    refused: Unavailable | OSError = OSError()
    try:
        gate = Gate()
    except (Unavailable, OSError) as error:
        refused = error

    def opening(interpreters: Interpreters, history: History) -> NoStacks:
        from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
        from wstrace_plugins.page_faults.linux.python_stacks.kernel import refusal

        try:
            if gate is None:
                raise refused
            return PythonStacks(context, source, cpus, gate, interpreters, history)
        except (Unavailable, OSError) as error:
            no = error if isinstance(error, Unavailable) else refusal(error)
            if asked.required:
                raise no from None
            context.info.lack(f"Python stacks: {no}{_instead()}")
            return NoStacks()

    stacks = WaitingStacks(context.strings, gate, opening)
    if asked.required:
        stacks.open()
    return stacks


def _instead() -> str:
    """What can be had where Python stacks cannot; "" = nothing, as samples have no stack here either."""
    from wstrace_plugins.page_faults.linux.stack_levels import native_level

    sampled = native_level().name == "sampled"
    return "; samples of native stacks need no such right: -s page_faults:stacks=native" if sampled else ""
