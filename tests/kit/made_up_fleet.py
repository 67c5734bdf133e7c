"""Rollups of a made-up fleet of six hosts on two days, with something to be found by each query of docs/fleet.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wstrace.analysis.rollup import ROLLUP
from wstrace.batch import Dictionary
from wstrace.rollup_files import write_rollup
from wstrace.schema import KIND_FILE, KIND_HEAP
from wstrace.testing import batch_of

HOSTS = [f"h{n}" for n in range(6)]
DAYS = (20_000, 20_001)
PAGE = 4096
Row = dict[str, str | int]


def rows(host: str, day: int) -> Iterator[Row]:
    """What happened on a host on a day."""
    morning = day * 86_400 + 21_600
    for process, usual, later in (("api", 100, 200), ("cron", 100, 105)):
        at_start = later if day == DAYS[1] else usual
        yield {"second": morning, "process": process, "file": f"/bin/{process}", "faults": at_start - 20}
        yield {"second": morning + 9, "process": process, "file": "[heap]", "faults": 20, "kind": KIND_HEAP}
        yield {"second": morning + 3600, "process": process, "file": "[heap]", "faults": 7_000 - at_start}
    yield {"second": morning, "process": "(others)", "file": "(others)", "function": "(others)", "faults": 3}
    yield {"second": morning + 1, "process": "(lost)", "file": "(lost)", "lost": 17}
    yield {"second": morning + 2, "process": "db", "file": "/srv/index.bin", "faults": 50, "major": 1}
    if host == "h0":
        yield {"second": morning + 2, "process": "db", "file": "/usr/lib/libx.so", "faults": 5, "major": 1}
    yield {"second": morning + 4, "process": "batch", "file": "/data", "faults": 1000 if host == "h3" else 100}
    # `worker` copies what it had shared; `cache` grows, and all that it has is its own
    for minute, private, resident in ((0, 10, 100), (50, 90, 100)):
        for looked in (morning + 60 * minute, morning + 60 * minute + 10):
            for process, less in (("worker", 0), ("cache", 80 if minute == 0 else 0)):
                yield {"second": looked, "process": process, "file": "[heap]", "kind": KIND_HEAP, "looks": 2,
                       "resident_bytes": 2 * (resident - less) * PAGE, "private_bytes": 2 * private * PAGE}  # fmt: skip


def make(folder: Path) -> None:
    """Writes it."""
    nothing: Row = {column.name: "" if column.semantic == "str" else 0 for column in ROLLUP.columns}
    nothing["kind"] = KIND_FILE
    for host in HOSTS:
        for day in DAYS:
            made = [nothing | {"host": host} | row for row in rows(host, day)]
            for row in made:
                row["recorded"], row["bytes"] = row["faults"], int(row["faults"]) * PAGE
            columns = {name: [row[name] for row in made] for name in nothing}
            write_rollup(batch_of(ROLLUP, Dictionary(), **columns), str(folder), "made-up")


#: heading of docs/fleet.md -> the rows that its query gives
FOUND: dict[str, list[tuple[object, ...]]] = {
    "Whose start-up regressed": [("api", 100, 200, 6)],
    "Which file faults most from disk": [
        ("/srv/index.bin", 600, 600 * PAGE, 6),
        ("/usr/lib/libx.so", 10, 10 * PAGE, 1),
    ],
    "Where workers un-share": [("worker", "[heap]", 6, 6 * 80 * PAGE, 0)],
    "Hosts that differ": [("batch", "h3", 2000, 200)],
}
