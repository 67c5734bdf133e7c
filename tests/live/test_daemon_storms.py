"""Storms that any user can make: the daemon keeps its limits and counts what it left out; tracers keep theirs too.

WSTRACE_STORM_MINUTES says how long each lasts, 1 by default: of 21, the limit of CPU holds over the whole of them.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.command_line import begun, peak_bytes
from kit.daemon_scripted import daemon
from kit.new_functions import new_functions
from kit.recorded_run import compiled

from wstrace import bus, open_trace
from wstrace.batch import Dictionary, StackIds
from wstrace_exporters.msgpack.write.writer import HELD_MAPPINGS
from wstrace_plugins.mapped_files.spaces import AddressSpaces, Space
from wstrace_plugins.page_faults.linux.python_stacks import decoder

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux"),
]

MAX_CPU, MAX_MEMORY = 0.05, 160 << 20
SECONDS = int(60 * float(os.environ.get("WSTRACE_STORM_MINUTES", "1")))
PYTHON = "/usr/bin/python3"  # the tests' own may lie in a folder that is closed to others
IN_C = ("processes", "chain", "mappings")
IN_PYTHON = {"call sites": new_functions(SECONDS, lines=True), "long names": new_functions(SECONDS, 1500)}
SETTINGS = f"""
exporters = ["msgpack"]
[daemon]
max_cpu = {MAX_CPU}
max_memory = "{MAX_MEMORY >> 20}MiB"
health = "127.0.0.1:0"
[msgpack]
rotate_bytes = "4MiB"
keep = 4
"""


def used(running) -> tuple[int, float]:
    """(resident bytes of the daemon, CPU seconds of it and of what it has started)."""
    words = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return 4096 * int(words[21]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def watched(running, seconds: float) -> int:
    """The most resident bytes in so many seconds."""
    end, most = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        most = max(most, used(running)[0])
        time.sleep(0.1)
    return most


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("storm", [*IN_C, *IN_PYTHON])
def test_a_storm_takes_no_more_than_the_limits_and_passes(storm, tmp_path):
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    made = compiled(tmp_path, Path(__file__).with_name("storms.c").read_text(), "-static")
    if storm in IN_PYTHON and not Path(PYTHON).exists():
        pytest.skip(f"needs {PYTHON}")
    raging = [PYTHON, "-c", IN_PYTHON[storm]] if storm in IN_PYTHON else [made, storm, str(SECONDS)]
    path = tmp_path / "wstrace.toml"
    path.write_text(SETTINGS + f'path = "{tmp_path / "node.wst"}"\n')
    with daemon(path) as running:
        start = watched(running, 20)
        _, before = used(running)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        with subprocess.Popen([*nobody, *raging], stdout=subprocess.PIPE) as rages:
            most = watched(running, SECONDS)
            _, after = used(running)
            assert rages.wait(60) == 0
        facts = running.facts()
        most = max(most, watched(running, 60))
        later, _ = used(running)
        print(json.dumps({"storm": storm, "start": start >> 20, "most": most >> 20, "later": later >> 20,
                          "cpu": round((after - before) / SECONDS, 3), "lost": facts["lost"],
                          "sampled": facts["sampled"], "sessions": facts["sessions"]}))  # fmt: skip
        assert most <= 1.2 * MAX_MEMORY
        assert (after - before) / SECONDS <= 1.5 * MAX_CPU
        assert later <= 1.2 * start
        assert facts["lost"] or facts["sampled"] > 1


#: what may wait: for an exporter that gathers, and of mappings and processes
QUEUES = bus.GATHERED_BYTES + bus.PATIENT_BYTES
#: 52 B a call site: a frame, its id, and four places of the index
NAMES, STACKS = Dictionary.LIVE_BYTES, decoder.MOST_BYTES + 52 * StackIds.LIMIT
#: 500 B each: mappings of processes that have ended, and the changes of one that lives; 75 B, thrice while they are
#: sorted: the rows that the writer holds for the parts to come
MAPPINGS = 500 * (AddressSpaces.MAX_ENDED + 3 * Space.MOST) + 3 * 75 * HELD_MAPPINGS
#: what allocators keep of tables that were copied as they grew: a storm of mappings took 100 MiB in 60 s, 157 in 180
KEPT = 32 << 20
ENDLESS = f"import itertools, mmap, os, time\nend = time.monotonic() + {SECONDS}\n"
#: a program that does one thing without end, and the tables that this fills
STORMS = {
    "mappings": (ENDLESS + "while time.monotonic() < end:\n    with mmap.mmap(-1, 8192) as memory:\n"
                 "        memory[0] = memory[4096] = 1\n", MAPPINGS),
    "processes": (ENDLESS + "while time.monotonic() < end:\n"
                  "    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n", MAPPINGS + STACKS),
    "file names": (
        ENDLESS + "import tempfile\nwith tempfile.TemporaryDirectory() as folder, open(folder + '/0', 'w+b') as file:\n"
        "    file.truncate(4096)\n    os.chdir(folder)\n"
        "    for _ in range(18):\n        os.mkdir('d' * 200)\n        os.chdir('d' * 200)\n"
        "    os.rename(folder + '/0', '0')\n"
        "    for n in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):\n"
        "        os.rename(str(n), str(n + 1))\n"
        "        with mmap.mmap(file.fileno(), 4096) as memory:\n            memory[0] = 1\n", NAMES + MAPPINGS),
    "functions": (new_functions(SECONDS), NAMES + STACKS),
    "lines": (new_functions(SECONDS, lines=True), NAMES + STACKS),
    "long names": (new_functions(SECONDS, 1500), NAMES + STACKS),
}  # fmt: skip


def traced(program: str, kept: Path) -> int:
    """The most resident bytes of the tracer of that program."""
    with begun("run", "-q", "-f", "-o", kept, "-c", program) as tracer:
        most = peak_bytes(tracer)
    assert tracer.returncode in (0, 123)
    return most


@pytest.mark.parametrize("storm", STORMS)
def test_the_memory_of_the_tracer_is_what_its_tables_may_take(storm: str, tmp_path: Path) -> None:
    (program, tables), kept = STORMS[storm], tmp_path / "x.wst"
    least = traced("import time; time.sleep(1)", kept)
    most = traced(program, kept)
    print(f"{storm}: {most >> 20} MiB, {least >> 20} at the start; the tables {tables >> 20}, queues {QUEUES >> 20}")
    assert most <= least + tables + QUEUES + KEPT
    with open_trace(str(kept)) as trace:
        counts = trace.ledger
    stages = ("lost_kernel", "lost_tracer", "foreign_clock", "unaccounted")
    lost = sum(counts.get(stage, kind) for stage in stages for kind in ("minor", "major", "page_faults"))
    assert counts.get("recorded", "page_fault") + lost == counts.get("counted")
