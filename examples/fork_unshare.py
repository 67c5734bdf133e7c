"""What does a forked worker un-share? Memory that parent and child share until one of them writes.

    python examples/fork_unshare.py

A worker forked from a process with much data seems free: all pages are shared. Python un-shares them by merely reading
objects, because each use writes a reference count; the bytes of a numpy array are not stored in its one object,
and stay shared. A snapshot of the worker shows it: its private pages are what it costs.
"""

from __future__ import annotations

import os

import numpy as np

import wstrace

N = 500_000


def cost(name: str, work) -> None:
    """Runs work in a forked worker and prints what the worker then has alone."""
    to_worker, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(to_parent[1], b"1")
        os.read(to_worker[0], 1)
        work()
        os.write(to_parent[1], b"2")
        os.read(to_worker[0], 1)
        os._exit(0)
    os.read(to_parent[0], 1)
    before = wstrace.working_set(pid)
    os.write(to_worker[1], b"1")
    os.read(to_parent[0], 1)
    after = wstrace.working_set(pid)
    os.write(to_worker[1], b"2")
    os.waitpid(pid, 0)
    for end in (*to_worker, *to_parent):
        os.close(end)
    alone = (after.private_bytes - before.private_bytes) / 2**20
    shared = after.shared_bytes / 2**20
    print(f"{name:44} {alone:7.1f} MiB un-shared, {shared:6.1f} MiB still shared")


def main() -> None:
    objects = [str(i) for i in range(N)]
    array = np.arange(N * 8, dtype="i8")
    cost("a worker that does nothing", lambda: None)
    cost(f"... that reads {N:,} strings of a list", lambda: sum(len(text) for text in objects))
    cost(f"... that reads an array of {array.nbytes >> 20} MiB", lambda: array.sum())
    cost("... that writes a tenth of that array", lambda: array[: len(array) // 10].fill(0))


if __name__ == "__main__":
    main()
