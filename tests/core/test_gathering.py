"""Exporters that may wait are given their batches in bulk, so that what is written slows down no burst."""

import threading

import pytest
from kit.command_line import until

from wstrace import bus
from wstrace.batch import Batch
from wstrace.bus import Queue
from wstrace.schema import PAGE_FAULT
from wstrace.testing import batch_of

MUCH = 1 << 20


def faults(n: int) -> Batch:
    return batch_of(
        PAGE_FAULT, time_ns=list(range(n)), pid=1, tid=1, pc=1, va=[4096 * page for page in range(n)], flags=0
    )


@pytest.fixture(autouse=True)
def long(monkeypatch):
    """By time alone, nothing would be given before the test is over."""
    monkeypatch.setattr(bus, "GATHERED_BYTES", MUCH)
    monkeypatch.setattr(bus, "GATHERED_SECONDS", 3600.0)


class Taker(threading.Thread):
    """Takes all batches until the queue is closed; notes how many bytes there were at the first of each bulk."""

    def __init__(self, queue: Queue, batches: int) -> None:
        super().__init__(daemon=True)
        self.queue, self.batches, self.waiting = queue, batches, list[int]()
        self.start()

    def run(self) -> None:
        for _ in range(self.batches):
            if (batch := self.queue.get(3600.0, gathered=True)) is not None:
                self.waiting.append(self.queue.bytes + batch.nbytes)


def test_they_come_when_the_first_has_waited_long(monkeypatch):
    monkeypatch.setattr(bus, "GATHERED_SECONDS", 0.01)
    queue = Queue()
    queue.put(faults(10))
    assert queue.get(3600.0, gathered=True) is not None


def test_they_come_when_no_more_will():
    queue = Queue()
    taker = Taker(queue, 3)
    queue.put(faults(10))
    queue.put(faults(10))
    queue.close()
    taker.join(60)
    assert len(taker.waiting) == 2


def test_what_waits_for_more_leaves_room_for_a_batch_as_large_as_the_queue():
    """An exporter that does not wait would have taken the small one, so that the large one would have found room."""
    small, large = faults(1000), faults(3000)
    queue = Queue(limit=large.nbytes + small.nbytes // 2)
    assert queue.put(small)
    assert not queue.put(large)  # nobody takes
    taker = Taker(queue, 2)
    until(lambda: queue.put(large))  # until the taker waits for more than the small one
    queue.close()
    taker.join(60)
    assert taker.waiting == [small.nbytes + large.nbytes, large.nbytes]
