"""The views of a query, and its list of tables: names and words for ids, codes and flags, a meaning for each column."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.stacks_scripted import Stacks

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_MAJOR,
    FAULT_PC_KERNEL,
    FAULT_WRITE,
    FRAME_PYTHON,
    HOW_EXACT,
    HOW_NO_PYTHON,
    KIND_FILE,
    KIND_SHIFT,
    MAPPING,
    PAGE_EXCLUSIVE,
    PAGE_FAULT,
    PAGE_SWAPPED,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    PROCESS_NAME,
    RESIDENT_PAGES,
)
from wstrace.session import Session
from wstrace.testing import ScriptedSource, batch_of
from wstrace_exporters.msgpack.commands.query import query
from wstrace_exporters.msgpack.interchange.sql import connect

pytest.importorskip("duckdb")
PAGE, LIB = 4096, 0x7E0000000000
APP = [("work", "/srv/app/app.py", 31), ("<module>", "/srv/app/app.py", 50)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A shell (7) that starts another program (8), in which a thread (9) gets a name of its own later."""
    strings = Dictionary()
    stacks = Stacks(strings)
    work = stacks.python(APP)
    sites = stacks.trees[FRAME_PYTHON].new_rows()
    assert sites is not None
    known = FAULT_ACCESS_KNOWN
    resident = batch_of(RESIDENT_PAGES, strings, start=[LIB, LIB + 8 * PAGE], pages=[3, 2], mapping=1,
                        flags=[PAGE_EXCLUSIVE, PAGE_SWAPPED])  # fmt: skip
    earlier = batch_of(RESIDENT_PAGES, strings, start=[LIB], pages=[9], mapping=1, flags=0)
    batches = [
        batch_of(MAPPING, strings, id=1, time_ns=1, pid=7, start=LIB, end=LIB + (1 << 20), offset=0,
                 file="/usr/lib/libbig.so", dev=1, ino=5, build_id=0, flags=KIND_FILE << KIND_SHIFT),
        batch_of(PROCESS, strings, time_ns=[5, 10, 20, 25, 40, 60], pid=[7, 8, 8, 8, 8, 8], ppid=[1, 7, 7, 7, 7, 7],
                 tid=[7, 8, 8, 9, 9, 8], code=[-1, -1, -1, -1, -1, 3], name=["sh", "sh", "app", "", "pool-1", "app"],
                 event=[PROCESS_EXEC, PROCESS_FORK, PROCESS_EXEC, PROCESS_FORK, PROCESS_NAME, PROCESS_EXIT]),
        sites,
        batch_of(PAGE_FAULT, strings, time_ns=[6, 12, 30, 35, 45, 50], pid=[7, 8, 8, 8, 8, 8], tid=[7, 8, 8, 9, 9, 99],
                 va=[LIB + n * PAGE for n in range(6)], pc=[LIB, LIB, LIB, 1 << 63, LIB, LIB], mapping=1,
                 kind=KIND_FILE, cgroup=["/", *["/system.slice/app.service"] * 4, "/"],
                 pc_mapping=[1, 1, 1, 0, 1, 1], stack=[0, 0, work, 0, 0, 0],
                 stack_how=[HOW_NO_PYTHON, HOW_NO_PYTHON, HOW_EXACT, HOW_NO_PYTHON, HOW_NO_PYTHON, HOW_NO_PYTHON],
                 flags=[0, known, known | FAULT_WRITE, FAULT_PC_KERNEL, FAULT_MAJOR, 0]),
        *(Batch(RESIDENT_PAGES, rows.columns, strings=strings, snapshot=SnapshotPart(8, number, 0, True, time, pages))
          for number, (time, pages, rows) in enumerate([(41, 9, earlier), (59, 5, resident)])),
    ]  # fmt: skip
    found = str(tmp_path_factory.mktemp("views") / "x.wst")
    session = Session(
        sources=[ScriptedSource(batches)], exporters=[f"msgpack:path={found}"], enrichers=[], record=False
    )
    session.context.info.page_size = PAGE
    with session:
        while not session.wait(0.05):
            pass
    return found


def rows(path, sql):
    with connect(path, sql) as answer:
        return answer.rows


def test_faults_have_the_names_of_their_process_and_thread_at_their_time(path):
    assert rows(path, "select time_ns, process, thread from faults order by 1") == [
        (6, "sh", "sh"), (12, "sh", "sh"), (30, "app", "app"), (35, "app", "pool-1"), (45, "app", "pool-1"),
        (50, "app", "app"),
    ]  # fmt: skip


def test_faults_have_words_and_texts(path):
    sql = "select access, from_disk, in_kernel, kind, file, own_line, stack_how from faults order by time_ns"
    lib, code = "/usr/lib/libbig.so", "libbig.so"
    assert rows(path, sql) == [
        ("", 0, 0, "file", lib, code, "no Python frame"),
        ("read", 0, 0, "file", lib, code, "no Python frame"),
        ("write", 0, 0, "file", lib, "work app.py:31", "exact"),
        ("", 0, 1, "file", lib, "[kernel]", "no Python frame"),
        ("", 1, 0, "file", lib, code, "no Python frame"),
        ("", 0, 0, "file", lib, code, "no Python frame"),
    ]
    assert rows(path, "select pc_function, count(*) from faults group by 1 order by 1") == [
        ("[kernel]", 1),
        ("libbig.so", 5),
    ]
    assert rows(path, "select function, package from faults where stack != 0")[0][0].startswith("work")


def test_processes_have_their_life(path):
    sql = "select pid, ppid, name, began_ns, ended_ns, code, threads from processes order by 1"
    assert rows(path, sql) == [(7, 1, "sh", 5, 0, -1, 1), (8, 7, "app", 10, 60, 3, 2)]


def test_snapshots_can_be_distinguished(path):
    assert rows(path, "select time_ns, pid, sum(pages) from resident group by all order by 1") == [
        (41, 8, 9),
        (59, 8, 5),
    ]
    assert rows(path, "select time_ns, pid, sum(pages) from still_resident group by all") == [(59, 8, 3)]


def test_the_schema_of_a_file_is_that_of_the_query(path):
    done = CliRunner().invoke(query, ["--schema", path, "--format", "json"], catch_exceptions=False)
    shown = {}
    for line in done.output.splitlines():
        row = json.loads(line)
        assert row["meaning"], row
        shown.setdefault(row["table"], []).append(row["column"])
    tables = {name for (name,) in rows(path, "select view_name from duckdb_views() where not internal")}
    assert tables == set(shown) >= {"faults", "pages", "stacks", "processes", "unshared", "still_resident", "resident"}
    for name, columns in shown.items():
        assert [column for column, *_ in rows(path, f"describe {name}")] == columns, name


GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("wstf-2*.wst"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_a_view_has_nulls_where_the_trace_lacks_a_column_of_words(golden):
    """As a trace of Windows does, or one without stacks."""
    assert rows(str(golden), "select count(*), count(stack_how), count(file) from faults") == [(3000, 0, 3000)]
    for view in ("pages", "processes", "unshared", "still_resident"):
        rows(str(golden), f"select * from {view}")


def test_every_view_exists_in_every_trace(tmp_path):
    """Of a trace without stacks, snapshots or faults a view is empty, with its columns."""
    from wstrace_exporters.msgpack.interchange.tables import VIEWS

    strings = Dictionary()
    born = batch_of(PROCESS, strings, time_ns=5, pid=7, ppid=1, tid=7, event=PROCESS_EXEC, name="sh", code=-1)
    found = str(tmp_path / "x.wst")
    with Session(sources=[ScriptedSource([born])], exporters=[f"msgpack:path={found}"], enrichers=[],
                 record=False) as session:  # fmt: skip
        while not session.wait(0.05):
            pass
    for view in VIEWS:
        with connect(found, f"select * from {view.name}") as answer:
            assert answer.names == [column.name for column in view.columns], view.name
            assert len(answer.rows) == (view.name == "processes"), view.name
