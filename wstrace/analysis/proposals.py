"""What a report proposes to record or to ask, where its first lines do not name the program's own."""

from __future__ import annotations

#: What tells the callers of a function.
_STACKS = "`wstrace report FILE --by stack`"


def not_python(foreign: int, total: int, *, native: bool) -> list[str]:
    """What tells the own lines where most faults are of programs that are not Python; [] = they are not.

    Args:
        foreign: faults of such programs. native: whether native stacks were recorded.
    """
    if native or 2 * foreign <= total:
        return []
    lines = "most is not Python's: its own lines are told by -s page_faults:stacks=native"
    return [f"{lines}, who called a library by {_STACKS}"]


def callers() -> list[str]:
    """What tells who called the function that leads, where it is not the program's own, such as memmove() of libc."""
    return [f"the first row is no line of the program's own: {_STACKS} tells who called it"]
