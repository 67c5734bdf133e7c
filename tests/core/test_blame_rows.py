"""Compositions of scripted traces: rows that sum to the total, whose bytes they are, and what they cannot tell."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from kit.blame_scripted import ANON, APP, CODE, FILE, IMPORT, OWN_CODE, PAGE, SAVE, Script, composition, saved

from wstrace.analysis.composition import Composition
from wstrace.analysis.report import report
from wstrace.analysis.unshared import Unshared
from wstrace.analysis.unshared import unshared as of_forks
from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.schema import (
    FAULT_MAJOR,
    HOW_NO_PYTHON,
    HOW_NOT_KNOWN,
    LOSS_DISCARDED,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_PERHAPS,
    LOSS_SHARES,
    LOSS_UNMAPPED,
    MAPPING,
    MARK,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_SHARED,
    PAGE_SWAPPED,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
)
from wstrace.testing import batch_of
from wstrace_exporters.console.commands.report import report as command
from wstrace_exporters.console.commands.unshared import unshared
from wstrace_exporters.msgpack.interchange.sql import connect

VIEWS = ("line", "function", "file", "package", "kind", "process", "cgroup", "thread")


def sizes(shown: Composition, by: str = "line", column: str = "resident") -> dict[str, int]:
    """label -> pages."""
    rows = [(row.whole if row.of("reason") else row.label, row[column] // PAGE) for row in shown.rows(by)]
    return {label: pages for label, pages in rows if pages}


def loaded() -> Script:
    """4 pages by load_frame, 2 by an import, 1 from disk with 3 around it, and 1 that no fault brought."""
    script = Script()
    for page in range(4):
        script.fault(10 + page, ANON + page * PAGE, APP)
    for page in range(8, 10):
        script.fault(20 + page, ANON + page * PAGE, IMPORT)
    script.fault(40, FILE + 5 * PAGE, SAVE, flags=FAULT_MAJOR)
    script.fault(50, ANON, SAVE)
    script.lose(60, LOSS_UNMAPPED, start=ANON + 3 * PAGE, end=ANON + 4 * PAGE)
    script.snapshot(100, (ANON, 3, PAGE_EXCLUSIVE), (ANON + 8 * PAGE, 3, PAGE_EXCLUSIVE),
                    (FILE + 4 * PAGE, 4, PAGE_FILE | PAGE_SHARED), (ANON + 90 * PAGE, 5, PAGE_SWAPPED))  # fmt: skip
    return script


def test_each_page_is_reported_by_the_line_that_brought_it():
    shown = loaded().blame()
    none = "(not known: no fault)"
    # of two faults on the page at ANON the first one read: it mapped the page of zeros
    assert sizes(shown) == {"load_frame app.py:31": 2, "save app.py:40": 5, "import pandas app.py:3": 2, none: 1}
    assert sizes(shown, "package") == {"(own code)": 7, "pandas": 2, none: 1}
    assert sizes(shown, "file") == {"[anon]": 6, "/usr/lib/libbig.so": 4}
    assert sizes(shown, "kind") == {"anon": 6, "file": 4}
    assert sizes(shown, "process") == {"app (7)": 10}
    assert sizes(shown, column="estimated") == {"save app.py:40": 4}
    assert {row.label: row["faults"] for row in shown.rows("line") if row["faults"]} == {
        "load_frame app.py:31": 4, "import pandas app.py:3": 2, "save app.py:40": 2}  # fmt: skip
    assert {row.label for row in shown.rows("line") if row["estimated"]} == {"save app.py:40"}


@pytest.mark.parametrize("views", [*((view,) for view in VIEWS), ("process", "line"), ("file", "line")])
def test_the_rows_of_every_view_sum_to_the_same_total_in_every_column(views):
    shown = loaded().blame()
    rows, sums = shown.rows(*views), shown.sums
    total = {"resident": 10 * PAGE, "private": 6 * PAGE, "brought": 11 * PAGE, "written": PAGE, "faults": 8}
    assert {name: sums[name].sum() for name in total} == total, "the page that was unmapped was brought, too"
    assert shown.inputs.swapped == 5
    for column, amounts in sums.items():
        assert sum(row[column] for row in rows) == amounts.sum(), column
    assert all(row["private"] + row["shared"] == row["resident"] for row in rows)
    assert shown.complete


@pytest.mark.parametrize(("shown", "page"), [(None, 47), (4096, 33), (1 << 17, 49), ("4096", 47), (1 << 90, 47)])
def test_the_window_of_a_fault_is_as_large_as_the_trace_tells(shown, page):
    script = Script()
    script.fault(10, FILE + 33 * PAGE, SAVE)
    script.fault(5, FILE + 32 * PAGE, APP)
    script.fault(6, FILE + 200 * PAGE, APP)
    script.snapshot(100, (FILE + page * PAGE, 1, PAGE_FILE | PAGE_SHARED))
    trace = script.trace()
    trace.info.extra["fault_around_bytes"] = shown
    assert sizes(composition(trace)) == {"save app.py:40" if page == 33 else "load_frame app.py:31": 1}


def test_what_was_brought_again_is_distinguished():
    script = Script()
    for page in range(4):
        script.fault(10 + page, ANON + page * PAGE, APP)
    script.lose(20, LOSS_DISCARDED, start=ANON, end=ANON + 2 * PAGE)
    for page in range(2):
        script.fault(30 + page, ANON + page * PAGE, SAVE)
    script.fault(40, ANON + 3 * PAGE, IMPORT, flags=FAULT_MAJOR)  # it had been swapped out
    script.snapshot(50, (ANON, 4, PAGE_EXCLUSIVE))
    shown = script.blame()
    assert sizes(shown) == {"load_frame app.py:31": 2, "save app.py:40": 2}
    assert sizes(shown, column="brought") == {"load_frame app.py:31": 4, "save app.py:40": 2}
    assert sizes(shown, column="again") == {"save app.py:40": 2, "import pandas app.py:3": 1}
    assert shown.sums["again"].sum() == 3 * PAGE


def test_without_a_record_of_unmappings_nothing_is_called_complete():
    trace = loaded().trace()
    trace.info.content_losses = ()
    shown = composition(trace)
    assert not shown.complete
    assert "unmapped" in shown.past.assumed


def test_a_child_has_its_own_copies_and_its_parents_lines():
    script = Script()
    for page in range(4):
        script.fault(10 + page, ANON + page * PAGE, APP)
    script.lose(30, LOSS_FORKED, pid=8, other=7)
    script.fault(40, ANON, SAVE, pid=8)
    for pid in (7, 8):
        script.snapshot(50, (ANON, 4, PAGE_EXCLUSIVE), pid=pid, number=pid)
    trace = script.trace()
    shown = composition(trace)
    assert sizes(shown) == {"load_frame app.py:31": 7, "save app.py:40": 1}
    assert sizes(composition(trace, pids=[8])) == {"load_frame app.py:31": 3, "save app.py:40": 1}
    assert sizes(shown, column="copied") == {"save app.py:40": 1}
    assert [row.label for row in shown.rows("process") if row["copied"]] == ["[unknown] (8)"]


def test_what_a_vforked_child_brings_is_in_its_parents_memory():
    script = Script()
    script.lose(10, LOSS_SHARES, pid=8, other=7)
    script.fault(20, ANON, APP, pid=8)
    script.lose(30, LOSS_EXECUTED, pid=8)
    script.fault(40, ANON + PAGE, SAVE, pid=8)
    script.snapshot(50, (ANON, 2, PAGE_EXCLUSIVE))
    assert sizes(script.blame()) == {"load_frame app.py:31": 1, "(not known: no fault)": 1}


def test_the_moment():
    script = Script()
    for page in range(4):
        script.fault(10 * page + 10, ANON + page * PAGE, APP)
    script.snapshot(15, (ANON, 1, PAGE_EXCLUSIVE), number=0)
    script.snapshot(45, (ANON, 4, PAGE_EXCLUSIVE), number=1)
    script.snapshot(60, (ANON, 2, PAGE_EXCLUSIVE), number=2)
    script.batches.append(batch_of(MARK, script.strings, time_ns=44, pid=7, tid=7, text="warm"))
    trace = script.trace()
    assert {at: composition(trace, at=at).rss // PAGE for at in ("start", "peak", "exit", "warm", 50)} == {
        "start": 1, "peak": 4, "exit": 2, "warm": 4, 50: 4}  # fmt: skip
    with pytest.raises(UsageError, match="cold"):
        composition(trace, at="cold")


def test_a_peak_holds_no_process_that_had_ended():
    """Three processes, one after the other, have 3, 4 and 2 pages: never more than 4 at once."""
    script = Script()
    for number, (pid, pages) in enumerate([(7, 3), (8, 4), (9, 2)]):
        script.fault(100 * number + 10, ANON, APP, pid=pid)
        script.snapshot(100 * number + 20, (ANON, pages, PAGE_EXCLUSIVE), pid=pid, number=number)
        script.batches.append(batch_of(PROCESS, script.strings, time_ns=100 * number + 50, pid=pid, ppid=1, tid=pid,
                                       event=PROCESS_EXIT, name="app", code=0))  # fmt: skip
    trace = script.trace()
    assert {at: composition(trace, at=at).rss // PAGE for at in ("peak", "exit", 130, 160, 230)} == {
        "peak": 4, "exit": 9, 130: 4, 160: 0, 230: 2}  # fmt: skip


def test_the_command_prints_the_answer_first(tmp_path):
    path = str(tmp_path / "x.wst")
    saved(loaded().trace(), path)
    runner = CliRunner()
    lines = runner.invoke(command, [path], catch_exceptions=False).output.splitlines()
    assert lines[0] == ("40.0 KiB at the peak: ~20.0 save app.py:40, 8.0 load_frame app.py:31, "
                        "8.0 import pandas app.py:3, ...")  # fmt: skip
    assert any(line.split()[-1:] == ["Total"] and "40.0 KiB" in line for line in lines)
    report = json.loads(runner.invoke(command, [path, "--json", "--by", "package"], catch_exceptions=False).output)
    assert {row["label"]: row["resident"] // PAGE for row in report["rows"]}["pandas"] == 2
    for wrong in (["--by", "colour", path], ["--by", "line,line", path], []):
        assert isinstance(runner.invoke(command, wrong).exception, UsageError)


def forked(children: int, pages: int = 16) -> Script:
    """A parent that loads pages, and children that write them, as it does itself in the end."""
    script = Script()
    for page in range(pages):
        script.fault(10 + page, ANON + page * PAGE, APP)
    for child in range(children):
        script.lose(100 + child, LOSS_FORKED, pid=8 + child, other=7)
    for writer in range(children + 1):
        for page in range(pages):
            pid = 8 + writer if writer < children else 7
            script.fault(1000 + 100 * writer + page, ANON + page * PAGE, SAVE, pid=pid)
    return script


def test_bytes_of_shared_pages_sum_alike_in_all_views_also_those_that_are_estimated():
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, SAVE)
    for pid in (8, 9):
        script.lose(100, LOSS_FORKED, pid=pid, other=7)
    for pid in (7, 9):
        script.lose(120, LOSS_PERHAPS, pid=pid)
    for pid in (7, 8, 9):
        script.snapshot(200, (ANON, 2, PAGE_SHARED), pid=pid, shares=[3])
    totals = [script.trace().report(by=by, at="exit").total for by in VIEWS]
    assert {(total["resident"], total["pss"]) for total in totals} == {(2 * PAGE, 2 * PAGE)}
    assert {total["estimated"] for total in totals} == {round(2 / 3 * 2 * PAGE)}, "each is in two of three processes"


@pytest.mark.parametrize("children", [1, 4])
def test_unshared_counts_one_copy_less_than_there_are_holders(children):
    shown = Unshared(forked(children).blame())
    assert shown.total == children * 16 * PAGE
    found = of_forks(forked(children).trace()).as_dict()
    assert [(row["function"], row["copied"]) for row in found["rows"]] == [("save", shown.total)]
    assert sum(fork["copied"] for fork in found["forks"]) == found["total"]["copied"] == shown.total
    assert {fork["pid"] for fork in found["forks"]} <= set(range(8, 8 + children))
    assert found["completeness"].startswith("complete")


def test_copies_of_a_process_that_ended_are_reported_to_hold_those_of_its_end(tmp_path):
    script = forked(1)
    shown = Unshared(script.blame())
    assert (shown.total, shown.ended) == (16 * PAGE, False)
    script.batches.append(script.process(5000, 8, PROCESS_EXIT, "app"))
    saved(script.trace(), path := str(tmp_path / "x.wst"))
    lines = CliRunner().invoke(unshared, [path], catch_exceptions=False).output.splitlines()
    assert lines[1].endswith("; what they copied while they ended counts too")


def test_pages_that_came_with_a_huge_page_are_shared_too():
    script = Script()
    script.fault(10, ANON, APP)
    script.lose(20, LOSS_FORKED, pid=8, other=7)
    script.fault(30, ANON + 5 * PAGE, SAVE, pid=8)
    assert Unshared(script.blame()).total == 0, "nothing tells that the parent had this page"
    script = Script()
    script.fault(10, ANON, APP, page_size=512 * PAGE)
    script.lose(20, LOSS_FORKED, pid=8, other=7)
    script.fault(30, ANON + 5 * PAGE, SAVE, pid=8)
    assert Unshared(script.blame()).total == PAGE


def test_a_huge_page_is_one_fault_in_every_view_also_where_another_page_of_it_faulted(tmp_path):
    script = Script()
    script.fault(10, ANON, APP, page_size=512 * PAGE)
    script.fault(30, ANON + 5 * PAGE, SAVE)
    trace = script.trace()
    assert [trace.save(str(tmp_path / name)) for name in ("x.html", "x.pftrace")] == [2, 2]
    assert trace.report().total["faults"] == 2


@pytest.mark.parametrize("writer", [7, 8])
def test_what_was_unshared_is_not_known_where_nothing_tells_what_the_parent_had(tmp_path, writer):
    script = Script()
    script.batches.pop()  # the process was there before the trace: nothing tells that it began
    script.lose(20, LOSS_FORKED, pid=8, other=7)
    script.fault(30, ANON + 5 * PAGE, SAVE, pid=writer)
    saved(script.trace(), path := str(tmp_path / "x.wst"))
    shown = Unshared(script.blame())
    assert (shown.total, shown.at_least) == (0, True)
    runner = CliRunner()
    first = runner.invoke(unshared, [path], catch_exceptions=False).output.splitlines()[0]
    assert first.startswith("what was un-shared is not known: no snapshot shows what [unknown] (7) had in memory")
    script.fault(15, ANON, APP)
    script.fault(40, ANON, SAVE, pid=8)
    script.fault(50, ANON + 9 * PAGE, SAVE)
    saved(script.trace(), path := str(tmp_path / "y.wst"))
    first = runner.invoke(unshared, [path], catch_exceptions=False).output.splitlines()[0]
    assert first.startswith("at least 4.0 KiB un-shared after 1 fork: ")
    script.snapshot(12, (ANON + 5 * PAGE, 1, PAGE_EXCLUSIVE))
    script.snapshot(90, (ANON, 10, PAGE_EXCLUSIVE))
    shown = Unshared(script.blame())
    assert (shown.total, shown.at_least) == (2 * PAGE, False), "the page 9 of the parent was not there before"


def test_what_a_child_inherited_from_before_the_trace_is_named_so():
    script = Script()
    script.batches.pop()
    script.lose(20, LOSS_FORKED, pid=8, other=7)
    script.batches.append(batch_of(PROCESS, script.strings, time_ns=20, pid=8, ppid=7, tid=8, event=PROCESS_FORK,
                                   name="app", code=-1))  # fmt: skip
    script.fault(30, ANON + 5 * PAGE, SAVE, pid=8)
    script.snapshot(40, (ANON, 4, PAGE_SHARED), (ANON + 5 * PAGE, 1, PAGE_EXCLUSIVE), pid=8)
    assert sizes(script.blame()) == {"(not known: before the trace)": 4, "save app.py:40": 1}


def test_forks_before_the_trace_are_not_called_none(tmp_path):
    script = Script()
    script.batches.pop()
    script.fault(30, ANON, SAVE)
    saved(script.trace(), path := str(tmp_path / "x.wst"))
    first = CliRunner().invoke(unshared, [path], catch_exceptions=False).output.splitlines()[0]
    assert first == "what was un-shared is not known: no process forked in the trace, only perhaps before it"


def test_the_command_unshared_tells_lines_and_forks(tmp_path):
    path = str(tmp_path / "x.wst")
    saved(forked(4).trace(), path)
    runner = CliRunner()
    lines = runner.invoke(unshared, [path], catch_exceptions=False).output.splitlines()
    assert lines[0] == "256.0 KiB un-shared after 4 forks: 256.0 save app.py:40"
    assert lines[1] == "complete: 96 faults, 0 lost"
    report = json.loads(runner.invoke(unshared, [path, "--json"], catch_exceptions=False).output)
    assert report["total"] == {"copied": 64 * PAGE, "at_the_end": 0}
    saved(forked(0).trace(), path)
    nothing = runner.invoke(unshared, [path], catch_exceptions=False).output
    assert nothing.startswith("nothing was un-shared")


def test_sql_has_a_row_for_each_page_and_each_copy(tmp_path):
    path = str(tmp_path / "x.wst")
    saved(loaded().trace(), path)
    with connect(path, "select own_line, count(*) n, sum(private) p from pages group by 1 order by 2, 1") as answer:
        assert answer.rows == [("(not known)", 1, 1), ("import pandas app.py:3", 2, 2),
                               ("load_frame app.py:31", 2, 2), ("save app.py:40", 5, 1)]  # fmt: skip
    with connect(path, "select count(distinct va), min(va), count(*) filter (estimated = 1) from pages") as answer:
        assert answer.rows == [(10, FILE + 4 * PAGE, 4)]
    saved(forked(4).trace(), path)
    with connect(path, "select own_line, pid, sum(copies) from unshared group by all order by 2") as answer:
        assert answer.rows == [("save app.py:40", pid, 16) for pid in (8, 9, 10, 11)]


def test_a_loss_that_ends_before_it_begins_is_empty():
    script = forked(2)
    whole = sizes(script.blame())
    script.lose(90, LOSS_DISCARDED, start=ANON + 8 * PAGE, end=ANON)
    assert sizes(script.blame()) == whole


@pytest.mark.parametrize(("n", "said"), [(500, False), (501, True)])
def test_line_2_says_how_many_faults_have_no_python_line_where_they_are_many(n, said):
    trace = loaded().trace()
    trace.ledger.set("without_stack", n, "interpreter not known yet")
    line = report(trace).completeness
    assert ("501 without their Python line (interpreter not known yet)" in line) == said


LIBRARY, OWN, OTHER = 3, 4, 5
FIRST, SECOND = [(LIBRARY, 64), (OWN, 0x100)], [(LIBRARY, 64), (OTHER, 0x200)]


def lines(script: Script, n: int) -> dict[str, tuple[int, int, int]]:
    """Pages of the process by line: resident, and samples."""
    script.snapshot(1000, (ANON, n, PAGE_EXCLUSIVE))
    shown = script.blame()
    assert shown.rss == n * PAGE
    return {row.label: (row["resident"] // PAGE, row["samples"]) for row in shown.rows("line")}


def test_a_sample_stands_for_the_faults_of_its_thread_before_it():
    script = Script()
    for page in range(8):
        script.fault(10 + page, ANON + page * PAGE, native={3: FIRST, 7: SECOND}.get(page, ()))
    assert lines(script, 8) == {"own": (4, 1), "libown.so": (4, 1)}


def test_the_programs_own_instruction_needs_no_sample_and_its_samples_stand_for_no_other():
    script = Script()
    for page in range(6):
        own = page % 2 == 0
        pc, native = (OWN_CODE + 0x300, [(OWN, 0x300)]) if own else (CODE + 64, SECOND if page == 5 else ())
        script.fault(10 + page, ANON + page * PAGE, pc=pc, native=native)
    assert lines(script, 6) == {"libown.so": (3, 1), "own": (3, 3)}


def test_what_a_library_touched_is_of_the_program_below_usr_that_called_it_and_of_own_code_first():
    script = Script()
    script.map_file("/usr/bin/redis-server")
    program = [(LIBRARY, 64), (6, 0x40)]  # the sixth mapping
    script.fault(10, ANON, native=program)
    script.fault(11, ANON + PAGE, native=[*program, (OWN, 0x100), *program])
    assert lines(script, 2) == {"redis-server": (1, 1), "own": (1, 1)}


def test_a_sample_of_another_thread_stands_for_nothing():
    script = Script()
    script.fault(10, ANON, tid=8)
    script.fault(11, ANON + PAGE, native=FIRST)
    script.fault(12, ANON + 2 * PAGE)
    assert lines(script, 3) == {"own": (2, 1), "libc.so": (1, 0)}


@pytest.mark.parametrize(
    ("samples", "words"), [(1, "partly estimated from 1 sample"), (2, "partly estimated from 2 samples")]
)
def test_the_second_line_says_how_many_samples_there_are(samples, words):
    script = Script()
    for page in range(3):
        script.fault(10 + page, ANON + page * PAGE, native=FIRST if page < samples else ())
    assert report(script.trace()).completeness == f"3 faults, 0 lost; {words}"


def test_a_sample_stands_for_nothing_that_the_next_program_of_its_process_touches():
    script = Script()
    script.fault(10, ANON, native=FIRST)
    script.batches.append(script.process(20, 7, PROCESS_EXEC, "python3"))
    script.fault(30, ANON + PAGE)
    script.fault(31, ANON + 2 * PAGE)
    assert lines(script, 3) == {"own": (1, 1), "libc.so": (2, 0)}


def test_a_sample_after_an_exec_stands_for_nothing_before_it():
    script = Script()
    script.fault(10, ANON)
    script.batches.append(script.process(20, 7, PROCESS_EXEC, "python3"))
    script.fault(30, ANON + PAGE)
    script.fault(31, ANON + 2 * PAGE, native=FIRST)
    assert lines(script, 3) == {"own": (2, 1), "libc.so": (1, 0)}


def test_a_fault_with_a_python_stack_is_its_lines():
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, native=FIRST)
    assert lines(script, 2) == {"load_frame app.py:31": (2, 0)}


def test_the_program_s_own_code_is_one_package_with_a_sampled_stack_and_without():
    script = Script()
    script.fault(10, ANON, pc=CODE + 64, native=[(4, 0x90)])
    script.fault(11, ANON + PAGE, pc=OWN_CODE + 64)
    script.snapshot(100, (ANON, 2, PAGE_EXCLUSIVE))
    shown = script.blame()
    assert sizes(shown, "package") == {"(own code)": 2}
    assert set(sizes(shown, "owner")) == set(sizes(shown, "line"))


def test_the_library_of_a_package_is_reported_as_the_package():
    script = Script()
    packages = "/venv/lib/python3.11/site-packages"
    path = script.strings.code(f"{packages}/pandas.libs/libsomething-1a2b3c4d.so.3")
    columns = script.batches[0].columns
    file = np.where(columns["id"] == 3, path, columns["file"]).astype("<u4")
    script.batches[0] = Batch(MAPPING, {**columns, "file": file}, strings=script.strings)
    script.fault(10, ANON)
    script.fault(11, ANON + PAGE, IMPORT)
    script.snapshot(1000, (ANON, 2, PAGE_EXCLUSIVE))
    shown = script.blame()
    (row,) = shown.rows("package")
    assert (row.label, row["resident"]) == ("pandas", 2 * PAGE)
    of_line = {row.label: row.of("package") for row in shown.rows("line")}
    assert of_line["libsomething-1a2b3c4d.so.3"] == "pandas"


DESTRUCTOR = [("__del__", "/srv/app/app.py", 90)]
SIGNALLED = [("stop", "/srv/app/app.py", 70), *SAVE]


def served(*, ends: bool = True, how: int = HOW_NO_PYTHON) -> Script:
    """A child that copies 16 pages by a line, 2 in a thread without Python, and 9 behind its last frame."""
    script = Script()
    for page in range(64):
        script.fault(10 + page, ANON + page * PAGE, APP)
    script.lose(100, LOSS_FORKED, pid=8, other=7)
    for page in range(16):
        script.fault(1000 + page, ANON + page * PAGE, SAVE, pid=8)
    script.fault(1100, ANON + 20 * PAGE, pid=8, tid=9)
    script.fault(1200, ANON + 21 * PAGE, SIGNALLED, pid=8)
    script.fault(1210, ANON + 22 * PAGE, pid=8, tid=9)
    for page in range(8):
        script.fault(1300 + page, ANON + (30 + page) * PAGE, pid=8, how=how)
    script.fault(1304, ANON + 50 * PAGE, DESTRUCTOR, pid=8)
    if ends:
        script.batches.append(script.process(5000, 8, PROCESS_EXIT, "app"))
    return script


def test_what_a_process_copied_as_it_ended_is_distinguished(tmp_path):
    shown = Unshared(served().blame())
    assert (shown.total, shown.at_the_end) == (28 * PAGE, 9 * PAGE)
    found = {row.of("function"): (row["copied"], row["at_the_end"]) for row in shown.rows("function")}
    assert found == {"save": (16 * PAGE, 0), "stop": (PAGE, 0), "": (10 * PAGE, 8 * PAGE), "__del__": (PAGE, PAGE)}
    report = of_forks(served().trace()).as_dict()
    assert (report["total"]["at_the_end"], sum(row["at_the_end"] for row in report["rows"])) == (9 * PAGE, 9 * PAGE)
    saved(served().trace(), path := str(tmp_path / "x.wst"))
    lines = CliRunner().invoke(unshared, [path], catch_exceptions=False).output.splitlines()
    assert lines[0].startswith("76.0 KiB un-shared after 1 fork: 64.0 save app.py:40, 8.0 ")
    assert lines[0].endswith("; 36.0 KiB more as 1 process ended")
    assert "ended" not in lines[1]
    head = next(line for line in lines if line.endswith("own line"))
    assert head.split() == ["copied", "at", "the", "end", "own", "line"]
    total = next(line for line in lines if line.endswith(" Total"))
    assert total.split()[:4] == ["112.0", "KiB", "36.0", "KiB"]


@pytest.mark.parametrize(("ends", "how"), [(False, HOW_NO_PYTHON), (True, HOW_NOT_KNOWN)])
def test_nothing_is_reported_of_an_end_that_is_not_known(ends, how):
    """GIVEN a process that goes on, or with unknown last stacks THEN all counts as copied while it ran."""
    shown = Unshared(served(ends=ends, how=how).blame())
    assert (shown.total, shown.at_the_end) == (28 * PAGE, 0)
    assert shown.ended == ends, "then line 2 says that what it copied as it ended counts too"
