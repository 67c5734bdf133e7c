"""A tracer that runs out of memory: the target is not disturbed, and what was missed is counted as lost."""

import sys

import numpy as np
import pytest

from wstrace.errors import PluginError
from wstrace.plugins import Plugins
from wstrace.session import Session
from wstrace.testing import RecordingExporter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="perf events: on Linux")
#: takes faults for a while, in slices that need several drains; of small pages, also where all memory has huge ones
PROGRAM = (
    "import ctypes, time\nctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"
    "for i in range(8): x = bytearray(20_000_000); time.sleep(0.1)\nraise SystemExit(7)"
)


@pytest.mark.parametrize("failures", [1, 10**6], ids=["once", "for good"])
def test_what_the_kernel_counted_is_recorded_or_lost(failures, monkeypatch, full_level):
    from wstrace_plugins.page_faults.linux import backend

    merge, calls = backend.merge, []

    def fails(*arguments):
        calls.append(1)
        rows = merge(*arguments)  # which takes them from what is held
        if 3 <= len(calls) < 3 + failures:
            raise MemoryError("no room for the rows")
        return rows

    monkeypatch.setattr(backend, "merge", fails)
    keep = RecordingExporter()
    target = Plugins().platform.launch([sys.executable, "-c", PROGRAM])
    session = Session(targets=[target], sources="page_faults", exporters=keep, enrichers=[], record=False)
    session.start()
    assert session.wait(30)
    with pytest.raises(PluginError, match="source page_faults failed: MemoryError: no room for the rows"):
        session.stop()
    ledger = session.ledger
    recorded = sum(len(batch) for batch in keep.of("page_fault"))
    assert ledger.get("recorded", "page_fault") == recorded > 0
    lost = sum(ledger.get(stage) for stage in ("lost_kernel", "lost_tracer", "foreign_clock"))
    assert recorded + lost + ledger.get("unaccounted") == ledger.get("counted") > 8 * 20_000_000 // 4096 // 2
    assert ledger.get("lost_tracer") > 0
    assert [stage for stage, _, _ in ledger.losses()].count("lost_tracer") >= 1
    assert session.info.exit_code == 7
    assert [note for note in session.info.notes if "MemoryError" in note]
    times = np.concatenate([batch["time_ns"] for batch in keep.of("page_fault")])
    assert len(times) == recorded
