"""Storms that any user can make: the daemon keeps its limits, counts what it left out, and is back a minute later.

WSTRACE_STORM_MINUTES says how long each lasts, 1 by default: of 21, the limit of CPU holds over the whole of them.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.daemon_scripted import daemon
from kit.new_functions import new_functions
from kit.recorded_run import compiled

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root"),
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
