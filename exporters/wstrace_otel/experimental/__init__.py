"""Opt-in experiments without a promise of compatibility: a log record per fault (`bulk`), OTLP profiles (`profiles`).

Each is removed as soon as its reason is gone, and at the latest in version 1.0 if nobody has asked for it.

* `bulk` encodes OTLP itself, because the SDK makes an object for each record. It is to be removed when the Collector's
  default distribution accepts Arrow batches (OTel Arrow), or when `convert` to Parquet serves the same users.
* `profiles` follows the draft `v1development`. It moves to `export` when OpenTelemetry declares the signal stable.
"""

from __future__ import annotations

from typing import Protocol

from wstrace.batch import Batch


class Experiment(Protocol):
    """What the exporter calls on each experiment that is enabled."""

    def add_faults(self, batch: Batch) -> None:
        """Takes a batch of page faults."""

    def add_mappings(self, batch: Batch) -> None:
        """Takes a batch of mappings."""

    def tick(self) -> None:
        """Called about once a second."""

    def close(self) -> None:
        """Queues what is left, before the connections are closed."""
