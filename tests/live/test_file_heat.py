"""`wstrace file`: exactly the pages that a process has of a file, and that the page cache has, by offset and part."""

import json
import mmap
import os
import subprocess
from pathlib import Path

import kit.nobody as kit_nobody
import numpy as np
import pytest
from kit.stopped_process import stopped

from wstrace.cli import main
from wstrace_plugins.os.intervals import Ranges, n_bytes
from wstrace_plugins.working_set.backend import backend

PAGE = mmap.PAGESIZE
N = 600
MAPS = """
import os
f = os.open({path!r}, os.O_RDWR)
m = mmap.mmap(f, 0, flags=mmap.MAP_PRIVATE)
m.madvise(mmap.MADV_RANDOM)
for page in range(100, 140): m[page * PAGE]
for page in range(130, 135): m[page * PAGE] = 1
second = mmap.mmap(f, 64 * PAGE, flags=mmap.MAP_SHARED, offset=128 * PAGE)
second[0]
ready(hex(at(m)), hex(at(second)))
"""


@pytest.fixture
def path(tmp_path):
    """A file of which nothing but pages 5 to 9 and page 300 are in the page cache."""
    file = tmp_path / "data.bin"
    file.write_bytes(os.urandom(N * PAGE - 1000))
    fd = os.open(file, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
    os.pread(fd, 5 * PAGE, 5 * PAGE)
    os.pread(fd, 1, 300 * PAGE)
    os.close(fd)
    return str(file)


def pages(ranges: Ranges) -> list[int]:
    return [page for start, end in np.stack(ranges, axis=1).tolist()
            for page in range(start // PAGE, -(-end // PAGE))]  # fmt: skip


def present(pid: int, start: int, n: int, first: int) -> set[int]:
    """The pages of a file that a mapping of it has in memory, by /proc/PID/pagemap; a copy is no page of the file."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        pagemap.seek(start // PAGE * 8)
        entries = np.frombuffer(pagemap.read(n * 8), "<u8")
    return set((first + np.flatnonzero((entries >> 63 != 0) & (entries >> 61 & 1 != 0))).tolist())


def test_the_page_cache_has_what_was_read_and_no_more(path):
    heat = backend().file_heat(path, [os.getpid()])
    assert heat.cached is not None
    assert {*range(5, 10), 300} <= set(pages(heat.cached))
    assert len(pages(heat.cached)) <= 6 + 32, "a file system may read whole large folios"
    assert heat.holders == []
    again = backend().file_heat(path, [os.getpid()])
    assert again.cached is not None
    # but for the first bytes, which tell the file's format, and what the file system reads with them
    assert [page for page in pages(again.cached) if page >= 300] == [page for page in pages(heat.cached) if page >= 300]


def test_a_process_has_the_pages_that_its_own_pagemap_says(path):
    with stopped(MAPS.format(path=path)) as (pid, (first, second)):
        heat = backend().file_heat(path)
        (holder,) = heat.holders
        expected = present(pid, int(first, 16), N, 0) | present(pid, int(second, 16), 64, 128)
        assert pages(heat.resident) == sorted(expected)
        assert {*range(100, 130), *range(135, 140), 128} <= expected
        assert holder.copied == 5 * PAGE
        assert pages(heat.mapped) == list(range(N))
        assert n_bytes(heat.resident) == len(expected) * PAGE
        assert heat.strip(heat.resident, 60)[10] > 0.9
        assert heat.strip(heat.mapped, 60).min() == 1


def test_the_last_page_counts_to_the_files_end(path):
    held = Path(path).read_bytes()
    script = f"f = open({path!r}, 'rb')\nm = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\nbytes(m)\nready('x')"
    with stopped(script):
        heat = backend().file_heat(path)
    assert n_bytes(heat.resident) == n_bytes(heat.mapped) == len(held) == n_bytes(heat.cached)


def test_the_command_tells_tensors(tmp_path, capsys):
    layer = 64 * PAGE
    names = [f"model.layers.{n}.mlp" for n in range(6)]
    header = {name: {"dtype": "U8", "shape": [layer], "data_offsets": [n * layer, (n + 1) * layer]}
              for n, name in enumerate(names)}  # fmt: skip
    text = json.dumps(header).encode().ljust(PAGE - 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes((PAGE - 8).to_bytes(8, "little") + text + os.urandom(6 * layer))
    script = f"""
f = open({str(path)!r}, 'rb')
m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
touch = [m[PAGE + to] for to in range(2 * {layer}, 4 * {layer}, PAGE)]
ready(at(m))
"""
    with stopped(script) as (pid, (start,)):
        held = present(pid, int(start), 1 + 6 * 64, 0)
        assert main(["file", str(path), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert main(["file", str(path), "--pid", str(pid)]) == 0
        lines = capsys.readouterr().out.splitlines()
    # a fault maps a whole large folio of the page cache, so the process may have more than it touched
    of = [len(held & set(range(1 + 64 * n, 65 + 64 * n))) for n in range(6)]
    assert of[2] == of[3] == 64
    sizes = {part["name"]: (part["resident"], part["cached"], part["end"] - part["start"]) for part in shown["parts"]}
    assert [sizes[name] for name in names] == [(n * PAGE, layer, layer) for n in of]
    assert [process["pid"] for process in shown["processes"]] == [pid]
    assert " resident in 1 process, " in lines[0]
    assert lines[0].endswith(" in the page cache")
    strips = [line for line in lines if line.endswith("]")]
    assert [line.split()[0] for line in strips] == ["mapped", "resident", "page"]
    assert {len(line[line.index("[") :]) for line in strips} == {62}


def test_what_is_no_file_is_refused_in_a_line(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path / "pipe", "no regular file"), (tmp_path, "")):
        assert main(["file", str(path)]) == 125
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
    (tmp_path / "empty").touch()
    assert main(["file", str(tmp_path / "empty")]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody: needs root")
def test_of_another_users_file_the_page_cache_is_not_guessed():
    with kit_nobody.nobody() as user:
        words = [*user.command, "-m", "wstrace", "file", "/usr/bin/env", "--json"]
        done = subprocess.run(words, env=user.environment, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["cached"] is None
    assert any("owns or may write" in note for note in shown["notes"])
