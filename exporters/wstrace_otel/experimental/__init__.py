"""Every fault as a log record (`bulk`) and OTLP profiles (`profiles`): opt-in, and under no promise of compatibility.

Sunset: each goes in the first version after its reason has gone, and no later than 1.0 if nobody has asked for it.

* bulk writes the bytes of OTLP itself because the SDK makes an object for each record. It goes when the Collector takes
  Arrow batches (OTel Arrow) in its default distribution, or when `convert` to Parquet serves the same users.
* profiles follows the draft `v1development`. It moves to `export` when OpenTelemetry declares the signal stable.
"""

from __future__ import annotations

from typing import Protocol

from wstrace.batch import Batch


class Experiment(Protocol):
    """What the exporter calls on each experiment that is switched on."""

    def add_faults(self, batch: Batch) -> None:
        """Takes a batch of page faults."""

    def add_mappings(self, batch: Batch) -> None:
        """Takes a batch of mappings."""

    def tick(self) -> None:
        """Is called about once a second."""

    def close(self) -> None:
        """Queues what is left, before the connections close."""
