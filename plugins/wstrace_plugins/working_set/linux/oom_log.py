"""What the kernel's log tells of kills for want of memory: that of a cgroup too, whose own count went with it.

For each kill the kernel logs, before the process dies, and so before its cgroup can be removed:
`oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/api,task_memcg=/api/worker,task=python3,pid=4711,uid=0`.

Source: dump_oom_victim() in mm/oom_kill.c, mem_cgroup_print_oom_context() in mm/memcontrol.c (Linux 5.0; ten kills in
5 s are logged so, of more only the pids); Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re

#: The numbers of the first namespaces (PROC_CGROUP_INIT_INO in include/linux/proc_ns.h): the log has paths of those.
_FIRST_CGROUP_NAMESPACE = 0xEFFFFFFB
#: The longest record that the kernel gives (PRINTK_MESSAGE_MAX).
_LONGEST = 8192
_KILL = b"oom-kill:constraint="
#: Names of cgroups and processes may have any text in them: a record that may be read in two ways is not counted.
_MEMCG, _TASK, _ENDS = b",task_memcg=", b",task=", re.compile(rb",pid=\d+,uid=\d+\Z")


class OomLog:
    """The kernel's log from now on; nothing is told of it where it may not be read (kernel.dmesg_restrict), or where
    paths of cgroups are not those of the log, as in a container.
    """

    def __init__(self) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            if os.stat("/proc/self/ns/cgroup").st_ino != _FIRST_CGROUP_NAMESPACE:  # noqa: PTH116 - it follows the link
                return
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def kills(self, path: str, *, below: bool) -> list[bool]:
        """Those in a cgroup since the last call: of each, whether it was at the limit of this cgroup itself.

        Some are not told where the log was overwritten since then.

        Args:
            path: of the cgroup, in the hierarchy of memory.
            below: whether those in cgroups below it count, too.
        """
        found = (kill_in(record, path, below=below) for record in self._records())
        return [at_limit for at_limit in found if at_limit is not None]

    def _records(self) -> list[bytes]:
        """The texts of the kernel's own records that are new."""
        found = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _LONGEST)
            except OSError as error:
                if error.errno == errno.EPIPE:  # some were overwritten; the next one is read
                    continue
                break
            head, _, text = record.partition(b";")
            # The priority holds the facility above its 3 bits; whoever writes to the log cannot give 0, the kernel's.
            if text.startswith(_KILL) and int(head.partition(b",")[0]) >> 3 == 0:
                found.append(text.partition(b"\n")[0])
        return found

    def close(self) -> None:
        """Closes the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def kill_in(record: bytes, path: str, *, below: bool) -> bool | None:
    """Whether the text of a record tells of a kill at the limit of this cgroup itself; None = of no kill in it.

    For path and below see OomLog.kills().
    """
    before, *rest = record.split(_MEMCG)
    name = b"".join(map(_escaped, os.fsencode(path)))
    if not record.startswith(_KILL) or len(rest) != 1 or rest[0].count(_TASK) != 1 or not rest[0].startswith(name):
        return None
    after = rest[0][len(name) :]
    if not _ENDS.search(after) or not after.startswith((_TASK, b"/") if below else _TASK):
        return None
    return before.endswith(b",oom_memcg=" + name)


def _escaped(byte: int) -> bytes:
    r"""A byte as the log has it: what is no printable ASCII, and the backslash, as \xHH."""
    return bytes([byte]) if 32 <= byte < 127 and byte != 92 else b"\\x%02x" % byte
