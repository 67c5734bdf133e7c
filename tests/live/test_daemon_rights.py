"""Each capability that the daemon asks for is needed: what it is for works with four, and not with the other three."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root"),
]

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
assert Rings(perf.online_cpus(), 16 << 20).size == 16 << 20, "perf_event_open: its buffer is smaller than requested"
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
