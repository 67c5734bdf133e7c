"""The daemon on the real kernel: a cgroup is traced, and what is sampled stands for what the kernel counted."""

import os
import subprocess
import sys

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
