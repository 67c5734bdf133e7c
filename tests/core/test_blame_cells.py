"""Cells of a composition: by process, thread, whole stack, kind and file together, in the sums of every other table."""

from __future__ import annotations

from blame_scripted import ANON, APP, CODE, FILE, OWN_CODE, PAGE, SAVE, Script

from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame
from wstrace.schema import FAULT_MAJOR, PAGE_FILE, PROCESS_FORK, PROCESS_NAME
from wstrace.testing import trace_of
from wstrace.trace import Trace

VIEWS = ("process", "thread", "stack", "kind", "file")
NUMBERS = ("resident", "brought", "faults", "major", "from_disk", "private", "written")


def scripted(*, native: bool = False) -> Script:
    """Two threads of one process, and a second one; a page that came without a fault."""
    script = Script()
    script.batches += [script.process(2, 9, PROCESS_FORK, "other"), script.process(3, 7, PROCESS_NAME, "app")]
    for n in range(4):
        script.fault(10 + n, ANON + n * PAGE, stack=APP)
    for n in range(4, 6):
        script.fault(20 + n, ANON + n * PAGE, stack=SAVE, tid=8)
    sampled = [(3, 64), (4, 32)] if native else ()
    script.fault(40, FILE, flags=FAULT_MAJOR, pc=CODE + 64, native=sampled)
    script.fault(41, ANON + 40 * PAGE, pid=9, pc=OWN_CODE + 8)
    script.snapshot(100, (ANON, 3, 0), (ANON + 5 * PAGE, 1, 0), (ANON + 30 * PAGE, 1, 0), (FILE, 2, PAGE_FILE))
    script.snapshot(101, (ANON + 40 * PAGE, 1, 0), pid=9, number=1)
    return script


def told(trace: Trace, **asked: object) -> Blame:
    return Blame(Composition(trace, whole_stacks=True), **asked)


def by_name(blame: Blame, *views: str) -> dict[tuple[str, ...], dict[str, int]]:
    cells = blame.cells(*views)
    names = [tuple(labels[at].whole for labels, at in zip(cells.labels, cell, strict=True)) for cell in cells.of]
    assert len(set(names)) == len(names)
    return {name: {key: int(cells.sums[key][n]) for key in NUMBERS} for n, name in enumerate(names)}


def test_cells_sum_to_what_every_table_tells():
    for native in (False, True):
        trace = scripted(native=native).trace()
        found, usual = by_name(told(trace), *VIEWS), trace.blame()
        for view in ("line", "kind", "process"):
            for key in NUMBERS:
                assert sum(cell[key] for cell in found.values()) == sum(getattr(r, key) for r in usual.rows(view)), key


def test_views_of_a_composition_with_whole_stacks_say_the_same():
    """Telling threads and stacks apart changes no other table."""
    for native in (False, True):
        trace = scripted(native=native).trace()
        for view in ("line", "function", "package", "file", "kind", "process"):
            usual, whole = (blame.rows(view) for blame in (trace.blame(), told(trace)))
            assert [row.as_dict() for row in whole] == [row.as_dict() for row in usual], view


def test_a_cell_has_its_thread_its_frames_and_its_page():
    blame = told(scripted().trace())
    found = by_name(blame, *VIEWS)
    stack = "load_frame app.py:31 < <module> app.py:50"
    own = found["app (7)", "app (7)", stack, "anon", "[anon]"]
    assert (own["faults"], own["resident"], own["brought"]) == (4, 3 * PAGE, 4 * PAGE)
    assert found["app (7)", "app (8)", "save app.py:40 < <module> app.py:51", "anon", "[anon]"]["faults"] == 2
    assert [(frame.function, frame.file, frame.line) for frame in blame.frames[stack]] == APP
    (big,) = [cell for name, cell in found.items() if name[3] == "file"]
    assert (big["major"], big["resident"], big["from_disk"]) == (1, 2 * PAGE, 2 * PAGE)
    none = "(not known: no fault)"
    assert found["app (7)", none, none, "anon", "[anon]"]["resident"] == PAGE
    assert found["other (9), worker 1 of 1", "other (9)", "own+0x8", "anon", "[anon]"]["resident"] == PAGE


def test_an_instruction_has_one_frame_with_the_place_of_its_code():
    blame = told(scripted().trace())
    blame.cells("stack")
    (frame,) = blame.frames["tool+0x40"]
    assert (frame.kind, frame.module, frame.offset, frame.mapping) == ("native", "tool", 64, 3)


def test_a_sampled_native_stack_is_told_whole_and_as_an_estimate():
    blame = told(scripted(native=True).trace())
    found = by_name(blame, "thread", "stack")
    assert found["app (7)", "tool+0x40 < own+0x20"]["major"] == 1
    assert [frame.mapping for frame in blame.frames["tool+0x40 < own+0x20"]] == [3, 4]


def test_only_some_kinds_of_memory_are_counted():
    found = by_name(told(scripted().trace(), kinds=["file"]), *VIEWS)
    assert {name[3] for name in found} == {"file"}
    assert sum(cell["faults"] for cell in found.values()) == 1


def test_a_trace_without_anything_has_no_cells():
    cells = told(trace_of()).cells(*VIEWS)
    assert cells.of.shape == (0, len(VIEWS))
