"""`wstrace prefetch` on the real kernel: a list has the pages that were touched, applying it brings exactly these."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import nobody as kit_nobody
import pytest
from command_line import wstrace
from recorded_run import record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: the real kernel")

if sys.platform == "linux":
    from wstrace_plugins.os.linux import page_cache
    from wstrace_plugins.prefetch.backend import backend
    from wstrace_plugins.prefetch.making import made
    from wstrace_plugins.prefetch.start_list import File, Range, decoded, encoded

PAGE = mmap.PAGESIZE
PAGES = 1024
TOUCHED = [700, 701, 3, 4, 5, 900, 130, 131]
TOUCH = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
memory.madvise(mmap.MADV_RANDOM)
for page in sys.argv[2:]:
    memory[int(page) * mmap.PAGESIZE]
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of 4 MiB, out of the page cache."""
    path = tmp_path / "a file"
    path.write_bytes(os.urandom(PAGES * PAGE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    evict(path)
    return path


def evict(path: Path) -> None:
    if page_cache.evict([str(path)]).after:
        pytest.skip("this file system does not let its pages go")


def cached(path: Path) -> set[int]:
    with path.open("rb") as file:
        found = page_cache.cached_runs(file.fileno(), os.fstat(file.fileno()))
    assert not isinstance(found, str), found
    return {
        page
        for a, b in zip(*(edge.tolist() for edge in found), strict=True)
        for page in range(a // PAGE, -(-b // PAGE))
    }


def now(path: Path) -> File:
    with path.open("rb") as file:
        return backend().stamp(file.fileno(), os.fsencode(path))


def write(path: Path, ranges: Iterable[Range]) -> Path:
    path.write_bytes(b"".join(encoded(ranges)))
    return path


def pages_of(ranges: Iterable[Range], path: Path) -> list[int]:
    return [page for one in ranges if one.file.path == os.fsencode(path)
            for page in range(one.offset // PAGE, -(-(one.offset + one.length) // PAGE))]  # fmt: skip


def test_a_list_has_the_touched_pages_in_order_and_applying_it_brings_exactly_these(tmp_path, data):
    with record(tmp_path, [sys.executable, "-c", TOUCH, data, *TOUCHED]) as trace:
        found = made(trace, backend(), gap=0)
        merged = made(trace, backend(), gap=200 * PAGE).ranges
    assert pages_of(found.ranges, data) == TOUCHED
    assert found.ranges[0].file.path != os.fsencode(data), "the program comes before what it touches"
    assert pages_of(merged, data) == [*range(700, 901), *range(3, 132)]
    done = wstrace("prefetch", tmp_path / "trace.wst", "-o", tmp_path / "l", "--gap", "0")
    assert done.returncode == 0, done.stderr
    assert decoded((tmp_path / "l").read_bytes(), "l") == found.ranges
    evict(data)
    done = wstrace("prefetch", "--apply", tmp_path / "l")
    assert done.returncode == 0, done.stderr
    assert cached(data) == set(TOUCHED)


def test_a_list_of_a_trace_that_is_cut_is_told_as_one_of_a_part(tmp_path, data):
    record(tmp_path, [sys.executable, "-c", TOUCH, data, *TOUCHED]).close()
    cut = tmp_path / "cut.wst"
    cut.write_bytes((tmp_path / "trace.wst").read_bytes()[:-40])
    done = wstrace("prefetch", cut, "-o", tmp_path / "l")
    assert done.returncode == 0, done.stderr
    assert "its end is missing" in done.stderr


def test_long_ranges_come_whole(tmp_path, data):
    file = now(data)
    evict(data)
    start_list = write(tmp_path / "l", [Range(file, 5, 1000 * PAGE)])
    done = wstrace("prefetch", "--apply", start_list, "--json")
    told = json.loads(done.stdout)
    assert (told["bytes"], told["ranges"], told["files"], told["skipped"]) == (1000 * PAGE, 1, 1, [])
    assert cached(data) == set(range(1001))


def test_what_changed_or_is_no_plain_file_is_skipped_and_counted(tmp_path, data):
    plain = now(data)
    older, shorter, other = tmp_path / "older", tmp_path / "shorter", tmp_path / "other"
    stamps = []
    for path in (older, shorter, other):
        shutil.copy(shutil.which("true"), path)
        stamps.append(now(path))
    os.utime(older, ns=(0, 5))
    os.truncate(shorter, 4096)
    os.utime(shorter, ns=(stamps[1].mtime_ns, stamps[1].mtime_ns))
    assert len(stamps[2].build_id) == 40
    stamps[2] = stamps[2]._replace(build_id="00" * 20)
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")

    def named(path: Path | str) -> File:
        return plain._replace(path=os.fsencode(path))

    hostile = [named(tmp_path / "link"), named(tmp_path / "folder" / data.name), named(tmp_path / "fifo"),
               named("/dev/zero"), named("/nowhere/there"), named(tmp_path), named("/proc/kmsg"),
               named("/proc/self/maps")]  # fmt: skip
    evict(data)
    ranges = [Range(file, 0, PAGE) for file in (*stamps, *hostile, plain)]
    done = wstrace("prefetch", "--apply", write(tmp_path / "l", ranges))
    assert done.returncode == 0, done.stderr
    assert "wstrace: 4.0 KiB of 1 file in 1 range read ahead" in done.stderr
    (note,) = [line for line in done.stderr.splitlines() if "skipped" in line]
    assert note == ("wstrace: note: 11 of 12 ranges skipped: 3 files behind a symbolic link, 4 files changed, "
                    "1 file missing, 3 files that are not regular")  # fmt: skip
    assert cached(data) == {0}


def test_a_limit_and_folders_bound_what_is_read(tmp_path, data):
    file = now(data)
    evict(data)
    start_list = write(tmp_path / "l", [Range(file, page * PAGE, PAGE) for page in range(0, 40, 2)])
    done = wstrace("prefetch", "--apply", start_list, "--limit", "40KiB")
    assert "10 of 20 ranges skipped: 1 file past the limit of 40.0 KiB" in done.stderr
    assert cached(data) == set(range(0, 20, 2))
    evict(data)
    (tmp_path / "a").mkdir()
    done = wstrace("prefetch", "--apply", start_list, "--below", tmp_path / "a")
    assert "20 of 20 ranges skipped: 1 file outside of the folders that --below names" in done.stderr
    assert cached(data) == set()
    assert wstrace("prefetch", "--apply", start_list, "--below", tmp_path, "-q").stderr == ""
    assert cached(data) == set(range(0, 40, 2))


def test_the_command_takes_the_place_of_wstrace(tmp_path, data):
    start_list = write(tmp_path / "l", [Range(now(data), 0, 64 * PAGE)])
    evict(data)
    shown = "import os, sys; print(os.getpid(), os.getppid(), *sys.argv[1:]); sys.exit(7)"
    command = [sys.executable, "-c", shown, "-o", "--x"]
    words = [sys.executable, "-m", "wstrace", "prefetch", "--apply", start_list, "--", *command]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert out.split() == [str(process.pid), str(os.getpid()), "-o", "--x"]
    assert err == ""
    deadline = time.monotonic() + 30
    while cached(data) != set(range(64)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cached(data) == set(range(64))
    done = wstrace("prefetch", "--apply", start_list, "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == -signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a name space of processes: needs root")
def test_the_first_process_of_a_container_leaves_no_orphan_to_its_command(tmp_path, data):
    start_list = write(tmp_path / "l", [Range(now(data), 0, 64 * PAGE)])
    evict(data)
    shown = "import os; print(os.getpid(), [p for p in os.listdir('/proc') if p.isdecimal()])"
    words = [sys.executable, "-m", "wstrace", "prefetch", "--apply", start_list, "--", sys.executable, "-c", shown]
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1 ['1']\n"), done.stderr
    deadline = time.monotonic() + 30
    while cached(data) != set(range(64)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cached(data) == set(range(64))


@pytest.mark.parametrize("text", [None, b"no list", b"wstrace-prefetch 1\n/nowhere 1 1 - 0 1\n"])
def test_a_list_that_is_no_use_does_not_keep_the_command_from_running(tmp_path, text):
    if text is not None:
        (tmp_path / "l").write_bytes(text)
    done = wstrace("prefetch", "--apply", tmp_path / "l", "--", "sh", "-c", "echo ran; exit 3")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr.count("\n") == 1
    assert "nothing is read ahead: " in done.stderr or "1 of 1 range skipped: 1 file missing" in done.stderr


def test_a_command_that_is_not_there(tmp_path, data):
    start_list = write(tmp_path / "l", [Range(now(data), 0, PAGE)])
    assert wstrace("prefetch", "--apply", start_list, "--", "/nowhere/there").returncode == 127
    (tmp_path / "no").write_text("x")
    assert wstrace("prefetch", "--apply", start_list, "--", tmp_path / "no").returncode == 126
    for words in (["--apply", start_list, "--"], ["--apply", start_list, "x.wst"], ["x.wst"], ["--compare"], []):
        done = wstrace("prefetch", *words)
        assert done.returncode == 125, words
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody: needs root")
def test_without_the_right_to_read_a_file_it_is_skipped(tmp_path, data):
    data.chmod(0o600)
    with kit_nobody.nobody() as user:
        path = Path("/tmp") / f"wstrace-{os.getpid()}.list"
        write(path, [Range(now(data), 0, PAGE)])
        path.chmod(0o644)
        try:
            words = [*user.command, "-m", "wstrace", "prefetch", "--apply", str(path)]
            done = subprocess.run(words, env=user.environment, cwd="/", capture_output=True, text=True, timeout=60)
            told = subprocess.run([*words, "--", "sh", "-c", "exit 4"], env=user.environment, cwd="/", timeout=60)
        finally:
            path.unlink()
    assert done.returncode == 0, done.stderr
    assert "1 of 1 range skipped: 1 file not readable" in done.stderr
    assert told.returncode == 4


def test_files_that_are_not_those_of_the_trace_are_left_out(tmp_path, data):
    trace = record(tmp_path, [sys.executable, "-c", TOUCH, data, *TOUCHED])
    with trace:
        copy = tmp_path / "copy"
        shutil.copyfile(data, copy)
        copy.rename(data)
        found = made(trace, backend())
    assert not pages_of(found.ranges, data)
    assert "1 file changed or replaced since the trace" in found.note


def test_comparing_tells_all_four_ways_and_passes_a_failure_on(tmp_path, data):
    command = [sys.executable, "-c", TOUCH, data, *TOUCHED]
    done = wstrace("prefetch", "--compare", "--runs", "2", "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {name: len(runs["seconds"]) for name, runs in told["runs"].items()} == dict.fromkeys(
        ("cold", "cold, prefetched", "warm", "warm, prefetched"), 2
    )
    assert told["evicted"]["before"] > told["evicted"]["after"]
    assert min(told["runs"]["cold"]["major"]) > max(told["runs"]["warm"]["major"])
    done = wstrace("prefetch", "--compare", "--runs", "1", "--", *command)
    assert "cold, prefetched" in done.stdout
    assert " in the page cache left it" in done.stdout
    assert wstrace("prefetch", "--compare", "--runs", "1", "--", "sh", "-c", "exit 9").returncode == 9


def test_a_build_id_is_what_the_kernel_and_readelf_say(tmp_path):
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    for path in (
        Path(sys.executable).resolve(),
        Path(shutil.which("true")).resolve(),
        *Path("/usr/lib").glob("*/libc.so.6"),
    ):
        told = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
        wanted = told.partition("Build ID: ")[2].split("\n")[0]
        assert now(Path(path)).build_id == wanted
