"""The enricher `mapped_files`: when it asks the system, and what it believes."""

from typing import Any

import numpy as np

from wstrace.interfaces import Context
from wstrace.schema import (
    KIND_FILE,
    KIND_SHIFT,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    SPACE_MAP,
    SPACE_UNMAP,
)
from wstrace.testing import batch_of
from wstrace_plugins.mapped_files.enricher import MappedFiles

FILE = KIND_FILE << KIND_SHIFT
SECOND = 1_000_000_000


class Half:
    """A fake backend: answers with what it was given, and counts the questions."""

    def __init__(self, *rows: tuple[int, int, str]) -> None:
        self.rows, self.wanted = rows, 0

    def listing(self, pid: int, strings: Any) -> dict[str, Any] | None:
        self.wanted += 1
        if not self.rows:
            return None
        start, end, files = zip(*self.rows, strict=True)
        return {"start": np.array(start, "u8"), "end": np.array(end, "u8"), "offset": np.zeros(len(start), "u8"),
                "file": np.array([strings.code(file) for file in files], "u4"),
                "flags": np.full(len(start), FILE, "u2")}  # fmt: skip


def test_an_uncovered_address_is_requested(drive):
    backend = Half((0x1000, 0x2000, "/a"), (0x7000, 0x9000, "/moved"))
    shown = drive(backend)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    assert shown.fault((20, 0x7000), (30, 0x8000), (30, 0xF000)) == ["/moved", "/moved", ""]
    assert shown.fault((40, 0x7000)) == ["/moved"]
    assert backend.wanted == 1  # and its answer is kept
    assert shown.context.ledger.get("unresolved", "va") == 1


def test_an_answer_of_another_image_is_not_believed(drive):
    shown = drive(Half((0x40_0000, 0x40_1000, "/another"), (0x7000, 0x9000, "/moved")))
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    assert shown.fault((20, 0x7000)) == [""]
    assert shown.enricher.statistics()["listings_refused"] >= 1


def test_a_process_that_has_ended_meanwhile_answers_nothing(drive):
    """A zombie's maps are an empty file."""
    backend = Half((0x1000, 0x2000, "/a"))
    shown = drive(backend)
    shown.process(PROCESS_FORK, 10, pid=8, ppid=99)
    backend.listing = lambda *_: {"start": np.zeros(0, "u8"), "end": np.zeros(0, "u8"), "file": np.zeros(0, "u4")}
    assert shown.fault((20, 0x1000), pid=8) == [""]
    assert shown.enricher.statistics()["listings_refused"] == 1
    shown.process(PROCESS_EXIT, 30, pid=8)  # and its number may be another's now
    assert shown.fault((20, 0x1000), pid=8) == [""]
    assert shown.enricher.statistics()["listings"] == 1


def test_a_trace_without_targets_asks_nothing(drive):
    """Its pids are those of another time or machine."""
    backend = Half((0x1000, 0x2000, "/a"))
    enricher = MappedFiles()
    enricher.system = backend
    enricher.start(Context())
    context = drive().context
    list(enricher.enrich(batch_of(PROCESS, context.strings, time_ns=1, pid=7, ppid=1, tid=7, event=PROCESS_FORK)))
    list(enricher.enrich(batch_of(PAGE_FAULT, context.strings, time_ns=2, pid=7, tid=7, pc=0, va=0x1000)))
    assert backend.wanted == 0


def test_nothing_is_read_of_the_past_or_of_strangers(drive):
    backend = Half((0x1000, 0x2000, "/a"))
    shown = drive(backend)
    assert shown.fault((5, 0x1000), pid=99) == [""]  # no row ever named that process
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    shown.space(SPACE_UNMAP, 20, (0x1000, 0x2000, ""))
    shown.space(SPACE_MAP, 30, (0x1000, 0x2000, "/b"))
    assert shown.fault((25, 0x1000)) == [""]  # what lay there then is gone
    shown.process(PROCESS_EXEC, 40)
    assert shown.fault((15, 0x5000)) == [""]  # an image that is gone
    assert backend.wanted == 0


def test_after_lost_rows_a_process_is_unknown_until_it_is_listed(drive):
    backend = Half((0x1000, 0x2000, "/a"))
    shown = drive(backend)
    shown.space(SPACE_MAP, 10, (0x1000, 0x2000, "/a"))
    shown.space(SPACE_UNMAP, 20, (0, 2**64 - 1, ""))
    assert shown.fault((15, 0x1000), (25, 0x1000)) == ["/a", ""]
    assert backend.wanted == 0
    shown.listing(30, (0x1000, 0x2000, "/a"))
    assert shown.fault((25, 0x1000), (35, 0x1000)) == ["", "/a"]
