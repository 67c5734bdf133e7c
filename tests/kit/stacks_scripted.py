"""Made-up stacks: trees of call sites, faults that name them, and what a reader of the rows must find."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wstrace.batch import Batch, Dictionary, StackIds
from wstrace.call_sites import CallSites
from wstrace.schema import (
    CALL_SITE,
    FRAME_CUT,
    FRAME_NATIVE,
    FRAME_PYTHON,
    HOW_EXACT,
    HOW_NO_PYTHON,
    HOW_NOT_SAMPLED,
    HOW_OWN,
    PAGE_FAULT,
)
from wstrace.testing import batch_of

Python = tuple[str, str, int]  # function, file, line
Native = tuple[int, int]  # mapping, offset


class Fault(NamedTuple):
    """A page fault: its stacks innermost frame first; None = none was had."""

    python: Sequence[Python] | None = ()
    native: Sequence[Native] | None = None
    weight: int = 0
    how: int = HOW_EXACT
    pid: int = 7
    va: int = 4096
    flags: int = 0
    native_how: int = HOW_OWN
    pc: int = 1


class Stacks:
    """The trees of a session: one for Python frames and one for native ones, which share their ids."""

    def __init__(self, strings: Dictionary, ids: StackIds | None = None) -> None:
        ids = ids or StackIds()
        self.strings = strings
        self.trees = {FRAME_PYTHON: CallSites(ids, strings, "python"), FRAME_NATIVE: CallSites(ids, strings, "native")}

    def python(self, frames: Iterable[Python], flags: int = 0, *, cut: bool = False) -> int:
        """The id of a Python stack, innermost frame first. cut: it lacks its outer frames."""
        stack, code = 0, self.strings.code
        for function, file, line in reversed(list(frames)):
            own = flags | FRAME_CUT * (cut and not stack)
            (stack,) = self.trees[FRAME_PYTHON].add(
                stack, kind=FRAME_PYTHON, function=code(function), file=code(file), line=line, flags=own
            )
        return int(stack)

    def native(self, frames: Iterable[Native]) -> int:
        """The id of a native stack, innermost frame first."""
        stack = 0
        for mapping, offset in reversed(list(frames)):
            (stack,) = self.trees[FRAME_NATIVE].add(stack, kind=FRAME_NATIVE, mapping=mapping, offset=offset)
        return int(stack)

    def batches(self, faults: Sequence[Fault], begin: int = 2_000_000) -> list[Batch]:
        """Call sites, and the faults that use them."""
        rows = []
        for fault in faults:
            python = self.python(fault.python or ())
            how = fault.how if python else HOW_NO_PYTHON if fault.python is not None else fault.how
            native = self.native(fault.native or ())
            rows.append((python, how, native, fault.native_how if native else HOW_NOT_SAMPLED, fault.weight))
        sites = [batch for tree in self.trees.values() if (batch := tree.new_rows()) is not None]
        names = ("stack", "stack_how", "native_stack", "native_how", "weight")
        columns = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        given = {name: [getattr(fault, name) for fault in faults] for name in ("pid", "pc", "va", "flags")}
        return [
            *sites,
            batch_of(PAGE_FAULT, self.strings, time_ns=[begin + n for n in range(len(faults))], tid=given["pid"],
                     **given, **columns),
        ]  # fmt: skip


def stacks_of(batches: Iterable[Batch], column: str = "stack") -> list[tuple[tuple[object, ...], ...]]:
    """The stacks that faults name, innermost frame first, each frame as its columns with names in clear.

    A mapping is known by its file: another trace gives it another id.
    """
    rows = {}
    files = {0: ""}
    found = []
    for batch in batches:
        if batch.schema.name == "mapping":
            files |= {
                i: batch.strings[code] for i, code in zip(batch["id"].tolist(), batch["file"].tolist(), strict=True)
            }
        if batch.schema.name == "call_site":
            columns = [column.name for column in CALL_SITE.columns]
            for values in zip(*(batch[name].tolist() for name in columns), strict=True):
                row = dict(zip(columns, values, strict=True))
                row["mapping"] = files[row["mapping"]]
                row |= {name: batch.strings[row[name]] for name in ("function", "file")}
                rows[row["id"]] = row
        elif batch.schema.name == PAGE_FAULT.name and column in batch:
            for leaf in batch[column].tolist():
                frames = []
                while leaf:
                    row = rows[leaf]
                    frames.append(tuple(value for name, value in row.items() if name not in ("id", "parent")))
                    leaf = row["parent"]
                found.append(tuple(frames))
    return found
