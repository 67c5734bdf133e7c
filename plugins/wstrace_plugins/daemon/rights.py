"""Which Linux capabilities the daemon lacks, and what a trace then lacks, each in one line (capabilities(7))."""

from __future__ import annotations

import re
from pathlib import Path

#: capability -> its bit, and what is not there without it. Source: include/uapi/linux/capability.h.
_NEEDED = {
    "CAP_PERFMON": (38, "the kernel gives no page faults of other processes"),
    "CAP_SYS_PTRACE": (
        19,
        "nothing is read below /proc/PID/root, where the files of containers are, on older kernels no mappings either",
    ),
    "CAP_IPC_LOCK": (14, "the kernel's buffers find room only within kernel.perf_event_mlock_kb"),
    "CAP_DAC_READ_SEARCH": (2, "programs that only their owners may read have neither build ids nor symbols"),
}
_ADMIN = 21  # CAP_SYS_ADMIN stands for CAP_PERFMON, as before Linux 5.8


def missing(status: Path = Path("/proc/self/status")) -> list[str]:
    """A line for each capability that this process lacks; [] where the system has none."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text("ascii", "replace"), re.MULTILINE)
    except OSError:
        return []
    held = int(found[1], 16) if found else -1
    admin = held >> _ADMIN & 1
    return [
        f"without {name} {lacks}"
        for name, (bit, lacks) in _NEEDED.items()
        if not held >> bit & 1 and not (name == "CAP_PERFMON" and admin)
    ]
