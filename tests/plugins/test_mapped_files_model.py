"""The vectorised look-up against a naive model that keeps every row and asks them one by one."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context
from wstrace.schema import (
    ADDRESS_SPACE,
    DTYPES,
    KIND_FILE,
    KIND_SHIFT,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    SPACE_MAP,
    SPACE_REPLACE,
    SPACE_UNMAP,
)
from wstrace_plugins.mapped_files.enricher import MappedFiles

PAGE = 4096
FILE = KIND_FILE << KIND_SHIFT
FILES = ("/a", "/b", "/c")


@dataclass
class Model:
    """What each page of each process holds now: page -> (file, offset of the mapping at address 0)."""

    pages: dict[int, dict[int, tuple[str, int]]] = field(default_factory=dict)

    def map(self, pid: int, first: int, n: int, file: str, offset: int) -> None:
        table = self.pages.setdefault(pid, {})
        table.update(dict.fromkeys(range(first, first + n), (file, offset - first * PAGE)))

    def unmap(self, pid: int, first: int, n: int) -> None:
        for page in range(first, first + n):
            self.pages.setdefault(pid, {}).pop(page, None)


def batch(schema, strings: Dictionary, rows: list[dict]) -> Batch:
    columns = {
        c.name: np.array([row[c.name] for row in rows], DTYPES[c.type])
        for c in schema.columns
        if rows and c.name in rows[0]
    }
    times = [row["time_ns"] for row in rows]
    return Batch(schema, columns, window=(min(times), max(times)), strings=strings)


pids = st.integers(1, 4)
page = st.integers(16, 47)
actions = st.one_of(
    st.tuples(st.just("map"), pids, page, st.integers(1, 12), st.sampled_from(FILES), st.integers(0, 3)),
    st.tuples(st.just("unmap"), pids, page, st.integers(1, 12)),
    st.tuples(
        st.just("listing"),
        pids,
        st.lists(st.tuples(page, st.sampled_from(FILES)), max_size=4, unique_by=lambda p: p[0]),
    ),
    st.tuples(st.just("fork"), pids, pids),
    st.tuples(st.just("exec"), pids),
    st.tuples(st.just("exit"), pids),
    st.tuples(st.just("fault"), pids, page),
    st.tuples(st.just("fault"), pids, page),
    st.tuples(st.just("drain")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(actions, max_size=60), st.booleans())
def test_every_fault_has_the_file_that_lay_there_at_its_time(script, one_batch):
    """GIVEN any story of maps, unmaps, listings, forks, execs and exits WHEN faults are shown in batches after them
    THEN each has the file and the offset that lay at its address at its own time.
    """
    context = Context()
    enricher = MappedFiles()
    enricher.start(context)
    model = Model()
    code = context.strings.code
    spaces, processes, faults, expected, given_out = [], [], [], [], []

    def space(event, time, pid, first, n, file="", offset=0):
        spaces.append({"time_ns": time, "pid": pid, "event": event, "start": first * PAGE, "end": (first + n) * PAGE,
                       "offset": offset, "file": code(file), "dev": 1, "ino": len(file),
                       "flags": FILE if file else 0})  # fmt: skip

    def process(event, time, pid, ppid=0):
        processes.append({"time_ns": time, "pid": pid, "ppid": ppid, "tid": pid, "event": event, "name": 0, "code": 0})

    def drain():
        for schema, rows in ((PROCESS, processes), (ADDRESS_SPACE, spaces), (PAGE_FAULT, faults)):
            if rows:
                given_out.extend(enricher.enrich(batch(schema, context.strings, rows)))
                rows.clear()

    # faults before the first row of a process, or just after an exec, are taken late: see the tests of that
    for pid in range(1, 5):
        process(PROCESS_EXEC, 1, pid)
        space(SPACE_MAP, 2, pid, 1, 1, "/a")
        model.map(pid, 1, 1, "/a", 0)
    second = 1_000_000_000
    for step, (action, *args) in enumerate(script):
        time = (step + 1) * second // 8
        match action, *args:
            case "map", pid, first, n, file, offset:
                space(SPACE_MAP, time, pid, first, n, file, offset * PAGE)
                model.map(pid, first, n, file, offset * PAGE)
            case "unmap", pid, first, n:
                space(SPACE_UNMAP, time, pid, first, n)
                model.unmap(pid, first, n)
            case "listing", pid, rows:
                rows = [(1, "/a"), *sorted(rows)]
                model.pages[pid] = {}
                for number, (first, file) in enumerate(rows):
                    space(SPACE_MAP if number else SPACE_REPLACE, time, pid, first, 1, file)
                    model.map(pid, first, 1, file, 0)
            case "fork", pid, child if pid != child:
                process(PROCESS_FORK, time, child, pid)
                model.pages[child] = dict(model.pages.get(pid, {}))
            case "exec", pid:
                process(PROCESS_EXEC, time, pid)
                model.pages[pid] = {}
                time += second // 16  # settled
                space(SPACE_MAP, time, pid, 1, 1, "/a")
                model.map(pid, 1, 1, "/a", 0)
            case "exit", pid:
                process(PROCESS_EXIT, time, pid)
            case "fault", pid, number:
                held = model.pages.get(pid, {}).get(number)
                early = any(
                    p["event"] == PROCESS_EXEC and p["pid"] == pid and time - p["time_ns"] <= second // 8
                    for p in processes
                )
                if held or not early:
                    faults.append(
                        {"time_ns": time, "pid": pid, "tid": pid, "pc": PAGE, "va": number * PAGE + 7, "flags": 0}
                    )
                    expected.append(held and (held[0], held[1] + number * PAGE))
            case ("drain",) if not one_batch:
                drain()
    drain()
    given_out.extend(enricher.close())

    mappings = {}
    for out in given_out:
        if out.schema.name == "mapping":
            for row in zip(*(out[name].tolist() for name in ("id", "start", "offset", "file")), strict=True):
                assert row[0] == len(mappings) + 1  # append-only, from 1 on
                mappings[row[0]] = row[1:]
    found = []
    for out in given_out:
        if out.schema.name == "page_fault":
            for va, mapping, file in zip(*(out[n].tolist() for n in ("va", "mapping", "file")), strict=True):
                start, offset, code_of_file = mappings.get(mapping, (0, 0, 0))
                assert code_of_file == file
                found.append((context.strings[file], offset + (va - 7) - start) if mapping else None)
    assert found == expected
    unresolved = context.ledger.get("unresolved", "va")
    assert unresolved == sum(e is None for e in expected)
