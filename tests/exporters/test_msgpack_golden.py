"""A trace written once and kept: what stands in the field today must read the same with every later version.

`python tests/exporters/test_msgpack_golden.py` writes a new one, for a new minor version beside the old ones.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from wstrace_exporters.msgpack.commands.info import describe
from wstrace_exporters.msgpack.read.trace import open_trace

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = sorted(GOLDEN.glob("wstf-2*.wst"))


def shown(path: Path) -> dict:
    """Everything of a trace as JSON has it: what `info` tells, and a digest of every column with names in clear."""
    with open_trace(str(path)) as trace:
        columns = {}
        for stream in (*trace.streams, "mapping"):
            for column in trace.columns_of(stream):
                batches = [batch[column.name] for batch in trace.batches(stream, [column.name])]
                values = np.concatenate(batches).tolist()
                if column.semantic == "str":
                    values = [trace.strings[code] for code in values]
                columns[f"{stream}.{column.name}"] = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
        facts = describe(trace)
        facts.pop("files")
        return json.loads(json.dumps({**facts, "columns": dict(sorted(columns.items()))}))


def test_there_is_a_golden_trace():
    assert TRACES


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_kept_trace_reads_as_it_always_did(path):
    assert shown(path) == json.loads(path.with_suffix(".json").read_text("utf-8"))


def write(path: Path) -> None:
    import kit.synthetic_trace as synthetic

    from wstrace.interfaces import Context, Level
    from wstrace.schema import MARK, Column, Schema
    from wstrace.testing import batch_of
    from wstrace_exporters.msgpack.format import osfile
    from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

    osfile.host = lambda: {"name": "host", "system": "Linux", "release": "6.1", "machine": "x86_64", "cpus": 2}
    osfile.boot_id = lambda: "00000000-0000-0000-0000-000000000001"
    context = Context()
    info = context.info
    info.command, info.level, info.targets = ["program", "--option"], Level("full"), (synthetic.PID,)
    exporter = MsgpackExporter(path=str(path), force=True)
    exporter.start(context)
    exporter.export(synthetic.mappings(context.strings, 20))
    exporter.export(synthetic.processes(context.strings, name="bytes \udcff"))
    for batch in synthetic.faults(context.strings, 3000, rows=1000, n_mappings=20):
        exporter.export(batch)
        exporter.flush(1)
    own = Schema(
        "gc_pause", (Column("time_ns", "u64", "ns"), Column("phase", "u32", "str"), Column("where", "u32", "map"))
    )
    exporter.export(
        batch_of(own, context.strings, time_ns=[2_100_000, 2_200_000], phase=["mark", "sweep"], where=[1, 2])
    )
    exporter.export(synthetic.resident(context.strings, 10))
    exporter.export(batch_of(MARK, context.strings, time_ns=[2_500_000], pid=1, tid=2, text=["warm"]))
    context.ledger.add("recorded", 3000, "page_fault")
    context.ledger.add("lost_kernel", 5, "page_fault")
    exporter.close()
    path.with_suffix(".json").write_text(json.dumps(shown(path), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    write(GOLDEN / "wstf-2.0.wst")
