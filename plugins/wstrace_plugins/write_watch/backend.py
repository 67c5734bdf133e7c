"""What write watch needs from the system: a module `backend` in the folder `linux` or `windows`.

It has

* `allocate(nbytes)`: fresh zeroed private memory, page-aligned, that a watch can cover; an object with a writable
  buffer of at least nbytes, which frees the memory with its last reference;
* `Watcher()`: a watch of the calling process, which covers no memory at first; it proves that it works (a written page
  is seen, its neighbour is not), or raises Unavailable; linux/backend.py describes its methods;
* `open_watcher()`: a watch of all memory of the calling process that this system can watch;
* `mappings(strings)`: the columns of schema.ADDRESS_SPACE of the calling process.
"""

from __future__ import annotations

from typing import Any


def backend() -> Any:
    """The running system's backend. Raises Unavailable where there is none."""
    import wstrace_plugins.os

    return wstrace_plugins.os.backend("wstrace_plugins.write_watch")
