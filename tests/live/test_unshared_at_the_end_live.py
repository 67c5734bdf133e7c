"""What an interpreter copies as it ends, beside a child that reads the same and ends at once."""

import sys

import pytest
from kit.blame_scripted import composition
from kit.command_line import answer

import wstrace
from wstrace.analysis.unshared import Unshared

pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")

PROGRAM = """
import os, sys
table = [[number] for number in range(200_000)]
def read():
    return sum(len(row) for row in table[:50_000])
if not os.fork():
    read()
    {end}
_, status = os.wait()
os._exit(status)
"""


@pytest.mark.parametrize("end", ["sys.exit()", "os._exit(0)"])
def test_the_end_of_an_interpreter_is_distinguished_from_what_it_read_before(tmp_path, end):
    path, program = tmp_path / "x.wst", tmp_path / "program.py"
    program.write_text(PROGRAM.format(end=end))
    said = answer("unshared", "-o", path, "--", sys.executable, program)
    with wstrace.open_trace(path) as trace:
        shown = Unshared(composition(trace, at="exit"))
        rows = {
            row.of("function"): (row["copied"] - row["at_the_end"], row["at_the_end"]) for row in shown.rows("function")
        }
    assert rows["read"][0] > 2 << 20, "the slice counts a reference to each of 50,000 lists of 64 bytes"
    assert rows["read"][1] == 0
    assert not shown.ended
    # what it did not read is freed at the end alone: three quarters of the table, of which some is shared by then
    assert (shown.at_the_end > 8 << 20) == (end == "sys.exit()")
    assert " more as 1 process ended\n" in said or end != "sys.exit()"
