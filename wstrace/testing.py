"""The public testing kit for plugin authors: scripted sources, targets and exporters, and contracts to subclass.

    from wstrace.testing import SourceContract

    class TestMySource(SourceContract):
        def make(self):
            return MySource(interval_ms=1)

The contract classes use plain asserts and need nothing but a test runner that collects classes (pytest).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context, Enricher, Exporter, Source, Target, Usage
from wstrace.schema import DTYPES, ID_SPACES, SEMANTICS, STREAMS, Schema


def batch_of(schema: Schema, strings: Dictionary | None = None, **columns: Any) -> Batch:
    """Creates a batch from lists or scalars; `str` columns take names, and scalars are repeated for every row.

    >>> len(batch_of(STREAMS["page_fault"], va=[4096, 8192], pid=1))
    2
    """
    strings = strings if strings is not None else Dictionary()
    n = max((len(v) for v in columns.values() if isinstance(v, Sequence) and not isinstance(v, str)), default=1)
    arrays = {}
    for name, value in columns.items():
        column = schema.column(name)
        values = [value] * n if isinstance(value, str | int) else list(value)
        if column is not None and column.semantic == "str":
            values = [strings.code(v) if isinstance(v, str) else v for v in values]
        arrays[name] = np.array(values, DTYPES[column.type] if column is not None else None)
    times = arrays.get("time_ns")
    window = (int(times.min()), int(times.max())) if times is not None and n else (0, 0)
    return Batch(schema, arrays, window=window, strings=strings)


class ScriptedSource(Source):
    """Returns its given batches, one per drain, and then is finished. It adds their names to the session's."""

    name = "scripted"
    streams = tuple(STREAMS.values())

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._batches = list(batches)
        self.started = self.stopped = False

    def start(self, context: Context) -> None:
        """Translates the names to the session's dictionary."""
        self.started = True
        self._batches = [batch.recode(context.strings) for batch in self._batches]

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The next batch."""
        return [self._batches.pop(0)] if self._batches else []

    def stop(self) -> Iterable[Batch]:
        """The remaining batches."""
        self.stopped = True
        rest, self._batches = self._batches, []
        return rest

    @property
    def finished(self) -> bool:
        """Whether no batch is left."""
        return not self._batches


class ScriptedTarget(Target):
    """A target that keeps running. There is no process behind it, so nothing may query the system about it."""

    def __init__(self, pid: int = 7, name: str = "scripted", *, launched: bool = True) -> None:
        self.pid, self.name, self.launched = pid, name, launched

    def resume(self) -> None:
        """Does nothing, as no process waits."""

    def wait(self, timeout: float) -> int | None:
        """None, as it never ends."""
        return None

    def usage(self) -> Usage:
        """An empty Usage, as there is no process."""
        return Usage()

    def signal(self, number: int) -> None:
        """Does nothing, as there is no process to signal."""

    def close(self) -> None:
        """Does nothing, as there is no handle to close."""


class RecordingExporter(Exporter):
    """Keeps what it receives: the batches in `batches`, and the names of the calls in `calls`."""

    name = "recording"

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.context = Context()

    def start(self, context: Context) -> None:
        """Records the call."""
        self.context = context
        self.calls.append("start")

    def export(self, batch: Batch) -> None:
        """Keeps the batch."""
        self.batches.append(batch)

    def flush(self, timeout: float) -> None:
        """Records the call."""
        self.calls.append("flush")

    def close(self) -> None:
        """Records the call."""
        self.calls.append("close")

    def of(self, stream: str) -> list[Batch]:
        """The batches of one stream."""
        return [batch for batch in self.batches if batch.schema.name == stream]


class SourceContract:
    """The contract of every source. Subclass it and define make(); override context() for a target that has rows.

    A source that returns no batch fails, because there is nothing to check.
    """

    def make(self) -> Source:
        """Returns a new source that is not started."""
        raise NotImplementedError

    def context(self) -> Context:
        """Returns the context that the source is started with."""
        return Context()

    def batches(self, source: Source, seconds: float = 2.0) -> list[Batch]:
        """Runs the source for a while and stops it; returns all batches."""
        context = self.context()
        source.open(context)
        source.start(context)
        found: list[Batch] = []
        until = time.monotonic() + seconds
        while not source.finished and time.monotonic() < until and not found:
            found.extend(source.drain(0.05))
        found.extend(source.stop())
        return found

    def test_it_is_named_and_states_its_streams(self) -> None:
        """It has a name that `-s` accepts, and schemas."""
        source = self.make()
        assert source.name.isidentifier()
        assert source.streams
        assert all(isinstance(stream, Schema) for stream in source.streams)

    def test_its_batches_keep_the_schema(self) -> None:
        """Types, windows and read-only columns are as the schema states."""
        source = self.make()
        found = self.batches(source)
        assert sum(map(len, found)), "it gave no row: give it a target that has some, in context()"
        for batch in found:
            assert batch.schema in source.streams
            assert batch.schema.always <= set(batch), "columns that every batch of the stream has"
            for column in batch.schema.columns:
                if column.name in batch:
                    assert batch[column.name].dtype == np.dtype(DTYPES[column.type]), column.name
                    assert not batch[column.name].flags.writeable
            assert batch.window[0] <= batch.window[1]
            assert batch.lost >= 0

    def test_its_columns_say_what_they_mean(self) -> None:
        """Semantics are known ones; ids of names and tables are u32."""
        for schema in self.make().streams:
            for column in schema.columns:
                assert column.semantic in SEMANTICS, f"{schema.name}.{column.name}: {column.semantic}"
                if column.semantic in ID_SPACES:
                    assert column.type == "u32", f"{schema.name}.{column.name} holds ids, which are u32"

    def test_its_names_survive_a_move(self) -> None:
        """In another dictionary, as a file has one, the names are the same texts and all other values are unchanged."""
        source = self.make()
        found = self.batches(source)
        assert found, "it gave nothing: give it a target that it has rows of, in context()"
        for batch in found:
            moved = batch.recode(Dictionary())
            for name in batch:
                column = batch.schema.column(name)
                assert len(moved[name]) == len(batch)
                if column is None or column.semantic != "str":
                    assert np.array_equal(moved[name], batch[name]), name
                    continue
                for before, after in set(zip(batch[name].tolist(), moved[name].tolist(), strict=True)):
                    assert before < len(batch.strings), f"{name}: {before} is the code of no name in the session"
                    assert batch.strings[before] == moved.strings[after], name

    def test_drain_returns_in_time(self) -> None:
        """drain() returns within its timeout."""
        source, context = self.make(), self.context()
        source.open(context)
        source.start(context)
        started = time.monotonic()
        list(source.drain(0.05))
        assert time.monotonic() - started < 2.0
        list(source.stop())

    def test_statistics_are_numbers(self) -> None:
        """statistics() returns numbers, which can be shown and exported."""
        _assert_numbers(self.make().statistics())


class EnricherContract:
    """The contract of every enricher. Subclass it and define make() and batch()."""

    def make(self) -> Enricher:
        """Returns a new enricher."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """Returns a batch that it enriches."""
        raise NotImplementedError

    def test_it_gives_every_row_on_and_only_adds(self) -> None:
        """No row is lost and no column is changed."""
        enricher, batch = self.make(), self.batch()
        enricher.start(Context(strings=batch.strings))
        out = [b for b in enricher.enrich(batch) if b.schema is batch.schema]
        assert sum(len(b) for b in out) == len(batch)
        for name in batch:
            assert np.array_equal(np.concatenate([b[name] for b in out]), batch[name])

    def test_a_column_that_stands_is_left(self) -> None:
        """A replayed batch keeps the columns that it has."""
        enricher, batch = self.make(), self.batch()
        enricher.start(Context(strings=batch.strings))
        once = next(b for b in enricher.enrich(batch) if b.schema is batch.schema)
        twice = next(b for b in self.make().enrich(once) if b.schema is batch.schema)
        for name in once:
            assert np.array_equal(once[name], twice[name]), name

    def test_statistics_are_numbers(self) -> None:
        """statistics() returns numbers, which can be shown and exported."""
        _assert_numbers(self.make().statistics())


class ExporterContract:
    """The contract of every exporter. Subclass it and define make() and batch()."""

    def make(self) -> Exporter:
        """Returns a new exporter that is not started."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """Returns a batch that it accepts."""
        from wstrace.schema import PAGE_FAULT

        return batch_of(
            PAGE_FAULT, time_ns=[1, 2, 3], pid=7, tid=7, pc=[1, 2, 3], va=[4096, 8192, 8192], flags=[0, 1, 0]
        )

    def test_its_life_from_start_to_close(self) -> None:
        """Calls all methods in their order."""
        exporter, batch = self.make(), self.batch()
        exporter.start(Context(strings=batch.strings))
        exporter.export(batch)
        exporter.tick()
        exporter.flush(1.0)
        exporter.close()

    def test_nothing_to_export_is_no_error(self) -> None:
        """A trace without records is valid."""
        exporter = self.make()
        exporter.start(Context())
        exporter.flush(1.0)
        exporter.close()

    def test_it_takes_batches_on_another_thread(self) -> None:
        """An exporter is called on another thread than the one that started it."""
        exporter, batch = self.make(), self.batch()
        exporter.start(Context(strings=batch.strings))

        def export() -> None:
            exporter.export(batch)
            exporter.close()

        thread = threading.Thread(target=export)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    def test_statistics_are_numbers(self) -> None:
        """statistics() returns numbers, which can be shown and exported."""
        _assert_numbers(self.make().statistics())


def _assert_numbers(statistics: Mapping[str, object]) -> None:
    assert all(isinstance(value, int | float | str) for value in statistics.values())
