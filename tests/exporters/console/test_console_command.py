"""The command line as users meet it: what `run` prints is what `report` prints again from the file."""

import json
import subprocess
import sys

import pytest
from kit.command_line import begun, wstrace

from wstrace import open_trace

#: touches 1,024 fresh pages
TARGET = """
import mmap
memory = mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for start in range(0, len(memory), 4096):
    memory[start] = 1
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """What a run printed on stderr, and its file."""
    if not sys.platform.startswith("linux"):
        pytest.skip("runs a target: only on Linux")
    path = tmp_path_factory.mktemp("trace") / "out.wst"
    run = wstrace("run", "-o", str(path), "--", sys.executable, "-c", TARGET)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    return run.stderr, path


def test_report_says_what_the_live_run_said(traced):
    live, path = traced
    shown, _, last = live.rstrip().rpartition("\n\n")
    assert last.startswith(f"saved {path}; next: wstrace report {path}")
    report = wstrace("report", str(path))
    assert report.returncode == 0, report.stderr
    assert report.stdout.rstrip() == shown
    assert "MiB at the " in shown.splitlines()[0]


def test_line_1_is_the_same_in_every_output(traced):
    live, path = traced
    line = live.splitlines()[0]
    assert wstrace("report", str(path), "--by", "kind").stdout.splitlines()[0] == line
    assert json.loads(wstrace("report", str(path), "--json", "--by", "package,kind").stdout)["answer"] == line
    with open_trace(str(path)) as trace:
        found = trace.report(by="function")
    assert found.answer == line
    assert sum(row.values["resident"] for row in found.rows) == found.total["resident"]


def test_the_next_command_works_as_printed(traced):
    words = traced[0].rstrip().rpartition("next: wstrace ")[2].split()
    assert wstrace(*words).returncode == 0


def test_json_counts_every_touched_page(traced):
    found = json.loads(wstrace("report", str(traced[1]), "--json").stdout)
    if found["facts"]["level"] == "counters":
        pytest.skip("the kernel refuses perf events here: no fault is recorded one by one")
    assert found["total"]["faults"] >= 1024
    lines = wstrace("report", str(traced[1]), "--format", "jsonl").stdout.splitlines()
    assert len(lines) == found["total"]["faults"]
    start = found["facts"]["started_ns"]
    assert all(start <= json.loads(line)["time_ns"] for line in lines)


def test_a_reader_that_stops_reading_ends_report_quietly(traced):
    for form in ("summary", "lines", "jsonl"):
        with begun("report", traced[1], "--format", form, stdout=subprocess.PIPE) as report:
            report.stdout.read(1)
            report.stdout.close()
            assert report.stderr.read() == ""
            assert report.wait(60) == 0


@pytest.mark.parametrize("command", ["report", "unshared", "imports"])
def test_a_file_that_may_not_be_overwritten_is_not_reported_as_the_answer(traced, command):
    """GIVEN a trace of another run at the output's path THEN a command that did not run has no figures."""
    path = traced[1]
    before = path.read_bytes()
    done = wstrace(command, "-o", str(path), "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (123, "")
    assert f"{path} exists" in done.stderr
    assert path.read_bytes() == before
