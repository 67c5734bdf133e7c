"""What this process holds open."""

import gc
from pathlib import Path


def descriptors() -> set[str]:
    """The numbers of this process's open file descriptors, as text."""
    gc.collect()  # what earlier tests left to the collector is not closed between two counts
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def handles() -> int:
    """How many descriptors of perf events and processes are open; other threads of a test run open none of these."""
    gc.collect()
    links = (str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum("perf_event" in link or "pidfd" in link for link in links)
