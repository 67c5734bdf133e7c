"""The loss ledger: every record that did not arrive is counted in one of these rows, so no loss is silent."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from wstrace.text import number, printable, printable_words

#: stage -> (whether it is a loss, what it counts), in the order in which the stages are shown.
STAGES: dict[str, tuple[bool, str]] = {
    "counted": (False, "faults that the kernel's own counter saw, by type"),
    "recorded": (False, "records taken over from the kernel, by stream"),
    "lost_kernel": (True, "records that the kernel dropped: its buffer was full"),
    "lost_side_band": (True, "mapping and process records that the kernel dropped"),
    "lost_tracer": (True, "records that the kernel gave and the tracer failed on"),
    "foreign_clock": (True, "records timed by another tracer's clock, not stored"),
    "unaccounted": (False, "counted by the kernel but neither recorded nor reported lost"),
    "late": (False, "records that came after their time's watermark: kept, out of order"),
    "duplicates": (False, "records that two events gave twice: kept once"),
    "before_start": (False, "records of the time before the trace began: left out"),
    "before_watch": (False, "faults of a child before it could be watched"),
    "sampled": (False, "one in this many faults was recorded"),
    "dropped_bus": (True, "records dropped: the bus's queue was full"),
    "dropped_enricher": (True, "records dropped: an enricher did not finish"),
    "dropped_exporter": (True, "records dropped: the exporter's queue was full or it was detached"),
    "failed_exporter": (True, "records that the exporter failed to take"),
    "failed_enricher": (False, "records that an enricher failed on: its columns are absent"),
    "unresolved": (False, "records whose address has no known mapping"),
    "without_stack": (False, "recorded faults without a Python stack, by reason"),
    "stacks_lost": (False, "sampled stacks that no fault got, by reason"),
    "unconsumed": (False, "rows for enrichers only that no enricher took, or that found no room"),
    "without_column": (False, "records without a column that a trace file has no type or no room for"),
    "names_overflowed": (False, "names past the dictionary's limits: they read as unknown"),
}
#: Rows that sum up what is there.
_IN_SUMS = frozenset({"counted", "recorded", "sampled", "unaccounted", "without_stack"})
#: losses of a trace file that are counted in files, frames and bytes, not in records
OF_FILES = frozenset({"file_cut", "file_bad_frames", "file_lost_frames", "file_lost_bytes"})


class Ledger:
    """Counts by (stage, who), where `who` names the stream, the source or the exporter. Thread-safe.

    A stage without a description counts as a loss, so that a stage invented by a plugin is shown, not hidden.

    Args:
        stages: descriptions of the plugins' own stages (hook `wstrace_stages`), in the form of STAGES.
    """

    def __init__(self, stages: Mapping[str, tuple[bool, str]] | None = None) -> None:
        # STAGES comes first for the order, and last so that no plugin redefines a stage of the core.
        self._stages = {**STAGES, **(stages or {}), **STAGES}
        self._rows: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def add(self, stage: str, count: int, who: str = "") -> None:
        """Adds to a row; adding 0 does not create a row."""
        if count:
            with self._lock:
                self._rows[stage, who] = self._rows.get((stage, who), 0) + int(count)

    def set(self, stage: str, count: int, who: str = "") -> None:
        """Sets a row to a total that is known as a whole."""
        with self._lock:
            self._rows[stage, who] = int(count)

    def get(self, stage: str, who: str | None = None) -> int:
        """The count of a stage, for one `who` or for all together."""
        with self._lock:
            return sum(n for (s, w), n in self._rows.items() if s == stage and (who is None or w == who))

    def rows(self) -> list[tuple[str, str, int]]:
        """(stage, who, count), in the order of STAGES, followed by the plugins' stages."""
        order = {stage: i for i, stage in enumerate(self._stages)}
        with self._lock:
            rows = [(stage, who, n) for (stage, who), n in self._rows.items()]
        return sorted(rows, key=lambda row: (order.get(row[0], len(order)), row[1]))

    def missing_from(self, exporter: str) -> int:
        """The number of records that came from the kernel and did not reach that exporter's output."""
        rows = self.rows()
        bus = sum(n for stage, _, n in rows if stage in ("dropped_bus", "dropped_enricher"))
        return bus + sum(
            n for stage, who, n in rows if stage in ("dropped_exporter", "failed_exporter") and who == exporter
        )

    def losses(self) -> list[tuple[str, str, int]]:
        """The rows that mean a loss; `--fail-on-loss` acts on them."""
        return [row for row in self.rows() if self.is_loss(row[0]) and row[2]]

    @property
    def lost(self) -> int:
        """How many records are known to be lost."""
        return sum(n for stage, _, n in self.losses() if stage not in OF_FILES)

    def is_loss(self, stage: str) -> bool:
        """Whether a count at that stage means that something was lost."""
        return self._stages.get(stage, (True, ""))[0]

    def words(self, stage: str) -> str:
        """A description of what the stage counts; its name if it has none."""
        return self._stages.get(stage, (True, stage))[1]

    def sentences(self) -> list[tuple[str, bool]]:
        """(line, whether it is a loss) for each row that is not zero and no sum of a report has; losses first."""
        found = []
        for stage, who, n in self.rows():
            if n and stage not in _IN_SUMS:
                lost, of = self.is_loss(stage), f" ({printable(who, 60)})" if who else ""
                words = printable_words(self.words(stage), 240)
                found.append((f"{'lost' if lost else 'note':4}  {number(n):>11}  {words}{of}", lost))
        return sorted(found, key=lambda row: not row[1])

    def as_dict(self) -> dict[str, int]:
        """{"stage" or "stage:who": count}: the form used in a file and in JSON."""
        return {f"{stage}:{who}" if who else stage: n for stage, who, n in self.rows()}

    @classmethod
    def from_dict(cls, counts: dict[str, int]) -> Ledger:
        """Restores the ledger that as_dict() returned."""
        ledger = cls()
        for key, n in counts.items():
            stage, _, who = key.partition(":")
            ledger.set(stage, n, who)
        return ledger
