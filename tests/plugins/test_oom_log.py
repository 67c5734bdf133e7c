"""Which kills for want of memory the kernel's log tells of a cgroup."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /dev/kmsg")


def kill(killed_in: bytes, task: bytes = b"python3", at: bytes = b"oom_memcg=/api") -> bytes:
    """A record of the kernel, as Linux 5.0 to 6.18 write it."""
    return (b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0," + at + b",task_memcg="
            + killed_in + b",task=" + task + b",pid=4711,uid=0")  # fmt: skip


@pytest.mark.parametrize(
    ("record", "path", "below", "told"),
    [
        (kill(b"/api"), "/api", False, True),
        (kill(b"/api"), "/ap", True, None),
        (kill(b"/api"), "/api/web", True, None),
        (kill(b"/api/web"), "/api", True, True),
        (kill(b"/api/web"), "/api", False, None),
        (kill(b"/api/web"), "/api/web", False, False),  # it was the limit of the one above
        (kill(b"/api", at=b"global_oom"), "/api", False, False),
        (kill(b"/api", b",pid=1,uid=1"), "/api", False, True),  # the name of a process is anybody's
        (kill(b"/a", b",task_memcg=/b"), "/b", False, None),
        (kill(b"/api,task=y"), "/api", False, None),  # so is that of a cgroup
        (kill(b"/a,task_memcg=/b"), "/b", False, None),
        (kill(rb"/a\x5cx2db\xc3\xa9"), "/a\\x2db\u00e9", False, False),
        (b"Memory cgroup out of memory: Killed process 4711 (oom-kill:constraint=)", "/api", True, None),
        (kill(b"/api")[:-9], "/api", False, None),
    ],
)
def test_a_record_tells_a_kill_of_its_cgroup_alone(record, path, below, told):
    from wstrace_plugins.working_set.linux.oom_log import kill_in

    assert kill_in(record, path, below=below) is told


def test_what_others_write_into_the_log_is_no_kill():

    from wstrace_plugins.working_set.linux.oom_log import OomLog

    log = OomLog()
    try:
        with Path("/dev/kmsg").open("wb", buffering=0) as written:
            written.write(b"<0>" + kill(b"/wstrace-made-up"))
    except OSError as refused:
        pytest.skip(f"the log may not be written here: {refused}")
    assert log.kills("/wstrace-made-up", below=True) == []
    log.close()
    assert log.kills("/wstrace-made-up", below=True) == [], "it is closed"
