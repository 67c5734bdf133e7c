"""StackCounts: counts page faults by stack, and labels them by line, function, stack or package for a table.

Each fault with a Python stack counts once. Native stacks are samples, from which the number of faults is estimated.
The estimates of native stacks agree with the faults' instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.analysis.calibration import Calibration, margin
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.instructions import Instructions
from wstrace.analysis.other_programs import OtherPrograms
from wstrace.analysis.own import OwnRule
from wstrace.analysis.stack_views import Label, StackBy, StackViews
from wstrace.analysis.symbols import Symbolizer
from wstrace.analysis.tally import NO_SAMPLE, Sums, distinct, group
from wstrace.analysis.unsampled import Told, told
from wstrace.batch import Batch
from wstrace.schema import (
    CALL_SITE,
    FAULT_MAJOR,
    HOW_EXACT,
    HOW_NO_INTERPRETER,
    HOW_NOT_PYTHON,
    HOW_OWN,
    MAPPING,
    PAGE_FAULT,
    PROCESS,
    STACK_HOW,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.frames import Frame

#: the columns by which faults of a batch are told apart
_TOLD = frozenset(("stack", "stack_how", "weight", "native_stack", "native_how"))
#: those of them that faults have of which each one says its stack
_EXACT = frozenset(("stack", "stack_how"))
#: why faults of programs that are not Python have no stack of Python
FOREIGN = (HOW_NO_INTERPRETER, HOW_NOT_PYTHON)
#: what is summed of each stack: faults, major faults, samples, the samples' weights, their squares
_FAULTS, _MAJOR, _SAMPLES, _WEIGHTS, _SQUARES = range(5)
#: A key of sums is the instruction, where stacks are samples, then the stack, then how it is known; so many bits.
_OF_STACK, _OF_HOW = 24, 8


class StackRow(NamedTuple):
    """A line of a table of stacks.

    label is the name as it came from the target (print it through wstrace.text.printable). total is the number of
    faults, major that of those that read from disk; share is the part of all faults, 0..1. Where total is an estimate,
    samples is the number of stacks that it rests on, and margin the half-width of its 95 % confidence interval, in
    faults; both are 0 where total was counted. certain is what an estimated row has at the least, as that was counted.
    frames are those that the label names, innermost first. has_stack is False in a row of faults without a stack, whose
    label is the reason.
    """

    label: str
    total: int
    major: int
    share: float
    samples: int = 0
    margin: int = 0
    frames: tuple[Frame, ...] = ()
    has_stack: bool = True
    certain: int = 0

    @property
    def by_chance(self) -> bool:
        """Whether an estimate may be off by all of it, but for what was sampled and for less than half."""
        return self.margin >= self.total > max(self.samples, 2 * self.certain)


class StackCounts:
    """Counts faults by stack.

    Of a sampled trace each row counts for the faults that it stands for, and all rows are estimates.

    Args:
        tree: the call sites, where they are known already; None = they come in batches.

    Attributes:
        tree: the call sites so far.
        total, major: faults, and those of them that read from disk.
        python: faults with a Python stack; foreign: of programs that are not Python. native: samples with a native
            stack.
        thinned: whether faults are samples. all_faults: of how many faults these are, as the kernel counted them; 0 =
            not known.
        recorded: whether any batch had a column of stacks, so that stacks were recorded.
    """

    def __init__(self, *, tree: CallTree | None = None) -> None:
        self.tree = CallTree() if tree is None else tree
        self.total = self.major = self.python = self.foreign = 0
        self.native = self.all_faults = 0
        self.recorded = self.thinned = False
        self._python, self._native = Sums(_SQUARES + 1), Sums(_SQUARES + 1)
        self._others = OtherPrograms()
        self._instructions = Instructions()
        self._last: tuple[tuple[object, ...], list[StackRow]] | None = None  # the native rows that were asked for last

    def add(self, batch: Batch) -> None:
        """Counts a batch of page faults, or takes one of call sites, mappings or processes; others are ignored."""
        self._last = None
        if batch.schema.name == CALL_SITE.name:
            self.tree.learn(batch)
        elif batch.schema.name == MAPPING.name:
            self._instructions.learn(batch)
        elif batch.schema.name == PROCESS.name:
            self._others.learn(batch)
        elif batch.schema.name == PAGE_FAULT.name and len(batch):
            self._faults(batch)

    def _faults(self, batch: Batch) -> None:
        columns, n = batch.columns, len(batch)
        zero, each = np.zeros(n, np.uint8), columns.get("sampled")
        if each is None and _TOLD & columns.keys() <= _EXACT:
            self._exact(batch)
            return
        one = np.ones(n, np.int64) if each is None else each.astype(np.int64)
        self.thinned = self.thinned or (each is not None and bool((each > 1).any()))
        major = ((batch["flags"] & FAULT_MAJOR) != 0) * one
        self.total += n if each is None else int(each.sum(dtype=np.uint64))
        self.major += int(major.sum())
        self.recorded = self.recorded or "stack_how" in columns or "native_how" in columns
        how, weights = columns.get("stack_how", zero), columns.get("weight")
        weight = zero if each is None else np.where(each > 1, one, 0)
        self.python += self._count(self._python, columns.get("stack", zero), how, major, weight, each)
        self.foreign += int(one[np.isin(how, FOREIGN)].sum())
        others = np.flatnonzero(how == HOW_NOT_PYTHON)
        if len(others):
            values = major, weight > 0, weight, weight * weight
            self._others.count(batch, others, *values, each=each)
        if "native_how" in columns or "native_stack" in columns:
            native, how = columns.get("native_stack", zero), columns.get("native_how", zero)
            weight = zero if weights is None else np.where(self.tree.known(native) != 0, weights * one, 0)
            self._count(self._native, native, how, major, weight, each=each, pc=self._instructions.of(batch))
            self.native += int(np.count_nonzero(weight))

    def _exact(self, batch: Batch) -> None:
        """Counts faults of which each one says its stack or has none, by combination."""
        columns, zero = batch.columns, np.zeros(len(batch), np.uint8)
        of_row, hard = columns.get("stack_how", zero), batch["flags"] & FAULT_MAJOR
        (stacks, how, majors), counts = group(columns.get("stack", zero), of_row, hard)
        majors = np.where(majors != 0, counts, 0)
        self.total, self.major = self.total + len(batch), self.major + int(majors.sum())
        self.recorded = self.recorded or "stack_how" in columns
        self.python += self._count(self._python, stacks, how, majors, zero[: len(how)], each=counts)
        self.foreign += int(counts[np.logical_or.reduce([how == foreign for foreign in FOREIGN])].sum())
        other = how == HOW_NOT_PYTHON
        if other.any():
            rows = slice(None) if other.all() else np.flatnonzero(of_row == HOW_NOT_PYTHON)
            self._others.count(batch, rows, hard != 0, zero, zero, zero)

    def _count(
        self,
        sums: Sums,
        stacks: NDArray[Any],
        how: NDArray[Any],
        major: NDArray[Any],
        weight: NDArray[Any],
        each: NDArray[Any] | None = None,
        pc: NDArray[np.uint32] | None = None,
    ) -> int:
        """Sums by instruction, stack and how; the number of faults with a stack whose call sites are known."""
        told = [stacks, how, np.zeros(len(how), np.uint8) if pc is None else pc]
        combinations, counts = group(*told, weights=each)
        own = self._keys(*combinations)
        keys = distinct(own)
        at = keys.searchsorted(own)
        values = np.zeros((len(keys), _SQUARES + 1), np.int64)
        np.add.at(values[:, _FAULTS], at, counts)
        special = (major != 0) | (weight != 0)
        if special.any():
            at = keys.searchsorted(self._keys(*(column[special] for column in told)))
            weight = weight[special].astype(np.int64)
            for column, of_row in enumerate((major[special], weight != 0, weight, weight * weight), _MAJOR):
                np.add.at(values[:, column], at, of_row)
        sums.add(keys, values)
        return int(counts[_stacks(own) != 0].sum())

    def _keys(self, stacks: NDArray[Any], how: NDArray[Any], pc: NDArray[Any]) -> NDArray[np.uint64]:
        """Instructions, stacks and how these are known as keys of sums; a stack without a call site is 0."""
        keys: NDArray[np.uint64] = pc.astype(np.uint64) << np.uint64(_OF_STACK)
        keys = (keys | self.tree.known(stacks).astype(np.uint64)) << np.uint64(_OF_HOW)
        return keys | how.astype(np.uint64)

    # -- tables ------------------------------------------------------------------------------------------------------

    def table(
        self,
        by: StackBy,
        rule: OwnRule | None = None,
        symbolizer: Symbolizer | None = None,
        *,
        native: bool = False,
        views: StackViews | None = None,
    ) -> list[StackRow]:
        """All rows, most faults first, NO_SAMPLE last. The sum of their totals is that of all faults, whatever `by` is.

        Args:
            by: line = the innermost own line of the stack; function = its innermost function; stack; package = that of
                its innermost frame outside of the standard library.
            rule: decides which source files are the program's own.
            symbolizer: names native frames.
            native: estimate from the sampled native stacks, instead of counting the Python stacks of all faults.
            views: what has labelled stacks of the same tree before, instead of a rule and a symbolizer.
        """
        asked = by, rule, symbolizer, views, self._whole
        if native and self._last is not None and self._last[0] == asked:  # a report asks five times
            return [*self._last[1]]
        views = views or StackViews(self.tree, rule or OwnRule(), symbolizer)
        if not native:
            return self._rows(views.labels(by, native=False))
        known = self._told(views, by)
        label, told_by = known.views.labels(by, native=True), partial(known.views.of_innermost, by)
        self._last = asked, self._rows(label, known, told_by)
        return [*self._last[1]]

    def around(
        self,
        function: str,
        rule: OwnRule | None = None,
        symbolizer: Symbolizer | None = None,
        *,
        callers: bool,
        native: bool = False,
    ) -> list[StackRow]:
        """Faults in a function and its callees, by its caller, or by its callee at its innermost call.

        Args:
            function: its name, as a table by function or line shows it.
        """
        views = StackViews(self.tree, rule or OwnRule(), symbolizer)
        label = partial(views.around, function=function, callers=callers)
        return self._rows(label, self._told(views) if native else None, whole=False)

    def folded(self, symbolizer: Symbolizer | None = None, *, native: bool = False) -> Iterable[tuple[list[str], int]]:
        """(frames as text, outermost first; faults) of each stack, for flame graphs."""
        from wstrace.analysis.frames import to_the_root

        for row in self.table("stack", symbolizer=symbolizer, native=native):
            yield [str(frame) for frame in reversed(to_the_root(row.frames))] or [row.label], row.total

    def _told(self, views: StackViews, by: StackBy = "stack") -> Told:
        """Which labels of native stacks the instructions tell, whatever called these."""
        stacks, instruction = _stacks(self._native.keys), self._native.keys >> np.uint64(_OF_STACK + _OF_HOW)
        faults, samples = (self._native.sums[:, column] for column in (_FAULTS, _SAMPLES))
        return told(views, by, stacks, instruction, faults, samples, self._instructions)

    def _rows(
        self,
        label: Callable[[NDArray[np.intp]], list[Label]],
        known: Told | None = None,
        told_by: Callable[[NDArray[np.intp]], NDArray[np.bool_]] | None = None,
        *,
        whole: bool = True,
    ) -> list[StackRow]:
        """The rows of a table.

        Args:
            label: labels stacks.
            known: of native stacks; None = the table is of Python stacks.
            told_by: of which stacks the innermost frame alone tells the label; None = of none. whole: of all faults.
        """
        native, table = (False, self._python) if known is None else (True, self._native)
        stacks, how = _stacks(table.keys), (table.keys & np.uint64(255)).astype(np.intp)
        sums = table.sums
        kept = (stacks != 0) & (sums[:, _SAMPLES] > 0) if native else stacks != 0
        if known is not None:
            stacks, kept = known.stacks, kept | known.bare
        leaves, which = np.unique(stacks[kept], return_inverse=True)
        labels = label(leaves)
        found: dict[str, list[Any]] = {}
        number: dict[str, int] = {}
        of = np.array([number.setdefault(labels[leaf].text, len(number)) for leaf in which.tolist()], np.intp)
        totals = np.zeros((len(number), sums.shape[1]), sums.dtype)
        np.add.at(totals, of, sums[kept])
        first = np.zeros(len(number), np.intp)
        first[of[::-1]] = which[::-1]
        for text, values, leaf in zip(number, totals, first.tolist(), strict=True):
            if text:
                found[text] = [values, labels[leaf].frames, True]
        if whole and not native:
            self._add_without_stack(found, how[~kept], sums[~kept])
        rows = self._estimated(found, sums) if native else self._counted(found, sums)
        if known is not None:
            columns = (sums[:, column] for column in (_FAULTS, _SAMPLES, _WEIGHTS, _SQUARES))
            files = self._instructions.files(known.instruction)
            samples = Calibration(known.instruction, files, known.sure, *columns)
            innermost = np.zeros(len(leaves), np.bool_) if told_by is None else told_by(leaves)
            estimates = samples.totals(of, kept, innermost[which], len(number))
            n, off, least = (column.tolist() for column in estimates)
            rows = [row._replace(total=n[at], share=n[at] / self._whole, margin=off[at], certain=least[at])
                    for row in rows for at in [number[row.label]]]  # fmt: skip
        stood_for = sum(row.total for row in rows)
        if (native or self.thinned) and whole and (rest := self._whole - stood_for) > 0:
            rows.append(StackRow(NO_SAMPLE, rest, 0, rest / self._whole, has_stack=False))
        return sorted(rows, key=lambda row: (row.label == NO_SAMPLE, -row.total, row.label))

    @property
    def stood_for(self) -> int:
        """The faults for which samples of native stacks stand."""
        return int(self._native.sums[:, _WEIGHTS].sum())

    @property
    def _whole(self) -> int:
        """All faults: as the kernel counted them, where these are samples and that is known."""
        return max(self.total, self.all_faults, 1)

    def _counted(self, found: dict[str, list[Any]], every: NDArray[np.int64]) -> list[StackRow]:
        """Rows of all faults; of a sampled trace with the samples that they rest on, and their margins."""
        all_, weights, squares = self._whole, *(every[:, column].sum() for column in (_WEIGHTS, _SQUARES))
        return [
            StackRow(text, n, int(sums[_MAJOR]), n / all_, int(sums[_SAMPLES]),
                     margin(sums[_WEIGHTS], sums[_SQUARES], weights, squares), frames,
                     has_stack)
            for text, (sums, frames, has_stack) in found.items()
            for n in [int(sums[_FAULTS])]
        ]  # fmt: skip

    def _estimated(self, found: dict[str, list[Any]], every: NDArray[np.int64]) -> list[StackRow]:
        """Estimated rows, with their margins; every: the sums of all samples."""
        weights, squares = (every[:, column].sum() for column in (_WEIGHTS, _SQUARES))
        rows = []
        for text, (sums, frames, has_stack) in found.items():
            n, samples = int(sums[_WEIGHTS]), int(sums[_SAMPLES])
            off = margin(n, sums[_SQUARES], weights, squares)
            rows.append(StackRow(text, n, int(sums[_MAJOR]), n / self._whole, samples, off, frames, has_stack))
        return rows

    def _add_without_stack(self, found: dict[str, list[Any]], how: NDArray[np.intp], sums: NDArray[np.int64]) -> None:
        """Adds the faults without a stack, one row per reason."""
        others = self._others.rows()
        if len(others) > 1:
            for name, n in others.items():
                text = f"(not Python: {name})" if name else reason(HOW_NOT_PYTHON)
                found[text] = [np.array(n, np.int64), (), False]
        for number, values in zip(how.tolist(), sums, strict=True):
            if number == HOW_NOT_PYTHON and len(others) > 1:
                continue
            row = found.setdefault(reason(number), [np.zeros_like(values), (), False])
            row[0] = row[0] + values


def _stacks(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """The innermost call sites of keys of sums, 0 = none."""
    return (keys >> np.uint64(_OF_HOW) & np.uint64((1 << _OF_STACK) - 1)).astype(np.intp)


def reason(how: int) -> str:
    """Why a fault has no stack, as tables show it: `(no Python frame)`."""
    return f"({stack_reason(how)})"


def stack_reason(how: int) -> str:
    """Why a fault has no stack, by the value of its column `stack_how` or `native_how`."""
    if how in (HOW_EXACT, HOW_OWN):
        return "the frames of its stack are not in the trace"
    return (STACK_HOW[how] if how < len(STACK_HOW) else "") or "no stack, for an unknown reason"
