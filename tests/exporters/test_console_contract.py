"""The console exporter, and the one of docs/write-an-exporter.md, keep the contract; report prints what is chosen."""

import io
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wstrace.errors import UsageError
from wstrace.interfaces import Exporter
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import ExporterContract, RecordingExporter, ScriptedSource, batch_of
from wstrace_exporters.console.commands.report import report
from wstrace_exporters.console.console import Console

PAGE = Path(__file__).parents[2] / "docs" / "write-an-exporter.md"
SESSION = {"enrichers": [], "record": False}


class TestConsole(ExporterContract):
    def make(self) -> Exporter:
        return Console(io.StringIO())


def readme_module() -> Any:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    module = types.ModuleType("hot_pages")
    exec(compile(code[1], "docs/write-an-exporter.md", "exec"), module.__dict__)
    return module


class TestExporterOfTheReadme(ExporterContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = str(tmp_path / "hot.txt")

    def make(self) -> Exporter:
        return readme_module().HotPages(path=self.path)

    def test_it_finds_the_hot_pages(self):
        source = ScriptedSource([batch_of(PAGE_FAULT, va=[4096, 8192, 8200, 8192], pid=1, tid=1, flags=0)])
        with Session(sources=[source], exporters=[self.make()], **SESSION) as session:
            session.wait(5)
        assert Path(self.path).read_text(encoding="utf-8") == "0x2000 3\n0x1000 1\n"
        assert readme_module().wstrace_exporters()[0].name == "hot_pages"


def faults() -> list[Any]:
    names = ["/usr/lib/libc.so.6"] * 50 + ["[heap]"] * 30 + ["/a,b=c:/d.so"] * 20
    return [
        batch_of(PAGE_FAULT, time_ns=[1000 * (i + 1) for i in range(100)], pid=7, tid=[7 + i % 2 for i in range(100)],
                 pc=4096, va=[4096 * i for i in range(100)], flags=[int(i % 25 == 0) for i in range(100)],
                 file=names, pc_file=names[::-1], kind=1)
    ]  # fmt: skip


@pytest.fixture
def trace_file(tmp_path):
    """A trace file with a comma, an equals sign and a space in its name."""
    pytest.importorskip("wstrace_exporters.msgpack.write.exporter", reason="the trace file's exporter is not here")
    from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

    path = tmp_path / "a b,c=d.wst"
    exporters = [MsgpackExporter(path=str(path))]
    with Session(sources=[ScriptedSource(faults())], exporters=exporters, **SESSION) as session:
        session.wait(5)
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(report, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["--hard"], "4 of 100 faults (only from disk), 4 from disk"),
        (["--soft", "--tid", "8"], "48 of 100 faults (thread 8, only soft), 0 from disk"),
    ],
)
def test_report_filters(trace_file, arguments, first):
    assert run(str(trace_file), *arguments).output.splitlines()[0].startswith(first)


def test_report_json_and_lines(trace_file):
    found = json.loads(run(str(trace_file), "--json", "--by", "thread").output)
    assert [row["faults"] for row in found["rows"]] == [50, 50]
    rows = [json.loads(line) for line in run(str(trace_file), "--format", "jsonl").output.splitlines()]
    assert [row["va"] for row in rows] == [hex(4096 * i) for i in range(100)]
    lines = run(str(trace_file), "--format", "lines", "--hard").output.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("000000000000 000000001000 [")


@pytest.mark.parametrize("words", ["lines --top 3", "jsonl --by file", "lines --at exit", "folded --pid 7"])
def test_a_format_of_every_fault_refuses_what_belongs_to_a_table(trace_file, words):
    with pytest.raises(UsageError, match="has every fault, and no table"):
        run(str(trace_file), "--format", *words.split())


class Slow(RecordingExporter):
    """Takes a while for every batch."""

    def export(self, batch: Any) -> None:
        import time

        time.sleep(0.02)
        super().export(batch)


def test_a_slow_reader_of_a_trace_file_loses_nothing(tmp_path, monkeypatch):
    """A file can wait: with queues of a few batches and a slow exporter every record still arrives."""
    from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

    n, path = 20_000, tmp_path / "many.wst"
    times = [[k * n + i + 1 for i in range(n)] for k in range(30)]
    batches = [batch_of(PAGE_FAULT, time_ns=time, pid=7, tid=7, pc=1, va=4096, flags=0) for time in times]
    with Session(sources=[ScriptedSource(batches)], exporters=[MsgpackExporter(path=str(path))], **SESSION) as session:
        session.wait(20)
    monkeypatch.setattr("wstrace.bus.PATIENT_BYTES", 1 << 20)
    slow = Slow()
    session = Session(sources=[f"replay:path={path}"], exporters=[slow], **SESSION)
    for worker in (session._bus, *session.exporter_queues):
        worker.queue._limit = 4 << 20
    with session:
        session.wait(30)
    assert session.ledger.losses() == []
    assert sum(len(batch) for batch in slow.batches if batch.schema.name == "page_fault") == 30 * n
