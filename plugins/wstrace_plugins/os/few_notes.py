"""Notes about single processes: a trace of thousands of them keeps the first few of each kind, and a number."""

from __future__ import annotations

from collections import Counter

from wstrace.interfaces import TraceInfo

MOST = 3


class FewNotes:
    """Adds notes to a trace's description, at most MOST of a kind; end() adds how many more there were."""

    def __init__(self, info: TraceInfo) -> None:
        self._info = info
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, text: str) -> None:
        """A note of its own, while there are few.

        kind: what the others are called behind their number: `children are not traced`. text: the note.
        """
        self._counts[kind] += 1
        if self._counts[kind] <= MOST:
            self._info.note(text)

    def end(self) -> None:
        """Says how many there were beyond the few; called once."""
        for kind, count in self._counts.items():
            if count > MOST:
                self._info.note(f"{count - MOST} more {kind}")
