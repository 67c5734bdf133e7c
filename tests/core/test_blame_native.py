"""Blame of programs that are not Python: by their instructions, and by the samples of native stacks that they have."""

import numpy as np
from kit.blame_scripted import ANON, APP, CODE, IMPORT, OWN_CODE, PAGE, Script

from wstrace.batch import Batch
from wstrace.schema import MAPPING, PAGE_EXCLUSIVE

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


def test_a_sample_of_another_thread_stands_for_nothing():
    script = Script()
    script.fault(10, ANON, tid=8)
    script.fault(11, ANON + PAGE, native=FIRST)
    script.fault(12, ANON + 2 * PAGE)
    assert lines(script, 3) == {"own": (2, 1), "tool": (1, 0)}


def test_a_fault_with_a_python_stack_is_its_lines():
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, native=FIRST)
    assert lines(script, 2) == {"load_frame app.py:31": (2, 0)}


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
