"""What a marker asks for: `@pytest.mark.wstrace(peak="8MiB", faults=3000, runs=5, isolated="fork")`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from wstrace.errors import UsageError
from wstrace.options import parse_size
from wstrace.text import nearest, number, size

Isolation = Literal["no", "fork", "exec"]
#: The figures of a test, in the order in which they are told; those in bytes.
FIGURES = ("peak", "new", "faults", "major", "written")
BYTES = frozenset(("peak", "new", "written"))
_KNOWN = (*FIGURES, "runs", "isolated")


class Mark(Protocol):
    """A marker as pytest gives it."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Its positional arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Its keyword arguments."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a test may have at most of each figure, in bytes or faults; how often and where it runs."""

    most: Mapping[str, int] = field(default_factory=dict)
    runs: int = 1
    isolated: Isolation = "no"


def limits_of(marks: Iterable[Mark]) -> Limits | None:
    """The limits that the markers of a test say, the nearest first; None without a marker.

    Raises:
        UsageError: a keyword is unknown, or a value cannot be.
    """
    given: dict[str, Any] = {}
    marked = False
    for mark in marks:
        marked = True
        if mark.args:
            raise UsageError(f"wstrace({', '.join(map(repr, mark.args))})", "write wstrace(peak='8MiB', faults=3000)")
        for key in mark.kwargs:
            if key not in _KNOWN:
                raise UsageError(f"wstrace({key}=...) is no figure", nearest(key, _KNOWN))
        given = {**mark.kwargs, **given}
    if not marked:
        return None
    isolated, runs = given.get("isolated", "no"), given.get("runs", 1)
    if isolated not in get_args(Isolation):
        raise UsageError(f"wstrace(isolated={isolated!r})", "known: 'no', 'fork', 'exec'")
    if type(runs) is not int or not 1 <= runs <= 1000:
        raise UsageError(f"wstrace(runs={runs!r})", "give a number from 1 to 1000")
    if runs > 1 and isolated == "no":
        raise UsageError(
            f"wstrace(runs={runs}): a test runs once in its own process", "add isolated='fork' or isolated='exec'"
        )
    most = {name: _limit(name, given[name]) for name in FIGURES if given.get(name) is not None}
    return Limits(most, runs, isolated)


def _limit(name: str, value: Any) -> int:
    if isinstance(value, str) and name in BYTES:
        try:
            return parse_size(value)
        except ValueError as error:
            raise UsageError(f"wstrace({name}={value!r}): {error}") from None
    if type(value) is not int or value < 0:
        example = "a size such as '8MiB'" if name in BYTES else "a number of faults"
        raise UsageError(f"wstrace({name}={value!r})", f"give {example}")
    return value


def shown(name: str, value: int) -> str:
    """A figure as it is told: `8.0 MiB`, `3,000`."""
    return size(value) if name in BYTES else number(value)


def named(name: str, value: int) -> str:
    """A figure with its name: `peak 8.0 MiB`, `3,000 faults`."""
    return f"{name} {size(value)}" if name in BYTES else f"{number(value)} {'major ' * (name == 'major')}faults"
