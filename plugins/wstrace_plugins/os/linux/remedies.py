"""Commands and settings that raise the level on Linux, for each environment in which a tracer runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def remedies() -> Mapping[str, str]:
    """Environment -> lines to copy. CAP_PERFMON (Linux 5.8) is the least privilege that records every fault."""
    import shutil

    python = os.path.realpath(sys.executable)
    here = shutil.which("wstrace") or "wstrace"
    return {
        "this shell": f"sudo {here} run -- COMMAND            # COMMAND still runs as you",
        "sysctl": (
            "sudo sysctl kernel.perf_event_paranoid=1       # your own processes; 2: user faults only\n"
            "echo kernel.perf_event_paranoid=1 | sudo tee /etc/sysctl.d/60-wstrace.conf   # and after the next boot"
        ),
        "setcap": (
            f"sudo setcap cap_perfmon,cap_sys_ptrace+ep {python}\n"
            "# gives it to every script of that interpreter: use a copy of it, in a venv of its own"
        ),
        "Docker": "docker run --cap-add PERFMON --cap-add SYS_PTRACE ...   # seccomp then lets perf events pass",
        "Kubernetes": "securityContext: {capabilities: {add: [PERFMON, SYS_PTRACE]}}   # of the container",
        "systemd": "AmbientCapabilities=CAP_PERFMON CAP_SYS_PTRACE   # in the unit's [Service] section",
        "Python stacks": "the same with cap_bpf, --cap-add BPF, BPF or CAP_BPF beside each perfmon",
    }
