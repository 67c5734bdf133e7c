"""The enricher `spans`: a session that traces its own process records the spans that end there, as the stream `span`.

Spans are those that FaultSpanProcessor and `wstrace.span` see. Those of another process are not known here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.interfaces import Context, Enricher
from wstrace.schema import DTYPES, SPAN, SPAN_OPEN
from wstrace_exporters.otel.names import SPANS_LOST
from wstrace_exporters.otel.spans import SpanInterval, span_intervals

#: spans that wait to be recorded
MOST = 65_536
_HALF = (1 << 64) - 1


class RecordedSpans(Enricher):
    """Adds the spans that have ended before the next batch, and at last those that are still open."""

    name = "spans"

    def __init__(self) -> None:
        self._ended: deque[SpanInterval] = deque()
        self._follows = False
        self.lost = 0

    def start(self, context: Context) -> None:
        """Follows the spans of this process, where it is traced."""
        self._context = context
        if context.live and os.getpid() in context.info.targets and context.wants(SPAN):
            self._follows = True
            span_intervals.follow(self._take)

    def _take(self, span: SpanInterval) -> None:
        """Takes a span that has ended; one for which there is no room is counted. Without a lock."""
        if len(self._ended) < MOST:
            self._ended.append(span)
        else:
            self.lost += 1

    def enrich(self, batch: Batch) -> Iterable[Batch]:
        """Yields the spans that have ended, then the batch."""
        yield from self._rows([])
        yield batch

    def close(self) -> Iterable[Batch]:
        """Yields the last spans."""
        if self._follows:
            yield from self._rows(span_intervals.unfollow(self._take))
            if self.lost:
                self._context.ledger.add(SPANS_LOST, self.lost)

    def _rows(self, still_open: list[SpanInterval]) -> Iterator[Batch]:
        """The spans that have ended, then those."""
        spans = [self._ended.popleft() for _ in range(len(self._ended))] + still_open
        if not spans:
            return
        code, pid, now = self._context.strings.code, span_intervals.pid, now_ns()
        rows = {
            "time_ns": [one.start for one in spans],
            "end_ns": [one.end or now for one in spans],
            "pid": [pid] * len(spans),
            "tid": [one.tid for one in spans],
            "name": [code(_text(one.name)) for one in spans],
            "flags": [0 if one.end else SPAN_OPEN for one in spans],
            "span_id": [one.span_id for one in spans],
            "trace_high": [one.trace_id >> 64 & _HALF for one in spans],
            "trace_low": [one.trace_id & _HALF for one in spans],
        }
        columns = {column.name: np.array(rows[column.name], DTYPES[column.type]) for column in SPAN.columns}
        times = columns["time_ns"]
        yield Batch(SPAN, columns, window=(int(times.min()), int(times.max())), source=self.name,
                    strings=self._context.strings)  # fmt: skip


def _text(name: object) -> str:
    """The name of a span, cut where it is too long; OpenTelemetry takes what is no text, too: its type is said then."""
    if not isinstance(name, str):
        return f"({type(name).__name__})"
    most = Dictionary.MAX_NAME_CHARS
    return name if len(name) <= most else name[: most - 3] + "..."
