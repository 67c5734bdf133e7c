"""Filter: selects the faults and pages that a summary or an export covers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.symbols import UNKNOWN
from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.errors import UsageError
from wstrace.schema import FAULT_MAJOR, KIND_SHARED, KINDS, PAGE_FAULT, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace.text import base_name, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NS = 1_000_000_000
#: Labels that tables show in place of a file. They are not globs, though they look like character classes.
_LABEL = r"\[[^\[\]]*\]"
_NAMES = 10_000
#: what --kind takes -> the kind's number
KIND_WORDS = {word: number for number, word in enumerate(KINDS)} | {"shared": KIND_SHARED}


@dataclass(slots=True)
class Filter:
    """Keeps the rows that meet all given conditions. Streams that it does not apply to pass unchanged.

    Attributes:
        file: the page's file: a label as tables show it (`[heap]`, `[unknown]`), else a path, its last part, or a glob
            on these (`*.so*`, `/usr/lib/*`); "" = any.
        kinds: kinds of memory (words of schema.KINDS; `shared` = shared memory); () = all. This selects resident and
            written pages too.
        pids: the processes; () = all. This selects resident and written pages too.
        tids: the faulting threads; () = all.
        start: the beginning, in seconds after the origin.
        end: the end, in seconds after the origin; 0 = never.
        hard: only faults that read from disk (major).
        soft: only faults that did not (minor).
        origin_ns: the time that start and end count from; 0 = the time of the first fault.

    Raises:
        UsageError: hard and soft together, an end that is not after the start, or a kind that there is not.
    """

    file: str = ""
    kinds: Sequence[str] = ()
    pids: Sequence[int] = ()
    tids: Sequence[int] = ()
    start: float = 0
    end: float = 0
    hard: bool = False
    soft: bool = False
    origin_ns: int = 0
    _kinds: Sequence[int] = field(default=(), init=False, repr=False)
    _strings: Dictionary | None = field(default=None, init=False, repr=False)
    _matches: dict[int, bool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._kinds = kind_numbers(self.kinds)
        if self.hard and self.soft:
            raise UsageError("--hard and --soft exclude each other", "leave both out for all faults")
        if self.start < 0 or self.end < 0 or (self.end and self.end <= self.start):
            raise UsageError(f"no time lies between {self.start:g} s and {self.end:g} s", "give an --end after --start")

    def __bool__(self) -> bool:
        return bool(
            self.file or self.kinds or self.pids or self.tids or self.start or self.end or self.hard or self.soft
        )

    def __str__(self) -> str:
        """The conditions as text: `file *.so, from 2 s to 5 s, hard`."""
        span = [f"from {self.start:g} s"] * bool(self.start) + [f"to {self.end:g} s"] * bool(self.end)
        parts = [f"file {self.file}" if self.file else "", f"kind {', '.join(self.kinds)}" if self.kinds else "",
                 _numbers("process", "processes", self.pids), _numbers("thread", "threads", self.tids), " ".join(span),
                 "only from disk" if self.hard else "only soft" if self.soft else ""]  # fmt: skip
        return ", ".join(part for part in parts if part)

    def apply(self, batch: Batch) -> Batch:
        """The batch with only the rows that meet the conditions; the same batch if all rows do."""
        keep = self.chosen(batch)
        return batch if keep.all() else batch.take(keep)

    def chosen(self, batch: Batch) -> NDArray[np.bool_]:
        """Which rows of a batch meet the conditions."""
        faults = batch.schema.name == PAGE_FAULT.name
        keep = np.ones(len(batch), np.bool_)
        if not self or not len(batch) or not (faults or batch.schema.name in (RESIDENT_PAGES.name, WRITTEN_PAGES.name)):
            return keep
        if self.file:
            keep &= self._file(batch)
        if self.kinds:
            keep &= np.isin(batch["kind"], self._kinds) if "kind" in batch else np.zeros(len(batch), np.bool_)
        if faults:
            for name, chosen in (("pid", self.pids), ("tid", self.tids)):
                if chosen:
                    keep &= np.isin(batch[name], chosen)
            if self.hard or self.soft:
                keep &= ((batch["flags"] & FAULT_MAJOR) != 0) == self.hard
            if self.start or self.end:
                keep &= self._time(batch)
        return keep

    @property
    def of_faults(self) -> bool:
        """Whether it selects by what only faults have: a thread, a time, or where the page came from."""
        return bool(self.tids or self.start or self.end or self.hard or self.soft)

    def _is_meant(self, name: str) -> bool:
        """Whether `file` selects this name: exactly, as a label or a name, else as a glob."""
        texts = (name, base_name(name))
        if self.file in texts or re.fullmatch(_LABEL, self.file):
            return self.file in texts
        return any(fnmatch.fnmatchcase(text, self.file) for text in texts)

    @property
    def nearest_file(self) -> str:
        """A sentence with the seen name that is nearest to `file`, for when `file` has matched none."""
        strings = self._strings
        if not self.file or strings is None or any(self._matches.values()):
            return ""
        seen = [base_name(strings[code]) or UNKNOWN for code in list(self._matches)[:_NAMES] if code < len(strings)]
        near = nearest(self.file, seen)
        return near if near.startswith("did you mean") else "--by file shows the names"

    def _time(self, batch: Batch) -> NDArray[np.bool_]:
        times = batch["time_ns"] if "time_ns" in batch else np.full(len(batch), batch.window[0], np.uint64)
        self.origin_ns = self.origin_ns or int(times.min())
        # u64 with u64: numpy 1 would compare u64 and int as float64.
        keep: NDArray[np.bool_] = times >= np.uint64(self.origin_ns + round(self.start * _NS))
        if self.end:
            keep &= times < np.uint64(self.origin_ns + round(self.end * _NS))
        return keep

    def _file(self, batch: Batch) -> NDArray[np.bool_]:
        if "file" not in batch:
            return np.zeros(len(batch), np.bool_)
        return self.files(batch["file"], batch.strings)

    def files(self, codes: NDArray[Any], strings: Dictionary) -> NDArray[np.bool_]:
        """Which codes are of a file that matches; each name is matched once."""
        if strings is not self._strings:
            self._strings, self._matches = strings, {}
        some = distinct(codes).tolist()
        for code in some:
            if code not in self._matches:
                self._matches[code] = self._is_meant((strings[code] if code < len(strings) else "") or UNKNOWN)
        return np.isin(codes, [code for code in some if self._matches[code]])


def kind_numbers(words: Sequence[str]) -> tuple[int, ...]:
    """The kinds of memory with these names. Raises UsageError for another word."""
    for word in words:
        if word not in KIND_WORDS:
            raise UsageError(f"there is no kind of memory {word!r}", nearest(word, KIND_WORDS))
    return tuple(KIND_WORDS[word] for word in words)


def _numbers(one: str, more: str, numbers: Sequence[int]) -> str:
    return f"{one if len(numbers) == 1 else more} {', '.join(map(str, numbers))}" if numbers else ""
