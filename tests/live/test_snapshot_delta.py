"""wstrace.delta() and `wstrace delta PID`: faults, new pages and written pages of a block or a process."""

import contextlib
import json
import mmap
import resource
import subprocess
import sys

import pytest
from kit.command_line import answer, begun
from kit.command_line import wstrace as command
from kit.fresh_process import ran_in_a_fresh_process

import wstrace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")
PAGE = mmap.PAGESIZE


def test_delta_counts_faults_pages_and_writes_of_a_block(request):
    # what delta() itself writes grows with the mappings of its process: one that has run thousands of tests has many
    if ran_in_a_fresh_process(request):
        return
    old = mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(64):
        old[i * PAGE] = 1
    with wstrace.delta() as d:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        new = mmap.mmap(-1, 1000 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            new.madvise(mmap.MADV_NOHUGEPAGE)
        for i in range(1000):
            new[i * PAGE] = 1
        for i in range(16):
            old[i * PAGE] = 2
        inside = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert inside <= d.minor_faults <= inside + 200
    assert inside >= 1000
    assert d.major_faults == 0
    assert 1000 * PAGE <= d.new_bytes <= 1000 * PAGE + (2 << 20)
    if d.written_bytes is None:
        pytest.skip(f"no write watch here: {d.not_written}")
    assert 1016 * PAGE <= d.written_bytes <= 1016 * PAGE + (4 << 20)
    assert d.watch_faults >= 16
    by = {change.name: change for change in d.by()}
    assert by["[anon]"].new >= 1000 * PAGE
    assert sum(change.new for change in d.by()) == sum(change.new for change in d.by("kind")) == d.new_bytes


def test_delta_tells_a_file_and_its_sections():
    code = ("import wstrace, json\nwith wstrace.delta(written=False) as d:\n import sqlite3\n"
            "print(json.dumps([[c.name, c.new] for c in d.by('section')]), d.new_bytes)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    text, _, total = done.stdout.strip().rpartition(" ")
    rows = json.loads(text)
    assert any("sqlite3" in name and "!.text(" in name for name, _ in rows)
    assert sum(new for _, new in rows) == int(total)


def test_delta_says_why_writes_are_not_reported():
    with wstrace.delta(written=False) as d:
        pass
    assert d.written_bytes is None
    assert d.not_written


def test_delta_command_tells_pages_and_instructions():
    """The target touches 50 new pages twice each: given back in between, so that each is brought in twice."""
    code = """
import mmap, sys
m = mmap.mmap(-1, 50 * mmap.PAGESIZE, flags=34)
print(flush=True)
sys.stdin.readline()
for _ in range(2):
    for i in range(0, len(m), mmap.PAGESIZE):
        m[i] = 1
    m.madvise(mmap.MADV_DONTNEED) if _ == 0 else None
print(flush=True)
sys.stdin.readline()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as target:
        target.stdout.readline()
        delta = begun("delta", target.pid, "--json", **pipes)
        delta.stderr.readline()  # it watches now
        target.stdin.write("\n")
        target.stdin.flush()
        target.stdout.readline()
        text, _ = delta.communicate("\n", timeout=60)
        target.kill()
        target.communicate()
    facts = json.loads(text)
    assert not facts["ended"]
    assert 50 * PAGE <= facts["new_bytes"] < 2 << 20
    assert sum(change["new"] for change in facts["new"]) == facts["new_bytes"]
    if "not_traced" in facts:
        pytest.skip(f"no page faults here: {facts['not_traced']}")
    twice = [line for line in facts["faults"] if line["count"] == 2 and line["at"] == "[anon]"]
    assert len(twice) >= 50
    assert all("!.text(" in line["via"] for line in twice)
    assert sum(line["count"] for line in facts["faults"]) == facts["minor"] + facts["major"]


def test_delta_command_on_a_process_that_ends():
    for seconds in (2.5, 10, 40):  # on a busy machine it may have ended before it is looked at
        with subprocess.Popen(["sleep", str(seconds)]) as target:
            done = command("delta", target.pid, "--duration", f"{8 * seconds}s", "--json")
        if done.returncode != 122:
            break
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ended"]
    assert facts["seconds"] < 6 * seconds


def test_delta_command_counts_by_function_and_tells_addresses_when_requested():
    """GIVEN a process that touches pages in a loop THEN it has one row, and a line for each page if requested."""
    code = """
import contextlib, mmap, time
m = mmap.mmap(-1, 400 * mmap.PAGESIZE, flags=34)
with contextlib.suppress(OSError): m.madvise(mmap.MADV_NOHUGEPAGE)
print(flush=True)
while True:
    for i in range(0, len(m), mmap.PAGESIZE):
        m[i] = 1
    m.madvise(mmap.MADV_DONTNEED)
    time.sleep(0.02)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        grouped = answer("delta", target.pid, "--duration", "1s")
        lines = answer("delta", target.pid, "--duration", "1s", "--addresses", "--top", 30)
        target.kill()
    if "its page faults are not shown" in grouped or "fault" not in grouped.splitlines()[-1]:
        pytest.skip("no page faults here")
    head = next(n for n, line in enumerate(grouped.splitlines()) if line.split()[:1] == ["faults"])
    table = grouped.splitlines()[head:]
    assert table[0].split() == ["faults", "file", "of", "the", "page", "by", "function"]
    count, row = table[1].split(maxsplit=1)
    assert int(count.replace(",", "")) >= 400
    assert row.startswith("[anon]  by  ")
    assert table.index("") <= 22
    assert len([line for line in lines.splitlines() if " via " in line]) >= 30
