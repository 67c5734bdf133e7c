"""The console exporter: golden texts of scripted batches, and everything that can be wrong with an output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Place
from wstrace.options import options_of
from wstrace.schema import KINDS, MAPPING, PAGE_FAULT, PROCESS, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace_console import headline
from wstrace_console.console import Console
from wstrace_console.output import Output
from wstrace_console.places import MappingTable
from wstrace_console.tables import shorten

GOLDEN = Path(__file__).parent.parent / "golden" / "console"
LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


class Target:
    """What the exporter reads of a target."""

    def __init__(self, pid: int = 700, *, launched: bool = True) -> None:
        self.pid, self.launched, self.name = pid, launched, "python3"


class Trace:
    """Makes the batches of a small trace, with names as codes of one dictionary."""

    def __init__(self, *, live: bool = True) -> None:
        self.context = Context(targets=(Target(),) if live else ())  # type: ignore[arg-type]
        self.code = self.context.strings.code

    def faults(self, rows: list[tuple[int, str, str]], *, pid: int = 700, tid: int = 700, major: bool = False,
               **columns: Any) -> Batch:  # fmt: skip
        """Rows of (how many, the page's file, the instruction's file)."""
        file = np.repeat([self.code(row[1]) for row in rows], [row[0] for row in rows]).astype("u4")
        n = len(file)
        kinds = {"[heap]": 3, "[stack]": 4, "[anon]": 2, "": 0}
        given = {
            "time_ns": np.arange(n, dtype="u8") * 1000 + 5_000_000_000,
            "pid": np.full(n, pid, "u4"),
            "tid": np.full(n, tid, "u4"),
            "pc": np.full(n, 0x7F0000001234, "u8"),
            "va": np.arange(n, dtype="u8") * 4096 + 0x7F1000000000,
            "flags": np.full(n, int(major), "u1"),
            "file": file,
            "pc_file": np.repeat([self.code(row[2]) for row in rows], [row[0] for row in rows]).astype("u4"),
            "kind": np.repeat([kinds.get(row[1], 1) for row in rows], [row[0] for row in rows]).astype("u1"),
        }
        return Batch(
            PAGE_FAULT, {**given, **columns}, strings=self.context.strings, window=(5_000_000_000, 6_000_000_000)
        )

    def process(self, rows: list[tuple[int, int, int, int, str]]) -> Batch:
        """Rows of (pid, ppid, tid, event, name)."""
        names = [("pid", "u4"), ("ppid", "u4"), ("tid", "u4"), ("event", "u1")]
        columns: dict[str, Any] = {
            name: np.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(names)
        }
        columns["name"] = np.array([self.code(row[4]) for row in rows], "u4")
        return Batch(PROCESS, columns, strings=self.context.strings)

    def pages(
        self, rows: list[tuple[int, str]], *, schema: Any = RESIDENT_PAGES, pid: int = 700, **columns: Any
    ) -> Batch:
        """Rows of (pages, file)."""
        given = {
            "start": np.arange(len(rows), dtype="u8") * (1 << 30),
            "pages": np.array([row[0] for row in rows], "u4"),
            "file": np.array([self.code(row[1]) for row in rows], "u4"),
            "kind": np.array([1 if row[1].startswith("/") else 2 for row in rows], "u1"),
        }
        header = {"snap": 1, "part": 0, "last": True, "pid": pid, "t": 0, "pages": int(given["pages"].sum())}
        return Batch(schema, {**given, **columns}, strings=self.context.strings, header=header)

    def mappings(self, rows: list[tuple[int, int, int, int, str]], pid: int = 700) -> Batch:
        """Rows of (id, start, end, offset, file)."""
        names = [("id", "u4"), ("start", "u8"), ("end", "u8"), ("offset", "u8")]
        columns: dict[str, Any] = {
            name: np.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(names)
        }
        columns |= {"pid": np.full(len(rows), pid, "u4"), "file": np.array([self.code(row[4]) for row in rows], "u4")}
        return Batch(MAPPING, columns, strings=self.context.strings)


def ordinary(trace: Trace) -> list[Batch]:
    """A trace like that of the README: two processes, three threads, some faults from disk."""
    trace.context.ledger.add("recorded", 9_700, "page_fault")
    trace.context.ledger.add("recorded", 12, "process")
    trace.context.ledger.set("counted", 9_640, "minor")
    trace.context.ledger.set("counted", 60, "major")
    trace.context.facts.update(level="full", peak_resident_bytes=432_640_000, usage_minor=9_900, usage_major=60,
                               not_visible=["MAP_POPULATE, mlock"], started_ns=4_999_000_000)  # fmt: skip
    return [
        trace.process([(700, 1, 700, 3, "python3"), (700, 700, 701, 5, "loader"), (800, 700, 800, 3, "sh")]),
        trace.faults([(6_000, TORCH, LIBC), (2_000, "[heap]", PYTHON), (500, "[anon]", LIBC)]),
        trace.faults([(900, LIBC, PYTHON), (140, "", "")], tid=701),
        trace.faults([(60, TORCH, LIBC)], tid=701, major=True),
        trace.faults([(100, "[stack]", "[kernel]")], pid=800, tid=800),
    ]


def printed(trace: Trace, batches: list[Batch], stream: Any = None, **options: Any) -> str:
    """What the exporter writes of a whole trace."""
    stream = stream or io.StringIO()
    console = Console(stream, **options)
    console.start(trace.context)
    for batch in batches:
        console.export(batch)
    console.flush(1)
    console.close()
    if isinstance(stream, io.StringIO):
        return stream.getvalue()
    stream.flush()
    return str(stream.buffer.getvalue().decode(stream.encoding))


def golden(name: str, text: str) -> None:
    """Compares with tests/golden/console/NAME; WSTRACE_GOLDEN=write makes it anew, to be read before it is kept."""
    path = GOLDEN / name
    if os.environ.get("WSTRACE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# -- the summary -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"by": "module"}, {"by": "thread", "top": 2}, {"by": "kind"}, {"hard": True}, {"file": "*.so*", "by": "file"},
], ids=["all", "module", "thread", "kind", "hard", "file"])  # fmt: skip
def test_summary_is_golden(options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    trace = Trace()
    golden(f"summary-{request.node.callspec.id}.txt", printed(trace, ordinary(trace), **options))


def test_first_line_is_the_answer_and_the_second_completeness() -> None:
    trace = Trace()
    first, second, *rest = printed(trace, ordinary(trace)).splitlines()
    assert first == "peak 412.6 MiB resident; 9,700 faults, 60 from disk; most in libtorch_cpu.so"
    assert second == (
        "recorded 9,700 + lost 0 = counted 9,700; rusage 9,960; not visible: 260 (MAP_POPULATE, mlock); "
        "level full; over 8.5 ms"
    )
    assert rest[-1] == "not saved: add -o FILE"


def test_saved_names_the_path_and_the_next_command() -> None:
    trace = Trace()
    trace.context.facts["saved"] = "my traces/out.wst"
    assert printed(trace, []).endswith(
        '\nsaved my traces/out.wst; next: wstrace report "my traces/out.wst" --by module\n'
    )
    trace.context.facts["saved"] = "-"
    assert printed(trace, []).endswith("\nsaved to stdout\n")
    report = Trace(live=False)
    assert "saved" not in printed(report, ordinary(report))


def test_loss_is_told_in_words_and_the_sum_is_right() -> None:
    trace = Trace()
    batches = ordinary(trace)
    trace.context.ledger.set("counted", 9_660, "minor")
    trace.context.ledger.set("lost_kernel", 15, "minor")
    trace.context.ledger.set("unaccounted", 5, "minor")
    trace.context.ledger.add("dropped_bus", 3, "page_fault")
    trace.context.ledger.add("late", 7, "page_fault")
    trace.context.ledger.add("made_up\x1b[2J", 1, "evil\x1b")
    text = printed(trace, batches)
    assert "recorded 9,700 + lost 15 + unaccounted 5 = counted 9,720;" in text
    assert "lost           15  records that the kernel dropped: its buffer was full (minor)\n" in text
    assert "lost            3  records dropped: the bus's queue was full (page_fault)\n" in text
    assert (
        "note            7  records that came after their time's watermark: kept, out of order (page_fault)\n" in text
    )
    assert "lost            1  made_up\\x1b[2J (evil\\x1b)\n" in text
    trace.context.ledger.set("counted", 9_999, "minor")
    assert "!= counted 10,059" in printed(trace, batches)


def test_quiet_prints_losses_and_nothing_else() -> None:
    trace = Trace()
    batches = ordinary(trace)
    assert printed(trace, batches, quiet=True) == ""
    trace.context.ledger.add("dropped_bus", 3, "page_fault")
    trace.context.ledger.add("late", 7)
    assert (
        printed(trace, batches, quiet=True)
        == "lost            3  records dropped: the bus's queue was full (page_fault)\n"
    )


def counters(trace: Trace) -> list[Batch]:
    trace.context.facts.update(level="counters", level_why="perf_event_open was refused (paranoid 4)",
                               level_remedy="sudo sysctl kernel.perf_event_paranoid=1", usage_minor=96_000,
                               usage_major=113, peak_resident_bytes=12 << 20, page_size=4096,
                               not_visible=["addresses, instructions and threads of faults"])  # fmt: skip
    trace.context.ledger.set("counted", 96_113)
    return [trace.pages([(1000, TORCH), (500, "[heap]"), (20, LIBC)])]


def test_level_counters_tells_resident_files_and_what_lifts_it() -> None:
    trace = Trace()
    text = printed(trace, counters(trace))
    golden("counters.txt", text)
    lines = text.splitlines()
    assert lines[0] == (
        "peak 12.0 MiB resident; 96,113 faults, 113 from disk; most resident in libtorch_cpu.so [level counters]"
    )
    assert lines[2] == (
        "level counters: perf_event_open was refused (paranoid 4); to lift it: sudo sysctl kernel.perf_event_paranoid=1"
    )


def test_sampled_is_named_with_an_estimate() -> None:
    trace = Trace()
    batches = ordinary(trace)
    trace.context.facts["sampled"] = 10
    lines = printed(trace, batches).splitlines()
    assert lines[0].startswith(
        "peak 412.6 MiB resident; 9,700 faults sampled, 1 in 10 (about 97,000 in all), 60 from disk; most in"
    )
    assert "= counted" not in lines[1]


def test_nothing_recorded_is_still_an_answer() -> None:
    trace = Trace()
    assert printed(trace, []).splitlines()[0] == "0 faults, 0 from disk"


def test_still_resident_stands_beside_brought() -> None:
    trace = Trace(live=False)
    batches = [
        *ordinary(trace),
        trace.pages([(3000, TORCH), (10, "[heap]"), (700, "/never/faulted.so")]),
        trace.pages([(8, "[heap]")], schema=WRITTEN_PAGES),
    ]
    trace.context.facts["page_size"] = 4096
    golden("resident.txt", printed(trace, batches, by="file"))
    trace = Trace(live=False)
    batches = [*ordinary(trace), trace.pages([(3000, TORCH)])]
    assert "3,000 pages" in printed(trace, batches)


def test_filter_by_time_counts_from_the_start_of_the_trace() -> None:
    trace = Trace()
    batches = ordinary(trace)  # started at 4.999 s; the faults begin at 5 s, one each microsecond
    text = printed(trace, batches, start=0.001, end=0.0011)
    assert "360 of 9,700 faults (from 0.001 s to 0.0011 s)" in text.splitlines()[0]


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_json_has_the_documented_keys() -> None:
    trace = Trace()
    trace.context.facts["command"] = ["python3", b"/tmp/\xff".decode("utf-8", "surrogateescape")]
    report = json.loads(printed(trace, ordinary(trace), json=True, top=2))
    assert sorted(report) == ["answer", "completeness", "facts", "filter", "ledger", "seen", "summary"]
    assert report["answer"].startswith("peak 412.6 MiB")
    assert report["facts"]["command"] == ["python3", "/tmp/\\xff"]
    assert report["ledger"]["recorded:page_fault"] == 9_700
    assert report["summary"]["total"] == 9_700
    assert report["summary"]["top"]["file"] == [
        {"file": TORCH, "total": 6060, "minor": 6000, "major": 60, "share": 0.624742},
        {"file": "[heap]", "total": 2000, "minor": 2000, "major": 0, "share": 0.206186},
    ]
    assert report["summary"]["top"]["thread"][0] == {
        "name": "python3",
        "pid": 700,
        "tid": 700,
        "total": 8500,
        "minor": 8500,
        "major": 0,
        "share": 0.876289,
    }
    assert list(json.loads(printed(trace, ordinary(trace), json=True, by="kind"))["summary"]["top"]) == ["kind"]
    documented = (Path(__file__).parents[2] / "exporters" / "README.md").read_text(encoding="utf-8")
    for key in [*report, *report["summary"]]:
        assert f"`{key}`" in documented, key


# -- one line a fault --------------------------------------------------------------------------------------------------


class Sections:
    """A resolver of known answers."""

    def __init__(self, *, broken: bool = False) -> None:
        self.asked: list[tuple[str, list[int], int]] = []
        self.broken = broken
        self.name = "sections"

    def resolve(self, file: str, offsets: Any, *, pid: int = 0, build_id: str = "") -> list[Place]:
        if self.broken:
            raise RuntimeError("no")
        self.asked.append((file, offsets.tolist(), pid))
        name = file.rpartition("/")[2]
        return [
            Place(name, ".text", 14, "f", 3, o) if o < 0x2000 else Place(name, ".data", 20, address=o)
            for o in offsets.tolist()
        ]


def lines_of(trace: Trace) -> list[Batch]:
    start, code = 0x7F1000000000, 0x7F0000000000
    mapped = {"mapping": np.array([1, 1, 1, 2, 0], "u4"), "pc_mapping": np.array([3, 3, 3, 3, 0], "u4")}
    rows = [(1, LIBC, PYTHON), (1, LIBC, PYTHON), (1, LIBC, PYTHON), (1, "[heap]", PYTHON), (1, "", "[kernel]")]
    return [
        trace.mappings(
            [
                (1, start, start + 0x3000, 0x1000, LIBC),
                (2, start + 0x3000, start + 0x4000, 0, "[heap]"),
                (3, code, code + 0x9000, 0, PYTHON),
            ]
        ),
        trace.faults(rows, flags=np.array([0, 1, 16 | 4, 16, 2], "u1"), **mapped),
    ]


def test_lines_name_owner_and_module_with_their_sections() -> None:
    trace = Trace()
    trace.context.resolvers = {"sections": Sections()}  # type: ignore[dict-item]
    assert printed(trace, lines_of(trace), format="lines").splitlines() == [
        "7f1000000000 7f0000001234 libc.so.6!.text(14) via python3.11!.text(14)",
        "7f1000001000 7f0000001234 libc.so.6!.data(20) via python3.11!.text(14)",
        "7f1000002000 7f0000001234 libc.so.6!.data(20) via python3.11!.text(14)",
        "7f1000003000 7f0000001234 [heap] via python3.11!.text(14)",
        "7f1000004000 7f0000001234 [unknown] via [kernel]",
    ]
    resolver: Any = trace.context.resolvers["sections"]
    assert (PYTHON, [0x1234], 700) in resolver.asked  # a distinct address is asked once


@pytest.mark.parametrize("resolvers", [{}, {"sections": Sections(broken=True)}])
def test_lines_without_a_resolver_give_file_and_offset(resolvers: Any) -> None:
    trace = Trace()
    trace.context.resolvers = resolvers
    assert printed(trace, lines_of(trace), format="lines").splitlines()[0] == (
        "7f1000000000 7f0000001234 libc.so.6+0x1000 via python3.11+0x1234"
    )


def test_a_report_does_not_look_into_processes_of_today() -> None:
    trace = Trace(live=False)
    trace.context.resolvers = {"sections": (resolver := Sections())}  # type: ignore[dict-item]
    printed(trace, lines_of(trace), format="lines")
    assert {pid for _, _, pid in resolver.asked} == {0}


def test_jsonl_has_the_documented_keys() -> None:
    trace = Trace()
    trace.context.resolvers = {"sections": Sections()}  # type: ignore[dict-item]
    rows = [json.loads(line) for line in printed(trace, lines_of(trace), format="jsonl").splitlines()]
    assert rows[0] == {
        "time_ns": 5_000_000_000,
        "pid": 700,
        "tid": 700,
        "va": "0x7f1000000000",
        "pc": "0x7f0000001234",
        "major": False,
        "kernel": False,
        "kind": "file",
        "file": LIBC,
        "pc_file": PYTHON,
        "owner": {
            "module": "libc.so.6",
            "address": "0x1000",
            "section": ".text",
            "number": 14,
            "function": "f",
            "displacement": 3,
        },
        "via": {
            "module": "python3.11",
            "address": "0x1234",
            "section": ".text",
            "number": 14,
            "function": "f",
            "displacement": 3,
        },
    }
    assert [row.get("access") for row in rows] == [None, None, "write", "read", None]
    assert [row["major"] for row in rows] == [False, True, False, False, False]
    assert rows[4]["kernel"]
    assert rows[4]["owner"] == {"module": "[unknown]"}
    assert "file" not in rows[4]
    documented = (Path(__file__).parents[2] / "exporters" / "README.md").read_text(encoding="utf-8")
    for key in {key for row in rows for key in (*row, *row["owner"])}:
        assert f"`{key}`" in documented, key


def test_filter_holds_for_lines_too() -> None:
    trace = Trace()
    assert len(printed(trace, lines_of(trace), format="lines", hard=True).splitlines()) == 1
    assert len(printed(trace, lines_of(trace), format="jsonl", file="libc*").splitlines()) == 3


def test_by_section_counts_faults_and_resident_pages() -> None:
    trace = Trace(live=False)
    trace.context.resolvers = {"sections": Sections()}  # type: ignore[dict-item]
    resident = trace.pages(
        [(2, LIBC), (5, "[heap]")],
        mapping=np.array([1, 2], "u4"),
        start=np.array([0x7F1000000000, 0x7F1000003000], "u8"),
    )
    batches = [*lines_of(trace), resident]
    report = json.loads(printed(trace, batches, json=True, by="section"))
    assert report["summary"]["top"]["section"] == [
        {"section": "libc.so.6!.data(20)", "total": 2, "minor": 1, "major": 1, "still_resident_pages": 1},
        {"section": "[heap]", "total": 1, "minor": 1, "major": 0, "still_resident_pages": 5},
        {"section": "libc.so.6!.text(14)", "total": 1, "minor": 1, "major": 0, "still_resident_pages": 1},
        {"section": "[unknown]", "total": 1, "minor": 1, "major": 0, "still_resident_pages": 0},
    ]
    assert "still resident" in printed(trace, batches, by="section")
    again = [
        *batches,
        Batch(
            RESIDENT_PAGES,
            dict(resident.take(slice(0, 1)).columns),
            strings=trace.context.strings,
            header={"snap": 2, "last": True, "pid": 700},
        ),
    ]
    rows = json.loads(printed(trace, again, json=True, by="section"))["summary"]["top"]["section"]
    assert {row["section"]: row["still_resident_pages"] for row in rows}["[heap]"] == 0  # the last snapshot counts


def test_mapping_table_is_bounded_and_forgets_ended_processes_first() -> None:
    trace, table = Trace(), MappingTable(limit=100)
    table.add(trace.mappings([(i, i * 4096, i * 4096 + 4096, 0, LIBC) for i in range(1, 51)], pid=1))
    table.add(trace.mappings([(i, i * 4096, i * 4096 + 4096, 0, LIBC) for i in range(51, 101)], pid=2))
    table.end(trace.process([(2, 1, 2, 4, ""), (1, 1, 9, 4, "")]))
    table.add(trace.mappings([(i, i * 4096, i * 4096 + 4096, 0, LIBC) for i in range(101, 131)], pid=3))
    known, rows = table.find(np.array([0, 50, 60, 120, 9999], "u4"))
    assert known.tolist() == [False, True, False, True, False]
    assert rows["start"].tolist() == [50 * 4096, 120 * 4096]


# -- outputs and names -------------------------------------------------------------------------------------------------

HOSTILE = "/tmp/\x1b]0;owned\x07\x1b[2J[bold red]x[/] \u202egnp.so" + b"\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("options", [{}, {"by": "file"}, {"format": "lines"}, {"file": "*\x1b*"}], ids=str)
def test_names_from_outside_only_print(options: dict[str, Any]) -> None:
    trace = Trace()
    trace.context.facts.update(saved=HOSTILE, level="odd\x1b", level_why=HOSTILE, not_visible=[HOSTILE])
    text = printed(
        trace, [trace.process([(700, 1, 700, 3, HOSTILE)]), trace.faults([(3, HOSTILE, HOSTILE)])], **options
    )
    assert text.replace("\n", "").isprintable()
    assert "x1b" in text


def test_markup_in_names_stays_text() -> None:
    trace = Trace()
    assert "/tmp/[bold red]x[/bold red] :smile:" in printed(
        trace, [trace.faults([(3, "/tmp/[bold red]x[/bold red] :smile:", LIBC)])]
    )


@pytest.mark.parametrize("encoding", ["cp437", "cp1252", "ascii", "utf-16"])
def test_every_encoding_takes_the_report(encoding: str) -> None:
    trace, stream = Trace(), io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    text = printed(trace, [*ordinary(trace), trace.faults([(30_000, "/tmp/\u65e5\u672c-\u00e9.so", LIBC)])], stream)
    if encoding == "utf-16":
        assert "\u2588" in text
        assert "\u65e5\u672c-\u00e9.so" in text
    else:
        assert "##############" in text
        assert "\\u65e5\\u672c-" in text


def test_a_pipe_gets_plain_text_with_whole_names() -> None:
    trace = Trace()
    long = "/deep" * 60 + "/lib.so"
    text = printed(trace, [trace.faults([(3, long, LIBC)])])
    assert long in text
    assert "\x1b" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    "name",
    [
        "/usr/lib/x86_64-linux-gnu/libtorch_cpu.so",
        "\u65e5\u672c" * 40,
        "e\u0301" * 60,
        "\U0001f468\u200d\U0001f469" * 20,
    ],
)
@pytest.mark.parametrize("unicode", [True, False])
def test_shorten_keeps_the_end_within_the_room(name: str, unicode: bool) -> None:
    from rich.cells import cell_len

    assert cell_len(shorten(name, 20, unicode=unicode)) <= 20
    assert shorten(name, None, unicode=unicode).isprintable()
    if name.isascii():
        assert shorten(name, 20, unicode=True) == "\u2026inux-gnu/libtorch_cpu.so"[:1] + name[-19:]


class Broken(io.StringIO):
    """A stream whose reader goes away after some text, or whose disk fills."""

    def __init__(self, errno: int) -> None:
        super().__init__()
        self.errno = errno

    def flush(self) -> None:
        if self.tell() > 200:
            raise OSError(self.errno, os.strerror(self.errno))


def test_a_reader_that_went_away_ends_it_quietly() -> None:
    import errno

    trace = Trace()
    console = Console(Broken(errno.EPIPE), format="lines")
    console.start(trace.context)
    assert not console.broken
    for batch in lines_of(trace) * 3:
        console.export(batch)
    assert console.broken
    console.close()


def test_a_full_disk_is_an_error() -> None:
    import errno

    trace = Trace()
    console = Console(Broken(errno.ENOSPC))
    console.start(trace.context)
    for batch in ordinary(trace):
        console.export(batch)
    with pytest.raises(OutputError, match="No space left"):
        console.close()


def test_path_is_a_new_file_or_one_clear_error(tmp_path: Path) -> None:
    trace = Trace()
    printed(trace, ordinary(trace))
    console = Console(path=str(tmp_path / "r.txt"))
    console.start(trace.context)
    console.close()
    assert (tmp_path / "r.txt").read_text(encoding="utf-8").startswith("peak 412.6 MiB resident; 0 faults")
    with pytest.raises(OutputError, match=r"cannot write .*No such file"):
        Console(path=str(tmp_path / "no" / "r.txt")).start(trace.context)


def test_a_closed_stream_is_no_error() -> None:
    trace, stream = Trace(), io.StringIO()
    stream.close()
    console = Console(stream)
    console.start(trace.context)
    console.close()
    assert console.broken


def test_options_are_read_off_the_signature() -> None:
    options = options_of(Console)
    assert {
        "format",
        "by",
        "top",
        "hard",
        "soft",
        "file",
        "tid",
        "start",
        "end",
        "json",
        "live",
        "quiet",
        "path",
    } <= set(options)
    assert "stream" not in options
    assert options["live"].convert("none") is None
    with pytest.raises(ValueError, match="summary"):
        options["format"].convert("sumary")
    with pytest.raises(UsageError):
        Console(hard=True, soft=True)


def test_cancel_and_abandon_print_nothing() -> None:
    for end in (Console.cancel, Console.abandon):
        stream = io.StringIO()
        console = Console(stream)
        console.start(Trace().context)
        end(console)
        assert stream.getvalue() == ""


# -- the live line -----------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("options", "launched", "stream", "live"), [
    ({}, True, Screen, False), ({}, False, Screen, True), ({"live": True}, True, Screen, True),
    ({"live": False}, False, Screen, False), ({"live": True}, False, io.StringIO, False),
    ({"live": True, "quiet": True}, False, Screen, False), ({"live": True, "format": "lines"}, False, Screen, False),
])  # fmt: skip
def test_live_only_on_a_terminal_that_the_target_does_not_share(
    options: dict[str, Any], launched: bool, stream: Any, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("wstrace_console.live.REDRAW_SECONDS", 0.0)
    trace, output = Trace(), stream()
    trace.context.targets = (Target(os.getpid() + 1 if not launched else 700, launched=launched),)  # type: ignore[assignment]
    console = Console(output, **options)
    console.start(trace.context)
    console.export(trace.faults([(3, LIBC, LIBC)]))
    console.tick()
    drawn = output.getvalue()
    console.close()
    assert ("3 faults" in drawn) == live
    assert ("0 lost" in drawn) == live


def test_on_a_terminal_lines_keep_to_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    for width in (40, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        trace = Trace()
        text = printed(trace, [*ordinary(trace), trace.faults([(30_000, "/\u65e5\u672c" * 200, LIBC)])], Screen())
        assert "\x1b[" in text
        assert max(cell_len(Text.from_ansi(line).plain) for line in text.splitlines()) <= width


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(trace, ordinary(trace), Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(trace, ordinary(trace), Screen())
    assert "\x1b[36m" not in text
    assert "\x1b[1;31m" not in text


def test_headline_of_anonymous_memory_names_who_asked_for_it() -> None:
    trace = Trace()
    console = Console(io.StringIO())
    console.export(trace.faults([(5, "[anon]", LIBC), (4, LIBC, PYTHON)]))
    assert headline.answer(console.summary, {}, console._filter, 9).endswith("most in [anon] (by libc.so.6)")
    assert KINDS[2] == "anon"


def test_output_of_a_process_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    output = Output.standard("stderr")
    output.write("text")
    output.close()


def test_head_in_a_real_pipe_ends_quietly() -> None:
    code = (
        "import sys; sys.path[:0]=['.']; from wstrace_console.output import Output; o=Output.standard('stdout')\n"
        "while not o.broken: o.write('x' * 4096 + '\\n')"
    )
    run = subprocess.run(f'"{sys.executable}" -c "{code}" | head -c 10', shell=True, capture_output=True, text=True,
                         check=False) if os.name == "posix" else None  # fmt: skip
    if run is None:
        pytest.skip("a pipe into `head` needs a POSIX shell")
    assert (run.stdout, run.stderr, run.returncode) == ("x" * 10, "", 0)
