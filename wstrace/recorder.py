"""Recorder: the exporter that keeps a trace in memory, for embedding (`session.faults`, `session.trace`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context, Exporter
from wstrace.ledger import Ledger
from wstrace.schema import DTYPES, PAGE_FAULT

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: The bytes of faults that are kept. The rest is counted as dropped in the ledger.
KEEP_BYTES = 256 << 20
#: The rows of other streams may take one part in this many of KEEP_BYTES, in addition.
_OTHERS = 4


class Recorder(Exporter):
    """Keeps the page faults and the rows of other streams, each up to a limit."""

    name = "memory"

    def __init__(self, *, keep_bytes: int = KEEP_BYTES) -> None:
        self._keep_bytes = keep_bytes
        self._batches: list[Batch] = []
        self._bytes = 0
        self._others: list[Batch] = []
        self._others_bytes = 0
        self._ledger = Ledger()

    def start(self, context: Context) -> None:
        """Takes the session's ledger, to count what is not kept."""
        self._ledger = context.ledger

    def export(self, batch: Batch) -> None:
        """Keeps the batch; one past the limit is counted as dropped in the ledger."""
        if batch.schema.name != PAGE_FAULT.name:
            if self._others_bytes + batch.nbytes > self._keep_bytes // _OTHERS:
                self._ledger.add("dropped_lane", len(batch), self.name)
                return
            self._others_bytes += batch.nbytes
            self._others.append(batch)
            return
        if self._bytes + batch.nbytes > self._keep_bytes:
            self._ledger.add("dropped_lane", len(batch), self.name)
            return
        self._bytes += batch.nbytes
        self._batches.append(batch)

    def thin(self, chosen: Callable[[Batch], Batch | None]) -> None:
        """Keeps of each batch what `chosen` returns of it: for a live view, which needs no rows of long ago.

        The ledger does not count what is left out: it was let go, not lost.

        Args:
            chosen: returns the batch, some rows of it, or None. Batches of a stream come to it as one.
        """
        self._batches = [part for batch in _joined(self._batches) if (part := chosen(batch)) is not None]
        self._others = [part for batch in _joined(self._others) if (part := chosen(batch)) is not None]
        self._bytes = sum(batch.nbytes for batch in self._batches)
        self._others_bytes = sum(batch.nbytes for batch in self._others)

    @property
    def strings(self) -> Dictionary:
        """The dictionary that the codes of `file` and `pc_file` point into."""
        return self._batches[0].strings if self._batches else Dictionary()

    def batches(self) -> list[Batch]:
        """All batches that were kept: first mappings, processes and the other streams, then the faults."""
        return [*self._others, *self._batches]

    def faults(self) -> NDArray[Any]:
        """All kept page faults: a structured array with the schema's names, shape (n,); absent columns are left out."""
        import numpy as np

        batches = tuple(self._batches)  # A copy, because the session's thread goes on adding while it runs.
        present = set().union(*(batch.columns for batch in batches))
        dtype = [(c.name, DTYPES[c.type]) for c in PAGE_FAULT.columns if c.name in present]
        rows = np.zeros(sum(len(batch) for batch in batches), dtype)
        end = 0
        for batch in batches:
            start, end = end, end + len(batch)
            for column, _ in dtype:
                if column in batch:
                    rows[column][start:end] = batch[column]
        return rows


def _joined(batches: list[Batch]) -> list[Batch]:
    """The batches of each stream as one, unless they are parts of snapshots or tell their times by a window."""
    import numpy as np

    alike: dict[object, list[Batch]] = {}
    for batch in batches:
        alone = batch.snapshot is not None or "time_ns" not in batch
        key = id(batch) if alone else (batch.schema, tuple(batch), id(batch.strings))
        alike.setdefault(key, []).append(batch)
    return [
        one if len(group) == 1 else Batch(
            one.schema, {name: np.concatenate([batch[name] for batch in group]) for name in one},
            lost=sum(batch.lost for batch in group), source=one.source, strings=one.strings,
        )
        for group in alike.values() for one in group[:1]
    ]  # fmt: skip
