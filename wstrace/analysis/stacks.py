"""Why a fault has no stack of Python frames, in words."""

from __future__ import annotations

from wstrace.schema import HOW_EXACT, HOW_OWN, STACK_HOW


def reason(how: int) -> str:
    """Why a fault has no stack, as tables show it: `(no Python frame)`."""
    return f"({stack_reason(how)})"


def stack_reason(how: int) -> str:
    """Why a fault has no stack, by the value of its column `stack_how` or `native_how`."""
    if how in (HOW_EXACT, HOW_OWN):
        return "the frames of its stack are not in the trace"
    return (STACK_HOW[how] if how < len(STACK_HOW) else "") or "no stack, for an unknown reason"
