"""The daemon on the real kernel: sampled rows stand for what was counted; each of its capabilities is needed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import until

from wstrace.session import Session

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root"),
]
FAULTS = "import mmap; m = mmap.mmap(-1, 20000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
FAULTS += "for at in range(0, 20000 * 4096, 4096): m[at] = 1"


def test_sampled_rows_stand_for_what_was_counted(cgroup):
    from wstrace.plugins import default_plugins
    from wstrace_plugins.daemon.linux.backend import Paced, Seen
    from wstrace_plugins.page_faults.linux.backend import PageFaults

    paced, seen = Paced(PageFaults(stacks="none")), Seen()
    groups = [default_plugins().platform.group("cgroup", cgroup.path)]
    with Session(groups=groups, sources=[paced], exporters=[seen]) as session:
        subprocess.run([*cgroup.joining(), sys.executable, "-c", FAULTS], check=True)
        paced.every = 4
        until(lambda: paced.set_to == 4)
        subprocess.run([*cgroup.joining(), sys.executable, "-c", FAULTS], check=True)
    faults, counted = session.faults, session.ledger.get("counted")
    assert set(np.unique(faults["sampled"]).tolist()) == {1, 4}
    sampled = faults["sampled"] == 4
    assert 5000 <= sampled.sum() < 12_000
    stand_for = int(faults["sampled"].sum())
    assert abs(stand_for - counted) <= 0.02 * counted
    assert session.info.sampled > 1
    assert session.ledger.get("unaccounted") == 0
    assert seen.cgroups


FOUR = ("perfmon", "sys_ptrace", "ipc_lock", "dac_read_search")
#: What the daemon does with a capability; sys.argv: the pid of a process of another user, and its program.
USES = {
    "perfmon": """
from wstrace_plugins.page_faults.linux import perf_event as perf
faults = perf.attr(perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_PAGE_FAULTS_MIN, sample_period=1)
os.close(perf.perf_event_open(faults, -1, perf.online_cpus()[0]))
""",
    "sys_ptrace": "os.stat(f'/proc/{sys.argv[1]}/root/etc')",
    "ipc_lock": """
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.rings import Rings
rings = Rings(perf.online_cpus(), 16 << 20, stacks=False)
assert rings.size == 16 << 20, "perf_event_open: its buffer is smaller than requested"
""",
    "dac_read_search": "open(sys.argv[2], 'rb').read(4)",
}


@pytest.fixture
def of_nobody(tmp_path):
    """A running process of the user nobody, and its program, which only that user may read."""
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o011)
    program = tmp_path / "private" / "sleep"
    program.parent.mkdir()
    shutil.copy("/usr/bin/sleep", program)
    for path, mode in ((program, 0o500), (program.parent, 0o500)):
        os.chown(path, 65534, 65534)
        path.chmod(mode)
    running = subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "60"])
    try:
        folder = Path(f"/proc/{running.pid}")
        while folder.stat().st_uid != 65534 or b"sleep" not in (folder / "comm").read_bytes():
            assert running.poll() is None
        yield running.pid, program
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("capability", FOUR)
def test_it_is_needed(capability, of_nobody):
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (util-linux)")
    code = f"import os, resource, sys\nresource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n{USES[capability]}"
    done = {}
    for left_out in ("", capability):
        held = ",".join(["-all", *(f"+{one}" for one in FOUR if one != left_out)])
        command = ["setpriv", f"--bounding-set={held}", "--inh-caps=-all", sys.executable, "-c", code]
        done[left_out] = subprocess.run([*command, *map(str, of_nobody)], capture_output=True, text=True, timeout=60)
    assert done[""].returncode == 0, done[""].stderr
    assert done[capability].returncode != 0
    assert (
        "denied" in done[capability].stderr
        or "CAP_" in done[capability].stderr
        or "perf_event" in (done[capability].stderr)
    ), done[capability].stderr
