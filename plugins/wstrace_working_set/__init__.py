"""What is in memory and whose it is: sources (working_set, final_snapshot), commands (ps, snapshot ... diff) and API.

`wstrace_os.backend("wstrace_working_set")` is the module that talks to the system; it offers, on every system:

* `probe() -> Level`: the level that this machine gives, tried on the calling process.
* `Space(pid: int)`: an opened process and a context manager. Raises TargetExited when it is gone, Unavailable when it
  is refused or has no address space. Its members:
    * `pid: int`, `name: str`, `page_size: int`
    * `mappings(strings: Dictionary) -> dict[str, NDArray]`: the columns start, end, offset, file, dev, ino, flags of
      schema.ADDRESS_SPACE, sorted by start; a column that the system cannot fill is absent.
    * `runs(mappings, *, shares: bool = False) -> dict[str, NDArray]`: the columns start u64, pages u32, flags u16,
      shares u8 (absent where not known) and row u32 (index into `mappings`), sorted by start: runs of adjacent pages
      with equal attributes that never cross a mapping's border. PAGE_WRITE says that the mapping may be written,
      PAGE_COPY_ON_WRITE that the next write makes a copy (both
      may stand), PAGE_SHARED that another process has the page now (so that
      its sum is the total Shared), PAGE_EXCLUSIVE that none has. A page that the system does not count as resident
      (schema.NOT_RESIDENT: zero page, swapped, guard, large) has its flag; what no count of the system holds (vvar)
      has no run.
      shares=True asks for exact share counts; raises Unavailable without the right.
      Raises TargetExited when the process ends or executes another program meanwhile.
    * `totals() -> Totals` (wstrace_working_set.working_set): what the system itself counts, None where it does not.
    * `empty(mappings, runs) -> None`: asks the system to take every page out; raises Unavailable when it refuses.
      Nothing that could change the target's data.
    * `why_stayed(mappings, runs) -> tuple[NDArray[u8], tuple[str, ...]]`: a reason for each run that is still there:
      codes, and their texts.
    * `owned() -> bool`: it belongs to the calling user.
    * `close()`
* `make_keeper()`: what keeps the address space of one process over its end: `hold(pid) -> Space` (which has `look() ->
  bool`: whether it is still the process's, False after an execve) and `close()`, which lets it go. Raises Unavailable
  where the system has no such thing, and says what lifts it; `probe_keeper() -> Level` tries it.
* `descendants(pid: int) -> list[int]`: its children, and theirs, now.
* `listed() -> Iterator[tuple[int, str, str, int]]`: (pid, name, user, resident bytes) of every process; user is ""
  where it may not be told.
* `private_and_large(pid: int) -> tuple[int | None, int | None]`: bytes that no other process has, and bytes of large
  pages, which no resident set counts; None where the system does not tell or refuses.
* `faults() -> tuple[int, int | None]`: (minor, major) faults of the calling process so far, by its own accounting.
"""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Command, Source


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    """The sources `working_set` and `final_snapshot`."""
    from wstrace_working_set.final import FinalSnapshotSource
    from wstrace_working_set.source import WorkingSetSource

    return [WorkingSetSource, FinalSnapshotSource]


@hookimpl
def wstrace_commands() -> Sequence[Command]:
    """The words of the 1996 article's program, better."""
    words = {
        "ps": "Show the processes with their working sets.",
        "snapshot": "Show what is in a process's memory, and whose it is.",
        "empty": "Take a process's pages out of memory and tell what stayed.",
        "delta": "Show what a process brings in between two moments.",
        "diff": "Show what the second trace file has more or less than the first.",
    }
    target = "wstrace_working_set.commands.{0}:{0}"
    return [Command(word, about, target.format(word), "Inspect") for word, about in words.items()]
