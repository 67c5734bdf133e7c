"""Limit: a thread that other programs keep from a CPU has more time, one that hangs or spins has not."""

import time
from collections.abc import Iterable

import numpy as np
import pytest

from wstrace.batch import Batch
from wstrace.bus import WorkThread
from wstrace.errors import PluginError
from wstrace.interfaces import Enricher
from wstrace.schema import DTYPES, PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import RecordingExporter, ScriptedSource


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
