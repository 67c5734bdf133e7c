"""Processes by title and role, and threads by name, as the kernel and the processes themselves tell them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from kit.command_line import WSTRACE, answer, wstrace
from kit.recorded_run import compiled
from kit.titles import TITLE

from wstrace import open_trace
from wstrace.schema import PROCESS, PROCESS_TITLE

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
