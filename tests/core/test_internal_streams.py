"""A stream for enrichers only: no exporter gets it, what nobody takes is counted, and it costs no other row."""

from collections.abc import Iterable

import numpy as np
import pytest

from wstrace import Session
from wstrace.batch import Batch, Dictionary
from wstrace.bus import Queue
from wstrace.interfaces import Enricher
from wstrace.schema import PAGE_FAULT, STACK_DUMP
from wstrace.testing import RecordingExporter, ScriptedSource, batch_of


def dumps(n: int, words: int = 8) -> Batch:
    """Samples with a few registers and a piece of a stack."""
    numbers = {name: np.arange(n, dtype="<u8") for name in ("time_ns", "pc", "va")}
    return Batch(
        STACK_DUMP,
        {
            **numbers,
            "pid": np.full(n, 7, "<u4"),
            "tid": np.full(n, 7, "<u4"),
            "registers": np.zeros((n, 17), "<u8"),
            "dump": np.full((n, words), 0x5EC7E7, "<u8"),
            "size": np.full(n, 8 * words, "<u4"),
        },
    )


def faults(n: int) -> Batch:
    return batch_of(PAGE_FAULT, time_ns=list(range(n)), pid=7, tid=7, pc=1, va=4096, flags=0)


class Taker(Enricher):
    """Takes the samples, some or all of them."""

    name = "taker"

    def __init__(self, share: int = 1) -> None:
        self.taken, self._share = 0, share

    def enrich(self, batch: Batch) -> Iterable[Batch]:
        if not batch.schema.internal:
            return [batch]
        n = len(batch) // self._share
        self.taken += n
        return [batch.take(slice(n, None))] if n < len(batch) else []


def run(*enrichers: Enricher) -> tuple[Session, RecordingExporter]:
    exporter = RecordingExporter()
    source = ScriptedSource([faults(10), dumps(6), faults(5)])
    session = Session(sources=[source], exporters=[exporter], enrichers=list(enrichers)).start()
    session.wait(5)
    session.stop()
    return session, exporter


@pytest.mark.parametrize(("share", "left"), [(1, 0), (2, 3)])
def test_no_exporter_gets_it_and_what_no_enricher_took_is_counted(share, left):
    taker = Taker(share)
    session, exporter = run(taker)
    assert taker.taken == 6 - left
    assert {batch.schema.name for batch in exporter.batches} == {"page_fault"}
    assert session.trace.rows == {"page_fault": 15}
    ledger = session.ledger
    assert (ledger.get("unconsumed", "stack_dump"), ledger.get("recorded")) == (left, 15)
    assert ledger.losses() == [], "no record of the trace is lost"


def test_a_queue_full_of_it_still_takes_the_other_rows_and_the_other_way_round():
    samples, rows = dumps(100), faults(100)
    queue = Queue(limit=samples.nbytes + 1)
    assert queue.put(samples)
    assert not queue.put(samples)
    assert queue.put(rows)
    assert queue.bytes == rows.nbytes
    assert (queue.clear(internal=True), queue.clear()) == (100, 100)
    assert (queue.bytes, queue.internal_bytes) == (0, 0)
    assert queue.put(samples)
    queue.get(0)
    assert queue.internal_bytes == 0


def test_only_an_internal_stream_has_several_values_a_row():
    assert len(dumps(3)) == 3
    assert dumps(3).take(slice(1)).columns["dump"].shape == (1, 8)
    with pytest.raises(ValueError, match="unequal shape"):
        Batch(PAGE_FAULT, {"va": np.zeros((3, 2), "<u8")}, strings=Dictionary())
    with pytest.raises(ValueError, match="unequal shape"):
        Batch(STACK_DUMP, {"pc": np.zeros(3, "<u8"), "dump": np.zeros((2, 8), "<u8")})
