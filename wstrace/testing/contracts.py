"""The contracts of sources, enrichers and exporters."""

from __future__ import annotations

import threading
import time

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context, Enricher, Exporter, Source
from wstrace.schema import DTYPES, ID_SPACES, PAGE_FAULT, SEMANTICS, Schema
from wstrace.testing.scripted import batch_of


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


class ExporterContract:
    """The contract of every exporter. Subclass it and define make() and batch()."""

    def make(self) -> Exporter:
        """Returns a new exporter that is not started."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """Returns a batch that it accepts."""
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
