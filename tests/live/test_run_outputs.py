"""What a launched command leaves: one answer on the terminal, in the page and in the file; what grew comes first."""

import re
import subprocess
import sys

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: pages and lines together")
PROGRAM = (sys.executable, "-c", "kept = bytearray(20 << 20); import time; time.sleep(0.5)")


def test_the_page_of_a_run_has_the_first_line_that_is_printed_and_replaces_nothing(tmp_path):
    page = tmp_path / "x.html"
    done = wstrace("run", "--html", page, "--", *PROGRAM)
    first = done.stderr.splitlines()[0]
    assert re.match(r"\d+\.\d MiB at the (peak|exit): ", first)
    assert first.replace("<", "\\u003c").replace(">", "\\u003e") in page.read_text(encoding="utf-8")
    written = page.read_bytes()
    for words, code in ([(page,), 123], [(tmp_path / "x.txt",), 125], [(tmp_path / "y.html", "-o", "-"), 125],
                        [(tmp_path / "y.html", "-o", tmp_path / "y.html"), 125], [("",), 125],
                        [(tmp_path / "y.html", "--user", ""), 125], [(tmp_path / "y.html", "-o", "/dev/null"), 125],
                        [(tmp_path / "y.html", "-P", "no:msgpack"), 125],
                        [(tmp_path / "y.html", "-o", ""), 125]):  # fmt: skip
        refused = wstrace("run", "--html", *words, "--", "false")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (code, 1), refused.stderr
    for words in (("--html", ""), ("--html", page, "--by", "file"), ("--html", page, "--kind", "anon")):
        assert wstrace("report", *words, "--", "true").returncode == 125
    assert page.read_bytes() == written
    assert not (tmp_path / "y.html").exists()


def test_a_file_that_an_exporter_is_given_is_kept(tmp_path):
    path = tmp_path / "x.wst"
    done = wstrace("run", "-e", f"msgpack:path={path}", "--", "true")
    assert done.stderr.splitlines()[-1].startswith(f"saved {path}")
    assert wstrace("report", path).stdout.splitlines()[0] == done.stderr.splitlines()[0]


def test_what_several_attached_processes_had_before_is_no_growth(tmp_path):
    program = (sys.executable, "-c", "kept = bytearray(30 << 20); print(flush=True); import time; time.sleep(60)")
    running = [subprocess.Popen(program, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for one in running:
            one.stdout.readline()
        done = wstrace("attach", *(one.pid for one in running), "--duration", "1s")
    finally:
        for one in running:
            one.kill()
            one.communicate()
    assert re.match(r"\+?\d[\d.]* (B|KiB) in ", done.stderr), done.stderr


GROW = """
import sys, time
kept = []
def keep(n):
    kept.append(b"x" * n)
for _ in range(4):
    keep(4 << 20)
    time.sleep(float(sys.argv[1]))
"""


def test_run_over_time_tells_what_grew_first(tmp_path, full_level, python_stacks):
    program = tmp_path / "grow.py"
    program.write_text(GROW)
    for seconds in (0.3, 1, 4):  # on a busy machine stacks and snapshots come late
        done = wstrace("run", "--over-time", f"{seconds}s", "--", sys.executable, program, seconds)
        lines = done.stderr.splitlines()
        if "keep grow.py:5" in lines[0]:
            break
    assert lines[0].startswith("+"), lines
    assert "keep grow.py:5" in lines[0]
    assert not any("MiB at the " in line for line in lines), "one answer"
    assert "0 lost" in lines[1]
