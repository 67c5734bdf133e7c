"""Descriptors whose last close waits in the kernel: it is the kernel that waits, not the tracer, and none is left."""

import _socket
import os
import select
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("perf events of Linux", allow_module_level=True)

import resource
from pathlib import Path

from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.perf_event import close_later

#: Calls that no other tracer of this machine watches: their last event is ours.
RARE = [f"syscalls/sys_{side}_{name}/id" for name in ("quotactl", "acct", "vhangup") for side in ("enter", "exit")]
EVENTS = Path("/sys/kernel/tracing/events"), Path("/sys/kernel/debug/tracing/events")


def is_open(fd: int) -> bool:
    return Path("/proc/self/fd", str(fd)).is_symlink()


def reported_of_end(fd: int) -> bool:
    """Whether the reading end of a pipe sees within 30 s that no writing end is left, in any process or message."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(30_000))


def waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@pytest.mark.usefixtures("full_level")
def test_the_thread_that_closes_tracepoints_does_not_wait():
    folder = next(folder for folder in EVENTS if (folder / RARE[0]).exists())
    fds = [
        perf.perf_event_open(perf.attr(perf.PERF_TYPE_TRACEPOINT, int((folder / name).read_text())), -1, cpu)
        for name in RARE
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    before = waits()
    close_later(fds)
    after = waits()
    assert not any(map(is_open, fds))
    if tuple(int(number) for number in os.uname().release.split(".")[:2]) >= (
        6,
        9,
    ):  # before, sockets are collected here
        assert after == before


@pytest.mark.parametrize("number", [1, 600], ids=["one", "more than a message holds"])
def test_nothing_is_left_open(number):
    read, write = os.pipe()
    fds = [write, *(os.dup(write) for _ in range(number - 1))]
    close_later(fds)
    assert fds == []
    assert not is_open(write)
    assert reported_of_end(read)
    os.close(read)


def test_without_sockets_they_are_closed_all_the_same(monkeypatch):
    def refused(*_):
        raise PermissionError(1, "socketpair")

    monkeypatch.setattr(_socket, "socketpair", refused)
    read, write = os.pipe()
    close_later([write])
    assert not is_open(write)
    assert reported_of_end(read)
    os.close(read)
