"""`wstrace ps` and `--tree`: the kernel's own sums and names, with real programs that fork."""

import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from kit.command_line import WSTRACE, answer, until, wstrace
from kit.recorded_run import compiled
from kit.stopped_process import rollup
from kit.titles import TITLE

from wstrace import open_trace
from wstrace.cli import main
from wstrace.schema import PROCESS, PROCESS_TITLE

MIB, PAGE = 1 << 20, os.sysconf("SC_PAGESIZE")
FORKS = """
import os, signal, sys
held = bytearray(b"x") * (32 << 20)
for _ in range(4):
    if not os.fork():
        held[: 4 << 20] = b"y" * (4 << 20)
        break
else:
    print("forked", flush=True)
signal.pause()
"""
POOL = """
import multiprocessing, signal, time
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(abs, range(4))
        print("ready", flush=True)
        time.sleep(100)
"""


@contextlib.contextmanager
def family(words: list[object], ready: Callable[[list[psutil.Process]], bool], **options) -> Iterator[list[int]]:
    """The pids of a command and its descendants once they are ready, all of them stopped."""
    target = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              start_new_session=True, **options)  # fmt: skip
    root = psutil.Process(target.pid)
    try:
        until(lambda: ready(root.children(recursive=True)))
        time.sleep(0.3)
        every = [root, *root.children(recursive=True)]
        for process in every:
            process.suspend()
        yield [process.pid for process in every]
    finally:
        # All are looked up before the first one ends; postgres' processes are of other groups than their parent.
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        target.wait()


def tree(capsys: pytest.CaptureFixture[str], pid: int) -> dict:
    assert main(["ps", "--tree", str(pid), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def agrees(shown: dict, pids: list[int]) -> None:
    """The sums are the kernel's: pages of libraries that others map too may come to have one more or less meanwhile."""
    kernel = {pid: rollup(pid) for pid in pids}
    assert sorted(process["pid"] for process in shown["processes"]) == sorted(pids)
    for process in shown["processes"]:
        of = kernel[process["pid"]]
        assert process["resident"] == of["Rss"]
        assert process["private"] == pytest.approx(of["Private_Clean"] + of["Private_Dirty"], abs=MIB)
        assert process["pss"] == pytest.approx(of["Pss"], rel=0.05, abs=256 << 10)
    total = shown["total"]
    assert total["rss_sum"] == sum(of["Rss"] for of in kernel.values())
    assert total["pss"] == sum(process["pss"] for process in shown["processes"])
    assert total["pss"] == pytest.approx(sum(of["Pss"] for of in kernel.values()), rel=0.03)
    if os.geteuid() == 0:
        assert total["distinct"] == pytest.approx(frames(pids) * PAGE, abs=4 * PAGE)


def frames(pids: list[int]) -> int:
    """The distinct page frames of these processes, read anew from /proc/PID/pagemap; the page of zeros is in no Rss."""
    found = []
    for pid in pids:
        with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                if start < 1 << 63 and "[vvar" not in line:
                    pagemap.seek(start // PAGE * 8)
                    entries = np.frombuffer(pagemap.read((end - start) // PAGE * 8), "<u8")
                    found.append(entries[entries >> 63 == 1] & ((1 << 55) - 1))
    return len(np.setdiff1d(np.concatenate(found), zero_page()))


def zero_page() -> np.ndarray:
    """The frame number of the page of zeros: that of a page of our own which was only read."""
    memory = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert memory[0] == 0
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(np.frombuffer(memory, "u1").ctypes.data // PAGE * 8)
        return np.frombuffer(pagemap.read(8), "<u8") & ((1 << 55) - 1)


def test_a_parent_and_its_forks_have_three_sums(capsys):
    with family([sys.executable, "-c", FORKS], lambda children: len(children) == 4) as pids:
        shown = tree(capsys, pids[0])
        agrees(shown, pids)
        total = shown["total"]
        assert total["processes"] == 5
        assert total["rss_sum"] > 5 * 32 * MIB
        # 32 MiB of the parent's, and 4 MiB that each child copied
        assert 48 * MIB <= total["pss"] <= 80 * MIB
        if os.geteuid() == 0:
            assert 48 * MIB <= total["distinct"] <= 90 * MIB
        assert [process["depth"] for process in shown["processes"]] == [0, 1, 1, 1, 1]
        assert main(["ps", "--tree", str(pids[0])]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("5 processes: ")
        assert " pss, " in lines[0]
        assert " rss_sum, " in lines[0]


def test_multiprocessing_is_below_its_parent(tmp_path, capsys):
    (tmp_path / "pool.py").write_text(POOL)
    with family([sys.executable, tmp_path / "pool.py"], lambda children: len(children) >= 3) as pids:
        shown = tree(capsys, pids[0])
        agrees(shown, pids)
        titles = [process["title"] for process in shown["processes"]]
        assert titles[0].endswith("pool.py")
        assert sum("multiprocessing" in title for title in titles[1:]) == 3
        assert all(process["ppid"] == pids[0] for process in shown["processes"][1:])


def test_a_process_that_is_not_there_is_an_error(capsys):
    assert main(["ps", "--tree", "4000000"]) == 122
    assert "there is no process 4000000" in capsys.readouterr().err


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux")
NAMED = """
import ctypes, threading
def named():
    ctypes.CDLL(None).prctl(15, b"pool thread", 0, 0, 0)
    bytearray(1 << 20)
    ready.set(); done.wait()
ready, done = threading.Event(), threading.Event()
threading.Thread(target=named, daemon=True).start(); ready.wait()
"""
SERVER = f"""
import os, time, sys
{TITLE}
title("kit: master")
for number in range(2):
    if not os.fork():
        if number:
            title("kit: worker")
        bytearray(4 << 20); time.sleep(0.6); bytearray(4 << 20)
        os._exit(0)
{NAMED}
for _ in range(2):
    os.wait()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = str(tmp_path_factory.mktemp("names") / "x.wst")
    answer("run", "-q", "-o", found, "--", sys.executable, "-c", SERVER, "--password=secret")
    return found


def top(path: str, by: str) -> list[dict[str, object]]:
    return json.loads(answer("report", "--json", "--by", by, path))["rows"]


def test_processes_are_reported_by_title_and_role(path):
    labels = [str(row["label"]) for row in top(path, "process")]
    assert len(labels) == 3, "each process once"
    assert any(label.startswith("kit: master (") for label in labels)
    assert any(re.match(r"kit: worker \(\d+\), worker 2 of \d+$", label) for label in labels), labels


def test_threads_are_reported_by_name(path):
    assert any(str(row["label"]).startswith("pool thread") for row in top(path, "thread"))


def test_arguments_of_processes_are_in_no_file_but_those_of_the_command(path):
    with open_trace(path) as trace:
        assert "--password=secret" in trace.info.command
        titles = {trace.strings[code] for batch in trace.batches(PROCESS.name)
                  for code in batch["name"][batch["event"] == PROCESS_TITLE].tolist()}  # fmt: skip
        assert "kit: worker" in titles
        assert not any("secret" in name for name in trace.strings.names(0, len(trace.strings)))


def test_threads_that_are_there_already_have_names(tmp_path):
    path, code = str(tmp_path / "x.wst"), f"{NAMED}\nprint(flush=True); input(); bytearray(1 << 20)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert wstrace("attach", "-q", "-o", path, "--duration", "0.2s", str(child.pid)).returncode == 0
        child.communicate(b"\n")
    with open_trace(path) as trace:
        names = {trace.strings[code] for batch in trace.batches(PROCESS.name) for code in batch["name"].tolist()}
    assert "pool thread" in names


_DAEMON = """
sources = ["page_faults"]
exporters = ["msgpack"]
[daemon]
cgroups = []
[msgpack]
path = "{path}"
"""


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A process of another user that has a command line of 2 GiB, and an environment of as many."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    program = Path(tempfile.mkdtemp(dir="/tmp")) / "evil_args"
    made = compiled(program.parent, Path(__file__).with_name("evil_args.c").read_text())
    made.rename(program)
    program.parent.chmod(0o755)
    with subprocess.Popen([program, "2"], user=65534, group=65534, stdout=subprocess.PIPE) as child:
        if child.stdout.readline() != b"ok\n":
            pytest.skip("this kernel lets no process move its command line (CONFIG_CHECKPOINT_RESTORE)")
        yield child.pid
        child.kill()
    shutil.rmtree(program.parent)


@pytest.mark.parametrize(
    "words",
    [
        "ps", "ps --tree", "ps PID", "snapshot PID", "wss PID --for 500ms", "delta PID",
        "report PID --duration 1s", "unshared PID --duration 1s", "attach -q -o OUT PID --duration 1s",
        "attach -q -o OUT --name evil_args --duration 1s", "daemon --config CONFIG",
    ],
)  # fmt: skip
def test_a_command_line_of_gigabytes_costs_no_memory(evil, words, tmp_path):
    config, out, said = tmp_path / "daemon.toml", tmp_path / "x.wst", tmp_path / "said"
    config.write_text(_DAEMON.format(path=out))
    places = {"PID": str(evil), "OUT": str(out), "CONFIG": str(config)}
    command = [*WSTRACE, *(places.get(word, word) for word in words.split())]
    began = time.monotonic()
    with said.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as child:
        resident = 0
        while child.poll() is None:
            # wait4's ru_maxrss begins at what this process had before execve(), gigabytes in a long test session
            status = Path(f"/proc/{child.pid}/status").read_text()
            resident = max(resident, int((re.search(r"VmHWM:\s*(\d+)", status) or (0, 0))[1]))
            time.sleep(0.02)
            if words.startswith("daemon") and time.monotonic() > began + 5:
                os.kill(child.pid, signal.SIGTERM)
            if time.monotonic() > began + 50:
                os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == 0, said.read_text()
    assert 10 << 10 < resident < 400 << 10
    if out.exists():
        with open_trace(str(out)) as trace:
            assert trace.rows["page_fault"] > 500
