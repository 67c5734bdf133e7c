"""What a report proposes to record or to ask, where its first lines do not name the program's own."""

from __future__ import annotations

from collections.abc import Sequence

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


def functions(why: str, *, counted: bool) -> list[str]:
    """What counts each fault where samples of native stacks do not answer.

    Args:
        why: in words; "" = they do. counted: whether a table by function is shown.
    """
    where = "the table by function" if counted else "`wstrace report FILE --by function`"
    return [f"{why}: {where} counts each fault"] if why else []


def groups(views: Sequence[str], known: bool) -> list[str]:
    """What records control groups, where a table is by them and none is known.

    Args:
        views: what the table is by. known: whether the control group of any fault is.
    """
    if "cgroup" not in views or known:
        return []
    return ["no control group is known: wstrace attach --cgroup, --container, --unit and -a record them, not run"]


def callers() -> list[str]:
    """What tells who called the function that leads, where it is not the program's own, such as memmove() of libc."""
    return [f"the first row is no line of the program's own: {_STACKS} tells who called it"]
