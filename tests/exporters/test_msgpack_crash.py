"""kill -9 at random moments: nothing that the writer had acknowledged is lost; and the same file is gone on with."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.msgpack_scripted import everything, started

from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.layout import FRAME_ROWS
from wstrace_exporters.msgpack.read.trace import open_trace

pytestmark = pytest.mark.slow
WRITER = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from wstrace.interfaces import Context
import kit.synthetic_trace as synthetic
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter
path, rows, resume, begin = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "resume", int(sys.argv[4])
context = Context()
exporter = MsgpackExporter(path=path, resume=resume, fsync="none")
exporter.start(context)
exporter.export(synthetic.mappings(context.strings))
done = 0
for batch in synthetic.faults(context.strings, 1 << 40, rows=rows, seed=begin + 1, begin=begin):
    exporter.export(batch)
    exporter.flush(1)
    done += len(batch)
    os.write(1, b"%d\\n" % done)  # acknowledged: flush() has returned
"""


def killed(path: Path, rng: random.Random, rows: int, how: str = "new", begin: int = 2_000_000) -> int:
    """Runs a writer, kills it at a random moment, gives the rows that it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(path), str(rows), how, str(begin)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        acknowledged = int(writer.stdout.readline())
        time.sleep(rng.random() * 0.05)
        writer.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        for line in writer.stdout:
            if line.endswith(b"\n"):
                acknowledged = int(line)
    return acknowledged


def check(path: Path, acknowledged: int, rows: int, begin: int = 2_000_000) -> int:
    """Every acknowledged row is there, as written; gives the rows read."""
    with open_trace(str(path)) as trace:
        assert trace.state in ("cut", "damaged")
        assert trace.damage()["lost_frames"] == 0
        read = list(trace.batches("page_fault", ["time_ns", "va"], start=begin, end=begin + 9_000_000_000))
        n = sum(map(len, read))
        assert n >= acknowledged
        written = synthetic.faults(trace.strings, n, rows=rows, seed=begin + 1, begin=begin)
        got = np.concatenate([batch["va"] for batch in read])
        assert np.array_equal(got, np.concatenate([batch["va"] for batch in written]))
        return n


def test_kill_9_loses_nothing_acknowledged(tmp_path, request):
    rng = random.Random(5)
    for i in range(30 if request.config.getoption("--long") else 6):
        rows = rng.choice((100, 3000, FRAME_ROWS))
        path = tmp_path / f"{i}.wst"
        check(path, killed(path, rng, rows), rows)


def test_a_killed_trace_is_gone_on_with_and_killed_again(tmp_path):
    path = tmp_path / "x.wst"
    rng = random.Random(6)
    begins = [2_000_000 + i * 10_000_000_000 for i in range(3)]
    counts = [killed(path, rng, 500, "new" if i == 0 else "resume", begin) for i, begin in enumerate(begins)]
    with path.open("ab") as file:
        file.write(b"\x96\xd8\x57 half a frame")
    assert [name.name for name in sorted(tmp_path.iterdir())] == ["x.0001.wst", "x.0002.wst", "x.wst"]
    read = [check(path, n, 500, begin) for n, begin in zip(counts, begins, strict=True)]
    exporter, context = started(path, resume=True)
    exporter.export(synthetic.mappings(context.strings, first=5))
    exporter.close()
    with open_trace(str(path)) as trace:
        assert trace.state == "cut"
        assert trace.rows["page_fault"] == sum(read)
        assert trace.ledger.get("file_cut") == 3
        assert trace.damage()["lost_names"] == 0
        assert len(trace.mappings) == 160
        assert sum(map(len, trace.batches("page_fault"))) == sum(read)


def finished(path: Path, n: int = 1000, **options: object) -> None:
    exporter, context = started(path, **options)
    everything(exporter, context, n)
    exporter.close()


def test_a_trace_is_gone_on_with_in_a_part_of_its_own_after_another_boot_too(tmp_path, monkeypatch):
    path = tmp_path / "x.wst"
    finished(path, 1000)
    before = path.read_bytes()
    monkeypatch.setattr(osfile, "boot_id", lambda: "another boot")
    finished(path, 500, resume=True)
    assert path.read_bytes() == before
    with open_trace(str(path)) as trace:
        assert [Path(part.path).name for part in trace.parts] == ["x.wst", "x.0001.wst"]
        assert trace.parts[1].header.prev == trace.parts[0].file_id
        assert trace.rows["page_fault"] == 1500


def test_what_a_session_that_ended_has_counted_is_known_after_another_has_gone_on(tmp_path):
    path = tmp_path / "x.wst"
    for lost in (7, 5, 0):
        exporter, context = started(path, resume=True)
        context.ledger.set("counted", 10, "minor")
        context.ledger.set("lost_kernel", lost, "page_fault")
        exporter.close()
    with open_trace(str(path)) as trace:
        assert trace.ledger.get("counted", "minor") == 30
        assert trace.ledger.get("lost_kernel", "page_fault") == 12
        assert trace.ledger.get("file_cut") == 0
        assert trace.state == "clean"
