"""`unshared PID` of workers that run already, judged by the kernel's sums; what an interpreter copies as it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.command_line import answer, wstrace

from wstrace import open_trace
from wstrace.analysis.unshared import Unshared

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux"),
    pytest.mark.usefixtures("full_level", "python_stacks"),
]
WORKERS = """
import os, signal, sys
loaded = [bytes(1000) + str(n).encode() for n in range(30_000)]
def rewrite():
    for one in loaded:
        pass
for _ in range(2):
    if not os.fork():
        signal.signal(signal.SIGUSR1, lambda *_: rewrite())
        while True:
            signal.pause()
print(flush=True)
signal.pause()
"""


def private(pids) -> int:
    """The bytes that these processes have alone, by the kernel."""
    texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(n) << 10 for text in texts for n in re.findall(r"Private_Dirty: +(\d+)", text))


def test_running_workers(tmp_path):
    program = tmp_path / "workers.py"
    program.write_text(WORKERS)
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"\n"
        children = list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
        before = private(children)
        words = ["unshared", process.pid, "-o", tmp_path / "x.wst", "--json"]
        tracer = subprocess.Popen([sys.executable, "-m", "wstrace", *map(str, words)], stdout=subprocess.PIPE)
        while not (tmp_path / "x.wst").exists() or (tmp_path / "x.wst").stat().st_size < 5000:  # the first snapshot
            time.sleep(0.1)
        time.sleep(1)
        for child in children:
            os.kill(child, signal.SIGUSR1)
        time.sleep(3)
        copied = private(children) - before
        tracer.send_signal(signal.SIGINT)
        found = json.loads(tracer.communicate(timeout=60)[0])
        grown = json.loads(wstrace("report", "--json", tmp_path / "x.wst").stdout)
        os.killpg(process.pid, signal.SIGKILL)
    assert copied > 50 << 20
    rows = {row["label"]: row["copied"] for row in found["rows"]}
    assert found["total"]["copied"] == pytest.approx(copied, rel=0.05)
    assert rows["rewrite workers.py:5"] == pytest.approx(copied, rel=0.05)
    assert " rewrite workers.py:5" in found["answer"]
    assert grown["total"]["grown"] == pytest.approx(copied, rel=0.2), "what three processes share counts once"


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
    with open_trace(path) as trace:
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
