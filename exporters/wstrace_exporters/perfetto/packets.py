"""Packets of Perfetto's trace format, and the names that they share.

Source: https://github.com/google/perfetto/tree/main/protos/perfetto/trace
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import IO

from wstrace.protobuf import data, number
from wstrace.text import printable

#: Tables of InternedData: rows of an id and a text, and those of stacks.
CATEGORIES, NAMES, ARGUMENTS, TEXTS, FUNCTIONS, PATHS = 1, 2, 3, 29, 5, 17
MAPPINGS, FRAMES, CALLSTACKS = 19, 6, 7
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_SEQUENCE = number(10, 1)  # all packets are of one sequence, which shares the names
_FIRST, _USES = number(13, 1) + number(87, 1), number(13, 2)
_REALTIME, _MONOTONIC, _BOOTTIME = 1, 3, 6
_IN_USER_MODE = 2
_IN_BYTES = data(8, number(3, 3))
#: what samples are of, as perf calls it: each fault is one
_SAMPLED = data(59, data(12, data(1, number(1, 1) + number(4, 2) + data(10, "page-faults"))))
#: Characters of a name; the middle of a longer one is left out.
LONGEST = 1024


class Packets:
    """Writes packets to a file. file: the output. begin_ns: when the trace began. wall_ns: the wall time then."""

    def __init__(self, file: IO[bytes], begin_ns: int, wall_ns: int) -> None:
        self._file, self._begin_ns = file, begin_ns
        self._ids: defaultdict[int, dict[object, int]] = defaultdict(dict)
        self._new: list[bytes] = []  # rows that no packet has brought yet
        self._tracks = 0
        clocks = ((_BOOTTIME, begin_ns), (_MONOTONIC, begin_ns), (_REALTIME, wall_ns))
        snapshot = b"".join(data(1, number(1, clock) + number(2, time)) for clock, time in clocks)
        self._put(begin_ns, _FIRST + data(6, snapshot) + _SAMPLED)

    def _put(self, time_ns: int, body: bytes) -> None:
        names = data(12, b"".join(self._new)) if self._new else b""
        self._new.clear()
        self._file.write(data(1, number(8, time_ns) + _SEQUENCE + names + body))

    def row(self, table: int, key: object, content: Callable[[], bytes]) -> int:
        """The id of a row of a table; its content is made only when it is new."""
        known = self._ids[table]
        if key not in known:
            body = content()  # may make rows of other tables, which stand before it
            known[key] = len(known) + 1
            self._new.append(data(table, number(1, known[key]) + body))
        return known[key]

    def name(self, table: int, text: str) -> int:
        """The id of a text."""
        return self.row(table, text, lambda: data(2, printable(text, LONGEST)))

    def track(self, name: str, *, parent: int = 0, content: bytes = b"") -> int:
        """The number of a new track. content: what it is of, as process() and thread() give it."""
        self._tracks += 1
        above = number(5, parent) if parent else b""
        body = number(1, self._tracks) + above + data(2, printable(name, LONGEST)) + content
        self._put(self._begin_ns, data(60, body))
        return self._tracks

    def process(self, pid: int, name: str) -> int:
        """The track of a process."""
        return self.track(name, content=data(3, number(1, pid) + data(6, printable(name, LONGEST))))

    def thread(self, pid: int, tid: int, name: str, parent: int) -> int:
        """The track of a thread."""
        of = data(4, number(1, pid) + number(2, tid) + data(5, printable(name, LONGEST)))
        return self.track(name, parent=parent, content=of)

    def counter(self, name: str, parent: int) -> int:
        """The track of a counter in bytes."""
        return self.track(name, parent=parent, content=_IN_BYTES)

    def count(self, time_ns: int, track: int, value: int) -> None:
        """The value of a counter from then on."""
        self._put(time_ns, data(11, number(9, _COUNTER) + number(11, track) + number(30, value)))

    def instant(self, time_ns: int, track: int, name: str, category: str = "", arguments: bytes = b"") -> None:
        """An event without a duration."""
        self._event(time_ns, track, _INSTANT, name, category, arguments)

    def slice(self, begin_ns: int, end_ns: int, track: int, name: str, category: str) -> None:
        """An event with a duration. Those of one track must not overlap."""
        self._event(begin_ns, track, _SLICE_BEGIN, name, category)
        self._put(end_ns, data(11, number(9, _SLICE_END) + number(11, track)))

    def _event(self, time_ns: int, track: int, kind: int, name: str, category: str, arguments: bytes = b"") -> None:
        of = number(3, self.name(CATEGORIES, category)) if category else b""
        event = number(9, kind) + number(11, track) + number(10, self.name(NAMES, name)) + of + arguments
        self._put(time_ns, _USES + data(11, event))

    def address(self, name: str, value: int) -> bytes:
        """An argument of an event that is an address."""
        return data(4, number(1, self.name(ARGUMENTS, name)) + number(7, value))

    def text(self, name: str, value: str) -> bytes:
        """An argument of an event that is a text."""
        return data(4, number(1, self.name(ARGUMENTS, name)) + number(17, self.name(TEXTS, value)))

    def sample(self, time_ns: int, pid: int, tid: int, frames: Sequence[int], count: int) -> None:
        """A stack at a time; its frames outermost first, as row() of FRAMES gave them. count: the faults up to it."""
        key = tuple(frames)
        stack = self.row(CALLSTACKS, key, lambda: b"".join(number(2, frame) for frame in key))
        process = number(2, pid) + number(3, tid) + number(4, stack) + number(5, _IN_USER_MODE)
        self._put(time_ns, _USES + data(66, process + number(6, count)))
