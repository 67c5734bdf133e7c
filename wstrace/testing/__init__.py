"""The public testing kit for plugin authors: scripted sources, targets and exporters, and contracts to subclass.

    from wstrace.testing import SourceContract

    class TestMySource(SourceContract):
        def make(self):
            return MySource(interval_ms=1)

The contract classes use plain asserts and need nothing but a test runner that collects classes (pytest).
"""

from wstrace.testing.contracts import EnricherContract, ExporterContract, SourceContract
from wstrace.testing.format_contract import FormatContract
from wstrace.testing.scripted import RecordingExporter, ScriptedSource, ScriptedTarget, batch_of, trace_of

__all__ = [
    "EnricherContract",
    "ExporterContract",
    "FormatContract",
    "RecordingExporter",
    "ScriptedSource",
    "ScriptedTarget",
    "SourceContract",
    "batch_of",
    "trace_of",
]
