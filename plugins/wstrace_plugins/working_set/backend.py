"""What working sets need from the system: a module `backend` in the folder `linux` or `windows`, and its types.

Such a module has

* `probe()`: the Level that this machine gives, tried on the calling process;
* `Space(pid)`: an opened process, with `mappings(strings)`, `runs(mappings, shares=...)`, `uncounted()`, `empty()`,
  `why_stayed()`, `owned()` (linux/space.py describes each); raises TargetExited when the process has ended, Unavailable
  when it is refused or has no address space;
* `make_keeper()`: what keeps the address space of one process beyond its end; Unavailable where the system has none;
* `clear_referenced(pid)`: takes away the bit of each page that the processor sets when it is used; returns what reads
  of each mapping its name, kind, and bytes used since and resident;
* `descendants(pid)`: its children and theirs; `listed()`: every process that has memory, as its pid, its parent's pid,
  its name, its user ("" where that is not readable) and its resident bytes; `accounted(pid)`; `arguments(pid)`: its
  command line; `distinct(pids)`: bytes resident in these processes together, each page once;
* `file_heat(path, pids)`, `watched_cgroups(...)`, and `faults()`: (minor, major) of the calling process so far.

What a system cannot do raises Unavailable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wstrace.errors import Unavailable


class Accounted(NamedTuple):
    """What the system accounts to a process, in bytes; None where it does not say.

    private: what no other process has. large: large pages, which no resident set includes. pss: private pages, and of
    each page that others have too its part. resident: its resident set, of the same moment as the others.
    """

    private: int | None = None
    large: int | None = None
    pss: int | None = None
    resident: int | None = None


class KeeperFailed(Unavailable):
    """A keeper could not be made, or has ended, where the system has keepers."""


def backend() -> Any:
    """The running system's backend. Raises Unavailable where there is none."""
    import wstrace_plugins.os

    return wstrace_plugins.os.backend("wstrace_plugins.working_set")
