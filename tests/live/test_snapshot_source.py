"""The source `working_set`, the commands snapshot, ps, empty, diff, and delta, on real processes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import wstrace
from wstrace import schema
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace_os.linux import LinuxPlatform
from wstrace_working_set.source import WorkingSetSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")
PAGE = mmap.PAGESIZE
HOLD = """
import mmap, sys
m = mmap.mmap(-1, {mib} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, len(m), {step}):
    m[i] = 1
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(mib: int, step: int = PAGE):
    """A process that holds so many MiB, with every step-th byte written."""
    code = HOLD.format(mib=mib, step=step)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        try:
            yield target
        finally:
            target.kill()


def cli(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "wstrace", *map(str, words)], capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


class Keep(wstrace.Exporter):
    """Keeps every batch."""

    name = "keep"

    def __init__(self) -> None:
        self.batches = []

    def export(self, batch) -> None:
        self.batches.append(batch)


def test_a_large_snapshot_comes_in_parts_after_its_mappings():
    with holding(600, 2 * PAGE) as target:
        source = WorkingSetSource(interval=0)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        batches = list(source.drain(0.1))
        assert source.finished
        assert list(source.stop()) == []
    space, *parts = batches
    assert space.schema is schema.ADDRESS_SPACE
    assert space["event"].tolist() == [schema.SPACE_REPLACE] + [schema.SPACE_MAP] * (len(space) - 1)
    assert [p.header["part"] for p in parts] == [0, 1]
    assert [p.header["last"] for p in parts] == [False, True]
    assert {(p.header["pid"], p.header["snap"], p.header["t"]) for p in parts} == {(target.pid, 1, space.window[0])}
    assert [p.header["pages"] for p in parts] == [int(p["pages"].sum()) for p in parts]
    start = np.concatenate([p["start"] for p in parts])
    assert (np.diff(start.astype(np.int64)) > 0).all()
    assert sum(p.header["pages"] for p in parts) > 600 * 256 // 2


def test_every_interval_and_the_tree_with_names_from_the_enricher():
    keep = Keep()
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD.format(mib=4, step=PAGE)!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        with wstrace.Session(parent.pid, sources=["working_set:interval=0.05,max_cpu=1"], exporters=[keep]):
            time.sleep(0.6)
        parent.stdin.close()
    resident = [b for b in keep.batches if b.schema is schema.RESIDENT_PAGES]
    assert len({b.header["pid"] for b in resident}) == 2
    assert len({b.header["snap"] for b in resident}) >= 4
    for batch in resident:
        assert (batch["file"] != 0).all()
        assert (batch["mapping"] != 0).all()
    names = {resident[0].strings[c] for c in resident[0]["file"].tolist()}
    assert "[heap]" in names
    assert any(name.endswith(("/libc.so.6", "/python3.11")) or "python" in name for name in names)


def test_keep_last_holds_the_final_snapshot_of_a_launched_command():
    """Nothing holds the target at its exit: the last interval's sample stands for the end."""
    keep = Keep()
    code = "import mmap,time; m=mmap.mmap(-1,20<<20,flags=34)\nfor i in range(0,20<<20,4096): m[i]=1\ntime.sleep(0.5)"
    target = LinuxPlatform().launch([sys.executable, "-c", code])
    source = WorkingSetSource(interval=0.1, keep="last", max_cpu=1.0)
    session = wstrace.Session(targets=[target], sources=[source], exporters=[keep])
    with session:
        session.wait(30)
    parts = [b for b in keep.batches if b.schema is schema.RESIDENT_PAGES]
    assert len({b.header["snap"] for b in parts}) == 1
    assert sum(b.header["pages"] for b in parts) > 20 * 256
    assert 0 <= session.facts["snapshot_age_ms"] < 10_000
    assert session.facts["exit_code"] == 0


def test_the_budget_stretches_the_interval():
    with holding(64) as target:
        source = WorkingSetSource(interval=0.001, max_cpu=0.01)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            list(source.drain(0.05))
        taken = source.statistics()
    # the first is free, the next ones not before cost / max_cpu
    assert taken["snapshots"] <= 2 + 0.5 * 0.01 / (taken["cpu_seconds"] / taken["snapshots"])


@pytest.mark.parametrize("options", [{"interval": -1.0}, {"max_cpu": 0.0}, {"max_cpu": 2.0}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        WorkingSetSource(**options)


# -- commands ------------------------------------------------------------------------------------------------------


def test_snapshot_command_prints_lines_and_totals():
    with holding(2, 2 * PAGE) as target:
        os.kill(target.pid, signal.SIGSTOP)
        lines = cli("snapshot", target.pid).stdout.splitlines()
        facts = json.loads(cli("snapshot", target.pid, "--json").stdout)
        pages = cli("snapshot", target.pid, "--pages").stdout.splitlines()
        kernel = Path(f"/proc/{target.pid}/statm").read_text().split()
    body = [line.split() for line in lines[1 : lines.index("")]]
    assert lines[0].split() == ["address", "KiB", "S/P", "prot", "E", "owner"]
    assert [int(row[0], 16) for row in body] == sorted(int(row[0], 16) for row in body)
    assert {row[2] for row in body} == {"S", "P"}
    assert {row[3] for row in body} == {"RO", "RW", "CW"}
    resident = [row for row in body if "zero" not in row]
    assert sum(int(row[1].replace(",", "")) for row in resident) * 1024 == int(kernel[1]) * PAGE == facts["total"]
    assert facts["private"] + facts["shared"] == facts["total"]
    assert lines[-1].startswith(f"process {target.pid} ")
    for word in ("Total", "Private", "Shared", "Page tables"):
        assert word in lines[-1]
    flat = [line.split() for line in pages[1 : pages.index("")]]
    assert {row[1] for row in flat} == {"4"}
    assert len(flat) == sum(run["pages"] for run in facts["runs"])


@pytest.mark.parametrize("by", ["module", "mapping", "kind"])
def test_snapshot_by(by):
    with holding(2) as target:
        os.kill(target.pid, signal.SIGSTOP)
        text = cli("snapshot", target.pid, "--by", by).stdout
        facts = json.loads(cli("snapshot", target.pid, "--by", by, "--json").stdout)
    assert sum(owner["resident"] for owner in facts["owners"]) == facts["total"]
    assert "[anon]" in text or by == "kind"
    assert ("█" in text) or ("#" in text)


def test_snapshot_to_a_file_and_diff(tmp_path):
    pytest.importorskip("wstrace_msgpack.reader")
    first, second = tmp_path / "a.wst", tmp_path / "b.wst"
    code = ("import mmap, sys\nfor n in (1, 9):\n m = mmap.mmap(-1, n << 20, flags=34)\n"
            " for i in range(0, n << 20, 4096): m[i] = 1\n print(flush=True); sys.stdin.readline()")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        cli("snapshot", target.pid, "-o", first)
        target.stdin.write(b"\n")
        target.stdin.flush()
        target.stdout.readline()
        cli("snapshot", target.pid, "-o", second)
        target.kill()
    facts = json.loads(cli("diff", first, second, "--json").stdout)
    anonymous = next(owner for owner in facts["owners"] if owner["name"] == "[anon]")
    assert 7.5 * (1 << 20) <= anonymous["change"] <= 9.5 * (1 << 20)
    assert facts["change"] == facts["second"] - facts["first"]
    lines = cli("diff", first, second, "--by", "kind").stdout.splitlines()
    assert lines[1].split()[0].startswith("+")
    assert lines[1].endswith("anon")
    assert lines[-1].endswith("Total")
    assert "no whole snapshot" in cli("diff", first, _empty_trace(tmp_path), code=125).stderr


def _empty_trace(folder):
    path = folder / "none.wst"
    with wstrace.Session(sources=[], exporters=[f"msgpack:path={path}"], record=False):
        pass
    return path


def test_snapshot_of_nobody():
    assert "no process" in cli("snapshot", 4_000_000, code=122).stderr


def test_ps_lists_this_process():
    rows = {row["pid"]: row for row in json.loads(cli("ps", "--json").stdout)}
    mine = rows[os.getpid()]
    assert mine["resident"] > 1 << 20
    assert 0 < mine["private"] <= mine["resident"] == mine["private"] + mine["shared"]
    first = cli("ps", "--top", "3", "--sort", "pid").stdout.splitlines()
    assert len(first) == 4


def test_empty_takes_out_a_file_and_no_data_is_lost(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 << 20))
    os.sync()
    code = (f"import mmap, sys, hashlib\nf = open({str(path)!r}, 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=1)\n"
            "a = mmap.mmap(-1, 1 << 20, flags=34); a[:] = b'x' * len(a)\n"
            "print(hashlib.sha256(m).hexdigest(), flush=True); sys.stdin.readline()\n"
            "print(hashlib.sha256(m).hexdigest(), a[:] == b'x' * len(a), flush=True)")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as target:  # fmt: skip
        before = target.stdout.readline().strip()
        assert "add --yes" in cli("empty", target.pid, code=125).stderr
        if os.geteuid() != 0:
            pytest.skip("needs CAP_SYS_NICE: process_madvise on another process")
        done = json.loads(cli("empty", target.pid, "--yes", "--json").stdout)
        assert done["before"] - done["after"] >= 7 << 20
        assert sum(done["stayed"].values()) == done["after"]
        assert any("anonymous" in why for why in done["stayed"])
        answer, _ = target.communicate("\n")
    assert answer.split() == [before, "True"]


def test_empty_refuses_another_users_process_unless_told():
    if os.geteuid() != 0:
        pytest.skip("needs root, to start a process of someone else")
    with subprocess.Popen(["sleep", "60"], user=65534, group=65534) as target:
        try:
            time.sleep(0.1)
            with pytest.raises(Unavailable, match="another user"):
                wstrace.empty_working_set(target.pid)
            assert wstrace.empty_working_set(target.pid, others=True).before > 0
        finally:
            target.kill()


# -- delta ---------------------------------------------------------------------------------------------------------


def test_delta_counts_faults_pages_and_writes_of_a_block():
    old = mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(64):
        old[i * PAGE] = 1
    with wstrace.delta() as d:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        new = mmap.mmap(-1, 1000 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
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
    watched = ctypes.addressof(ctypes.c_ubyte.from_buffer(old))
    start, end = (np.clip(side.astype(np.int64), watched, watched + 64 * PAGE) for side in d._written)
    assert int((end - start).sum()) == 16 * PAGE
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


def test_delta_says_why_writes_are_not_told():
    with wstrace.delta(written=False) as d:
        pass
    assert d.written_bytes is None
    assert d.not_written


def test_delta_command_tells_pages_and_instructions():
    """The target touches 50 new pages twice each: given back in between, so that each is brought in twice."""
    code = """
import mmap, sys
m = mmap.mmap(-1, 50 * 4096, flags=34)
print(flush=True)
sys.stdin.readline()
for _ in range(2):
    for i in range(0, len(m), 4096):
        m[i] = 1
    m.madvise(mmap.MADV_DONTNEED) if _ == 0 else None
print(flush=True)
sys.stdin.readline()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as target:
        target.stdout.readline()
        delta = subprocess.Popen([sys.executable, "-m", "wstrace", "delta", str(target.pid), "--json"], **pipes,
                                 stderr=subprocess.PIPE)  # fmt: skip
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
    with subprocess.Popen(["sleep", "2.5"]) as target:
        facts = json.loads(cli("delta", target.pid, "--duration", "20s", "--json").stdout)
    assert facts["ended"]
    assert facts["seconds"] < 15
