"""The message Profile of pprof: its tables, each of whose rows stands once.

Source: https://github.com/google/pprof/blob/main/proto/profile.proto
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wstrace.analysis.frames import Frame
from wstrace.analysis.symbols import MappingTable
from wstrace.batch import Dictionary
from wstrace.protobuf import data, number, packed
from wstrace.text import printable

# the numbers of fields
(_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING, _TIME, _DURATION, _COMMENT,
 _DEFAULT) = 1, 2, 3, 4, 5, 6, 9, 10, 13, 14  # fmt: skip
#: has_functions, has_filenames, has_line_numbers, has_inline_frames: whoever reads the profile looks up nothing more
_NAMED = b"".join(number(field, 1) for field in (7, 8, 9, 10))


class Profile:
    """A profile in the making.

    Args:
        types: (name, unit) of the values of samples.
        mappings: those of the frames.
        strings: the names of their files.

    Attributes:
        time_ns: wall time of its begin. duration_ns: of the trace. default: the type that is shown first. comments:
            sentences that `pprof -comments` shows.
    """

    def __init__(self, types: Sequence[tuple[str, str]], mappings: MappingTable, strings: Dictionary) -> None:
        self._types, self._known, self._names = types, mappings, strings
        self._strings = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[int, int, tuple[tuple[int, int], ...]], int] = {}
        self._mappings: dict[tuple[str, str, int, int], int] = {}
        self._starts: list[int] = []  # of each mapping its first address here
        self._of_id: dict[int, tuple[int, int]] = {}  # id of a mapping -> its number here, what to add to an offset
        self._named: set[int] = set()  # the mappings in which a function is known
        self._samples: list[bytes] = []
        self.time_ns = self.duration_ns = 0
        self.default, self.comments = "", list[str]()

    def string(self, text: str) -> int:
        """The number of a text."""
        return self._strings.setdefault(printable(text), len(self._strings))

    def label(self, name: str, text: str) -> bytes:
        """A label of a sample."""
        return data(3, number(1, self.string(name)) + number(2, self.string(text)))

    def sample(self, stack: bytes, values: Sequence[int], labels: bytes) -> None:
        """Adds a sample: what stack() and label() gave."""
        self._samples.append(data(_SAMPLE, stack + packed(2, values) + labels))

    def stack(self, frames: Sequence[Frame], reason: str) -> bytes:
        """The locations of a stack, innermost frame first; of none a single one with the reason."""
        if not frames:
            return packed(1, [self._location(0, 0, [Frame("", module=f"({reason})")])])
        return packed(1, map(self._site, call_sites(frames)))

    def _site(self, frames: Sequence[Frame]) -> int:
        """The location of a call site: the function that it is in, last, and those inlined there."""
        frame = frames[-1]
        if frame.kind != "native" or not frame.mapping:
            return self._location(0, 0, frames)
        mapping, shift = self._mapping(frame.mapping)
        if frame.function:
            self._named.add(mapping)
        return self._location(mapping, frame.offset + shift if mapping else 0, frames)

    def _location(self, mapping: int, address: int, frames: Sequence[Frame]) -> int:
        named = not mapping or any(frame.function for frame in frames)
        lines = tuple((self._function(frame), frame.line) for frame in frames) if named else ()
        return self._locations.setdefault((mapping, address, lines), len(self._locations) + 1)

    def _function(self, frame: Frame) -> int:
        name = (frame.function or frame.name) + frame.doubt
        return self._functions.setdefault((name, frame.file), len(self._functions) + 1)

    def _mapping(self, mapping: int) -> tuple[int, int]:
        """The number of a mapping here, and what an offset into its file lacks to an address; 0 of an unknown one.

        Mappings of the same part of a file are one, at the address of the first.
        """
        if mapping not in self._of_id:
            known, rows = self._known.find(np.array([mapping], np.uint32))
            if not known[0]:
                return 0, 0
            start, end, offset = (int(rows[name][0]) for name in ("start", "end", "offset"))
            path, build_id = (self._names[int(rows[name][0])] for name in ("file", "build_id"))
            key = path, build_id, offset, max(end - start, 0)
            at = self._mappings.setdefault(key, len(self._mappings) + 1)
            self._starts += [start] * (at > len(self._starts))
            self._of_id[mapping] = at, self._starts[at - 1] - offset
        return self._of_id[mapping]

    def encoded(self) -> bytes:
        """The message."""
        string, parts = self.string, []
        parts += [data(_SAMPLE_TYPE, number(1, string(name)) + number(2, string(unit))) for name, unit in self._types]
        parts += self._samples
        for (path, build_id, offset, length), at in self._mappings.items():
            start = self._starts[at - 1]
            where = number(2, start) + number(3, start + length) + number(4, offset)
            names = number(5, string(path)) + number(6, string(build_id))
            parts.append(data(_MAPPING, number(1, at) + where + names + _NAMED * (at in self._named)))
        for (mapping, address, lines), at in self._locations.items():
            where = number(2, mapping) + number(3, address) if mapping else b""
            lines_of = b"".join(data(4, number(1, function) + number(2, line)) for function, line in lines)
            parts.append(data(_LOCATION, number(1, at) + where + lines_of))
        for (name, path), at in self._functions.items():
            parts.append(data(_FUNCTION, number(1, at) + number(2, string(name)) + number(4, string(path))))
        times = number(_TIME, self.time_ns) + number(_DURATION, self.duration_ns)
        comments = b"".join(number(_COMMENT, string(comment)) for comment in self.comments)
        parts += [times, comments, number(_DEFAULT, string(self.default))]
        return b"".join([*parts, *(data(_STRING, text) for text in self._strings)])


def call_sites(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """The frames of each call site: those that the compiler has inlined there, and at last the one that it is in."""
    site: list[Frame] = []
    for frame in frames:
        site.append(frame)
        if not frame.inlined:
            yield site
            site = []
    if site:
        yield site
