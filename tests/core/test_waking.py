"""A source that waits for long is woken when the session stops."""

import threading
from collections.abc import Iterable
from typing import ClassVar

from wstrace import Session
from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import MARK, Schema


class Waiting(Source):
    """Waits in drain() until it is woken, however long that takes."""

    name: ClassVar[str] = "waiting"
    streams: ClassVar[tuple[Schema, ...]] = (MARK,)
    drain_seconds: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self.waits, self.woken, self.wanted = threading.Event(), threading.Event(), list[float]()

    def start(self, context: Context) -> None:
        pass

    def drain(self, timeout: float) -> Iterable[Batch]:
        self.wanted.append(timeout)
        self.waits.set()
        self.woken.wait()
        return ()

    def wake(self) -> None:
        self.woken.set()

    def stop(self) -> Iterable[Batch]:
        return ()


def test_the_end_of_a_session_ends_a_long_wait():
    """WHEN a source waits as long as it may THEN it knows how long, and stop() does not wait for that."""
    source = Waiting()
    with Session(sources=[source], exporters=[]):
        assert source.waits.wait(30)
    assert source.woken.is_set()
    assert source.wanted == [60.0]
