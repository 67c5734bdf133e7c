"""Between threads: a stream for enrichers only, batches that exporters gather; what a thread may take."""

import threading
import time
from collections.abc import Iterable

import numpy as np
import pytest
from kit.command_line import until

from wstrace import bus
from wstrace.batch import Batch, Dictionary
from wstrace.bus import Queue, WorkThread
from wstrace.errors import PluginError
from wstrace.interfaces import Enricher
from wstrace.schema import DTYPES, PAGE_FAULT, STACK_DUMP
from wstrace.session import Session
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


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_an_exporter_that_works_on_a_busy_machine_finishes(share, monkeypatch):
    """GIVEN an exporter that ends after twice the limit WHEN it has had a CPU now and then THEN it is not abandoned."""

    class Closes(RecordingExporter):
        def close(self) -> None:
            time.sleep(1.0)

    monkeypatch.setattr(WorkThread, "cpu_seconds", lambda _: time.monotonic() * share)
    with Session(sources=[ScriptedSource()], exporters=[Closes()], record=False, patience=0.5) as session:
        session.wait(10)
    assert session.exporter_queues[0].detached == ("" if share else "did not finish in 0.5 s")


def test_rows_that_an_enricher_holds_back_are_counted_where_it_hangs():
    class Holds(Enricher):
        name = "holds"

        def enrich(self, batch: Batch) -> Iterable[Batch]:
            self.held += len(batch)
            return ()

        def close(self) -> Iterable[Batch]:
            time.sleep(5.0)
            return ()

    types = {column.name: DTYPES[column.type] for column in PAGE_FAULT.columns}
    batch = Batch(PAGE_FAULT, {name: np.zeros(7, types[name]) for name in PAGE_FAULT.always})
    session = Session(sources=[ScriptedSource([batch])], enrichers=[Holds()], record=False, patience=0.5)
    with pytest.raises(PluginError, match="did not finish"), session:
        session.wait(10)
    assert session.ledger.get("dropped_enricher", "holds") == 7


MUCH = 1 << 20


@pytest.fixture
def gathers(monkeypatch):
    """By time alone, nothing would be given before the test is over."""
    monkeypatch.setattr(bus, "GATHERED_BYTES", MUCH)
    monkeypatch.setattr(bus, "GATHERED_SECONDS", 3600.0)


class Gathered(threading.Thread):
    """Takes all batches until the queue is closed; notes how many bytes there were at the first of each bulk."""

    def __init__(self, queue: Queue, batches: int) -> None:
        super().__init__(daemon=True)
        self.queue, self.batches, self.waiting = queue, batches, list[int]()
        self.start()

    def run(self) -> None:
        for _ in range(self.batches):
            if (batch := self.queue.get(3600.0, gathered=True)) is not None:
                self.waiting.append(self.queue.bytes + batch.nbytes)


def test_they_come_when_the_first_has_waited_long(gathers, monkeypatch):
    monkeypatch.setattr(bus, "GATHERED_SECONDS", 0.01)
    queue = Queue()
    queue.put(faults(10))
    assert queue.get(3600.0, gathered=True) is not None


def test_what_waits_for_more_leaves_room_for_a_batch_as_large_as_the_queue(gathers):
    """An exporter that does not wait would have taken the small one, so that the large one would have found room."""
    small, large = faults(1000), faults(3000)
    queue = Queue(limit=large.nbytes + small.nbytes // 2)
    assert queue.put(small)
    assert not queue.put(large)  # nobody takes
    taker = Gathered(queue, 2)
    until(lambda: queue.put(large))  # until the taker waits for more than the small one
    queue.close()
    taker.join(60)
    assert taker.waiting == [small.nbytes + large.nbytes, large.nbytes]
