"""What was written since the last look: the source `write_watch`, wstrace.WriteWatch and wstrace.agent.

`wstrace_os.backend("wstrace_write_watch")` is the module that talks to the system; it offers, on every system:

* `probe() -> Level`: the level that this machine gives, tried on a page of its own.
* `allocate(nbytes: int)`: fresh zeroed private memory, page-aligned, that a Watcher can watch: an object with a
  writable buffer of at least nbytes, which frees the memory when its last reference goes.
* `Watcher(pid: int | None = None)`: a watch without any memory yet, of the calling process or of another one. It has
  proved itself (a page written is seen, its neighbour is not) or raises Unavailable. Its members:
    * `page_size: int`: the granularity in bytes
    * `add(start: int, end: int) -> None`: watches these whole pages, with nothing written yet. Raises Unavailable when
      they are watched already, are not mapped, or cannot be watched on this system.
    * `add_writable() -> int`: watches all writable memory, now and as it is mapped later: written() takes it in. Gives
      the bytes watched now. Raises Unavailable where the system watches own regions only.
    * `reset() -> None`: nothing counts as written; only asked for where add_writable() works.
    * `remove(start: int, end: int) -> None`: ends the watch of these pages.
    * `written(*, reset: bool = True) -> tuple[NDArray[u64], NDArray[u32]]`: runs of written pages (address, number of
      pages) of everything watched, sorted. reset: they count as not written from now on, without losing a write in
      between. Raises Unavailable in a forked child or when the memory is gone.
    * `close()`: ends all watching; `abandon()`: in a forked child, closes the copied handles.
* `open_watcher(pid: int, agent: str = "") -> Watcher`: of the calling process or of another one, by whatever way this
  system has (agent: the socket that the other process's agent listens at, "" = the usual one).
* `mappings(pid: int, strings: Dictionary) -> dict[str, NDArray]`: the columns start, end, offset, file, dev, ino,
  flags of schema.ADDRESS_SPACE, sorted by start.
* `start_agent(path: str | None) -> Agent`: lets a tracer outside of this process watch it; raises Unavailable where
  the system has no way. `Agent.path`, `Agent.close()`.
"""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Source


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    """The source `write_watch`."""
    from wstrace_write_watch.source import WriteWatchSource

    return [WriteWatchSource]
