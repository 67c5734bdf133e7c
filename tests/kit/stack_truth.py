"""Stacks of a trace as names, and the truth about them that a program prints: which function alone touches a region."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wstrace.interfaces import MappedFile
from wstrace.schema import STACK_HOW
from wstrace_plugins.symbols.resolver import ImageResolver

#: a program that prints its regions, and the pages of each
SOURCE = (Path(__file__).parent.parent / "live" / "native_regions.c").read_text()
PAGES = 600


class Region(NamedTuple):
    start: int
    end: int
    pid: int
    function: str
    caller: str


def regions(text: str) -> list[Region]:
    """Those of the lines `START END PID FUNCTION CALLER` of a program's output, by address."""
    words = (line.split() for line in text.splitlines() if line.startswith("0x"))
    return sorted(Region(int(start, 16), int(end, 16), int(pid), *names) for start, end, pid, *names in words)


class StackNames:
    """The frames of a trace's stacks, by name."""

    def __init__(self, trace: Any) -> None:
        self.faults = _columns(trace, "page_fault")
        self._sites = _columns(trace, "call_site")
        mappings = _columns(trace, "mapping")
        self._row = {int(one): row for row, one in enumerate(self._sites["id"])}
        strings = next(iter(trace.batches("mapping"))).strings
        self._strings = strings
        self._file = {int(i): strings[int(f)] for i, f in zip(mappings["id"], mappings["file"], strict=True)}
        self._resolver = ImageResolver()
        self._known = {}

    def frames(self, stack: int) -> tuple[str, ...]:
        """Innermost first; `module` for code without a symbol."""
        if stack not in self._known:
            self._known[stack] = self._frames(stack)
        return self._known[stack]

    def _frames(self, stack: int) -> tuple[str, ...]:
        found = []
        while stack:
            row = self._row[stack]
            found.append(self._name(row))
            stack = int(self._sites["parent"][row])
        return tuple(found)

    def flags(self, stack: int) -> list[int]:
        """The flags of its frames, innermost first."""
        found = []
        while stack:
            row = self._row[stack]
            found.append(int(self._sites["flags"][row]))
            stack = int(self._sites["parent"][row])
        return found

    def _name(self, row: int) -> str:
        if self._sites["function"][row]:
            return str(self._strings[int(self._sites["function"][row])])
        file = self._file.get(int(self._sites["mapping"][row]), "?")
        if not file.startswith("/"):
            return file
        [place] = self._resolver.resolve(MappedFile(file), self._sites["offset"][row : row + 1])
        return place.function.partition("(")[0] or place.module

    def sampled(self) -> list[tuple[int, int, tuple[str, ...], str, int]]:
        """(pid, va, frames, how, weight) of the faults that have a native stack."""
        rows = np.flatnonzero(self.faults["native_stack"])
        names = ("pid", "va", "native_stack", "native_how", "weight")
        return [
            (pid, va, self.frames(stack), STACK_HOW[how], weight)
            for pid, va, stack, how, weight in zip(*(self.faults[name][rows].tolist() for name in names), strict=True)
        ]


def _columns(trace: Any, stream: str) -> dict[str, np.ndarray]:
    batches = list(trace.batches(stream))
    names = dict.fromkeys(name for batch in batches for name in batch)  # the first batches may lack those of stacks
    none = np.zeros(max(map(len, batches)), np.uint32)
    return {name: np.concatenate([batch[name] if name in batch else none[: len(batch)] for batch in batches])
            for name in names}  # fmt: skip


def of_region(known: list[Region], pid: int, va: int) -> Region | None:
    return next((one for one in known if one.pid == pid and one.start <= va < one.end), None)


def expected(region: Region) -> list[str]:
    """What stands together in the stack, innermost first, after what libc adds."""
    if region.function == "four":
        return ["four"] * 13 + ["by_four", "main"]
    if region.caller == "thread":
        return ["one", "thread", "start_thread"]
    return [region.function, region.caller, "main"] if region.caller != "main" else ["one", "main"]


def assert_right(names: StackNames, known: list[Region]) -> int:
    """Every sample in a region has its callers, and goes on to the outermost frame. Gives their number."""
    checked = 0
    for pid, va, frames, how, weight in names.sampled():
        region = of_region(known, pid, va)
        if region is None:
            continue
        checked += 1
        assert weight > 0
        wanted = expected(region)
        assert wanted[0] in frames, (region, hex(va), frames, how)
        inner = frames.index(wanted[0])
        assert frames[inner : inner + len(wanted)] == tuple(wanted), (region, frames)
        assert inner <= {"two": 1, "three": 1}.get(region.function, 0), frames
        assert frames[-1] in ("_start", "clone3", "__clone3", "clone"), frames
        assert how == "own"
    return checked
