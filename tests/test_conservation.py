"""One trace, one answer: every view tells the same faults and the same resident pages."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.stacks_scripted import Fault, Stacks

from wstrace import cli, open_trace
from wstrace.analysis.dimensions import dimensions
from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.interfaces import Context
from wstrace.schema import (
    HOW_NOT_KNOWN,
    MAPPING,
    PAGE_EXCLUSIVE,
    PAGE_FAULT,
    PAGE_GUARD,
    PAGE_SHARED,
    PAGE_SWAPPED,
    PAGE_ZERO,
    PROCESS,
    RESIDENT_PAGES,
)
from wstrace.session import Session
from wstrace.testing import ScriptedSource, batch_of
from wstrace_exporters.otel.export.processes import Processes

PAGE = 4096
BY = [*dimensions(), "file,kind", "process,thread,module"]
FILES = {1: "/usr/lib/libc.so.6", 2: "[heap]", 3: "/opt/model.bin", 4: "[anon]"}


def answer(*words: object) -> str:
    """What a command writes to standard output."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        assert cli.main([str(word) for word in words]) == 0
    out.flush()
    return out.buffer.getvalue().decode()


def snapshot(pid: int, t: int, parts: list[list[tuple[int, int, int]]], *, cut: bool = False) -> list[Batch]:
    """A snapshot in parts of rows (mapping, pages, flags); of a cut one the last part is missing."""
    found = []
    for number, rows in enumerate(parts):
        mapping, pages, flags = (list(column) for column in zip(*rows, strict=True))
        strings = Dictionary()
        batch = batch_of(RESIDENT_PAGES, strings, start=[(m << 32) + i * (1 << 20) for i, m in enumerate(mapping)],
                         pages=pages, flags=flags, mapping=mapping, file=[FILES[m] for m in mapping],
                         kind=[1 if m % 2 else 2 for m in mapping])  # fmt: skip
        known = SnapshotPart(pid, t, number, number == len(parts) - 1, t, int(batch["pages"].sum()))
        found.append(Batch(RESIDENT_PAGES, dict(batch.columns), strings=strings, snapshot=known))
    return found[:-1] if cut else found


def trace(tmp_path: Path, snapshots: list[Batch]) -> Path:
    """A trace file of two processes with 300 faults each."""
    ids, n = list(FILES), 300
    mappings = batch_of(MAPPING, id=ids, time_ns=1, pid=7, start=[i << 32 for i in ids],
                        end=[(i << 32) + (1 << 30) for i in ids], offset=0, file=list(FILES.values()), dev=1, ino=ids,
                        build_id="", flags=[(1 if i % 2 else 2) << 8 for i in ids])  # fmt: skip
    batches = [mappings]
    for pid in (7, 8):
        chosen = np.arange(n) % 5  # 0: no mapping known
        batches += [
            batch_of(PROCESS, time_ns=1, pid=pid, ppid=1, tid=pid, event=1, name=f"worker{pid}", code=0),
            batch_of(PAGE_FAULT, time_ns=range(10, 10 + n), pid=pid, tid=[pid + i % 3 for i in range(n)],
                     pc=[(1 << 32) + i * 8 for i in range(n)], va=[(int(m) << 32) + i * PAGE for i, m in
                     enumerate(chosen)], flags=[int(i % 7 == 0) for i in range(n)], mapping=chosen.tolist(),
                     pc_mapping=1, file=[FILES.get(int(m), "") for m in chosen], pc_file=FILES[1],
                     kind=[0 if not m else 1 if m % 2 else 2 for m in chosen.tolist()]),
        ]  # fmt: skip
    path = tmp_path / "x.wst"
    source = ScriptedSource([*batches, *snapshots])
    with Session(sources=[source], exporters=[f"msgpack:path={path}"], enrichers=[], record=False) as session:
        session.wait(10)
    return path


CUT = [
    *snapshot(7, 100, [[(1, 70, PAGE_SHARED), (2, 25, 0)], [(3, 5, 0)]]),
    *snapshot(7, 200, [[(1, 30, 0)], [(2, 1, 0)]], cut=True),
]  # fmt: skip


def report_of(path: Path, by: str, *words: str) -> dict[str, Any]:
    """The JSON of `report --by BY`, of which the rows sum to the total."""
    found = json.loads(answer("report", path, "--by", by, "--json", *words))
    for name, total in found["total"].items():
        assert sum(row[name] for row in found["rows"]) == total, (by, name)
    return found


SNAPSHOTS = {
    "one": snapshot(7, 100, [[(1, 70, 0), (2, 30, 0)]]),
    "cut": CUT,
    "of two processes": [
        *CUT,
        *snapshot(8, 150, [[(3, 11, 0)]]),
        *snapshot(8, 250, [[(4, 3, 0)], [(1, 2, PAGE_EXCLUSIVE)]]),
    ],
    "late": [*snapshot(7, 300, [[(1, 8, 0)]]), *snapshot(7, 100, [[(2, 99, 0)]])],
    "not resident": snapshot(7, 1, [[(1, 4, 0), (2, 9, PAGE_SWAPPED), (3, 9, PAGE_ZERO), (4, 9, PAGE_GUARD)]]),
}


def counts(total: dict[str, int]) -> tuple[int, int]:
    """(resident pages, faults) of the total of a report."""
    return total["resident"] // PAGE, total["faults"]


@pytest.mark.parametrize(("snapshots", "pages"), list(zip(SNAPSHOTS.values(), [100, 100, 105, 8, 4], strict=True)),
                         ids=list(SNAPSHOTS))  # fmt: skip
def test_every_view_tells_the_same_pages_and_faults(tmp_path, snapshots, pages):
    path = trace(tmp_path, snapshots)
    shown = {}  # view -> (resident pages, faults)
    for by in BY:
        shown[f"report --by {by}"] = counts(report_of(path, by, "--at", "exit")["total"])
        with open_trace(str(path)) as opened:
            shown[f"trace.report(by={by!r})"] = counts(opened.report(by=by.split(","), at="exit").total)
    lines = answer("report", path, "--format", "jsonl").splitlines()
    shown["jsonl"] = pages, len(lines)
    shown["lines"] = pages, len(answer("report", path, "--format", "lines").splitlines())
    info = json.loads(answer("info", path, "--json"))
    shown["info"] = pages, info["rows"]["page_fault"]
    for by in ("file", "module", "kind"):
        shown[f"diff --by {by}"] = (
            json.loads(answer("diff", path, path, "--by", by, "--json"))["total"]["first"] // PAGE,
            600,
        )
    shown["otel"] = counted_by_otel(path)
    if pytest.importorskip("duckdb"):
        rows = [json.loads(answer("query", path, sql, "--format", "json")) for sql in (
            "select sum(pages)::bigint as n from still_resident", "select count(*) as n from page_fault")]  # fmt: skip
        shown["query"] = rows[0]["n"], rows[1]["n"]
    assert shown == dict.fromkeys(shown, (pages, 600))


def test_every_view_of_stacks_tells_all_faults_and_the_same_lines(tmp_path):
    work, main = ("work", "/srv/app/app.py", 12), ("<module>", "/srv/app/app.py", 40)
    read = ("read", "/venv/lib/python3.11/site-packages/pandas/io.py", 7)
    faults = [
        *[Fault([work, main], [(1, 16), (1, 8)], weight=2)] * 5,
        *[Fault([read], [(1, 16)], weight=1)] * 4,
        *[Fault([])] * 3,
        *[Fault(None, how=HOW_NOT_KNOWN)] * 2,
    ]
    path, context = tmp_path / "x.wst", Context()
    strings = context.strings
    mapping = batch_of(MAPPING, strings, id=1, time_ns=1, pid=7, start=0, end=1 << 30, offset=0, file="/opt/prog",
                       dev=1, ino=1, build_id="", flags=1 << 8)  # fmt: skip
    source = ScriptedSource([mapping, *Stacks(strings).batches(faults)])
    with Session(sources=[source], exporters=[f"msgpack:path={path}"], enrichers=[]) as session:
        session.wait(10)
    lines = {"work app.py:12": 5, "(package pandas)": 4, "(no Python frame)": 3, "(interpreter not known)": 2}
    shown = {}
    for by in ("line", "function", "stack", "package"):
        found = report_of(path, by)
        shown[f"--by {by}"] = found["total"]["faults"]
        if by == "line":
            # report has the function of the instruction for faults without a Python frame; this file has no symbols
            no_frame = sum(n for label, n in lines.items() if label.startswith("(") and "package" not in label)
            known = {label: n for label, n in lines.items() if "app.py" in label or "package" in label}
            assert {row["label"]: row["faults"] for row in found["rows"]} == {**known, "[unknown]": no_frame}
    with open_trace(str(path)) as opened:
        for kept in (session.trace, opened):
            shown[repr(kept)] = kept.report().total["faults"]
    jsonl = [json.loads(line) for line in answer("report", path, "--format", "jsonl").splitlines()]
    shown["jsonl"] = len(jsonl)
    assert sum(row["stack"] == [] for row in jsonl) == 3
    shown["folded"] = sum(int(row.split()[-1]) for row in answer("report", path, "--format", "folded").splitlines())
    if pytest.importorskip("duckdb"):
        sql = (
            "select coalesce(own_line, '(' || stack_how || ')') as name, count(*) as total"
            " from page_fault f left join stacks s on f.stack = s.id group by 1"
        )
        rows = [json.loads(line) for line in answer("query", path, sql, "--format", "json").splitlines()]
        assert {row["name"]: row["total"] for row in rows} == lines
        shown["query"] = sum(row["total"] for row in rows)
        sql = "select s.* from page_fault f join stacks s on f.native_stack = s.id where f.weight = 2 limit 1"
        row = json.loads(answer("query", path, sql, "--format", "json"))
        assert (row["module"], row["depth"], row["kind"], row["folded"]) == ("prog", 2, "native", "prog+0x8;prog+0x10")
        sql = "select function, own, file, line from stacks where kind = 'python' order by function, line"
        rows = [
            tuple(json.loads(line).values()) for line in answer("query", path, sql, "--format", "json").splitlines()
        ]
        assert rows == [(main[0], 1, *main[1:]), (read[0], 0, *read[1:]), (work[0], 1, *work[1:])]
    assert shown == dict.fromkeys(shown, len(faults))


def counted_by_otel(path: Path) -> tuple[int, int]:
    """(resident pages, faults) as the otel exporter counts a replay."""
    with open_trace(str(path)) as opened:
        processes = Processes(Dictionary(), limit=1, modules=10)  # so that the second process counts under `other`
        for batch in opened.batches("page_fault"):
            processes.add_faults(batch)
        for batch in opened.batches("resident"):
            processes.get(batch.snapshot.pid).add_resident(batch)
    pages = sum(n for process in processes for n in process.resident.values())
    return pages, sum(process.recorded(major) for process in processes for major in (0, 1))


def test_a_session_s_trace_tells_functions_as_the_report_does(tmp_path):
    path = trace(tmp_path, [])
    with Session(sources=[f"replay:path={path}"]) as session:
        session.wait(10)
    for by in ("section", "function"):
        assert session.trace.report(by=by).as_dict()["rows"] == report_of(path, by)["rows"]
