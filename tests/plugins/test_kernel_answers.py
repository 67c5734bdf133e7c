"""Whatever the kernel answers, a snapshot or a write watch gives its result or says why not: no errno gets out.

Answers are injected: a kernel gives only some of them, and which ones has changed (PAGEMAP_SCAN of a process that is
gone: nothing up to 6.17, ESRCH from 6.18 on).
"""

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import wstrace
from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.linux import pagemap, userfaultfd
from wstrace_plugins.os.linux.pagemap import PAGE
from wstrace_plugins.working_set.linux import pageout

#: every refusal of a call that a newer, an older or a guarded kernel was seen or is documented to give
REFUSALS = ("EPERM", "ESRCH", "EIO", "EAGAIN", "ENOMEM", "EFAULT", "EINVAL", "ENOTTY", "ENOSYS", "EOPNOTSUPP")


def refuses(request: int, number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """ioctl(2) as a kernel does it that answers this request with this error."""

    def ioctl(fd, wanted, argument):
        if wanted != request:
            return real(fd, wanted, argument)
        ctypes.set_errno(number)
        return -1

    return ioctl


pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: pagemap"),
    pytest.mark.usefixtures("watchable"),
]
NUMBERS = [pytest.param(getattr(errno, name), id=name) for name in REFUSALS]


@contextlib.contextmanager
def region() -> Iterator[Callable[[], object]]:
    with wstrace.WriteWatch(4 * PAGE) as watch:
        yield watch.written


@contextlib.contextmanager
def all_memory(method: str) -> Iterator[Callable[[], object]]:
    with wstrace.MemoryWatch() as watch:
        yield getattr(watch, method)


LOOKS = {
    "a region": region,
    "all memory": lambda: all_memory("written"),
    "starting over": lambda: all_memory("reset"),
    "a snapshot": lambda: contextlib.nullcontext(wstrace.working_set),
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("look", LOOKS)
def test_a_scan_that_is_refused_is_reported_in_a_sentence(look, number, monkeypatch):
    assert pagemap.has_scan()
    with LOOKS[look]() as ask:
        monkeypatch.setattr(pagemap, "_ioctl", refuses(pagemap.PAGEMAP_SCAN, number, pagemap._ioctl))
        if number == errno.ESRCH:  # the address space is gone: there are no pages
            with contextlib.suppress(TargetExited):
                ask()
            return
        with pytest.raises(Unavailable) as refused:
            ask()
    assert not isinstance(refused.value, TargetExited), "nothing ended: the scan was refused"
    known = {errno.EPERM: "mapped anew"} if look == "a region" else {}
    assert known.get(number, os.strerror(number)) in str(refused.value)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_pagemap_that_is_refused_is_reported_in_a_sentence(number, monkeypatch):
    def pread(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pagemap, "_pread", pread)
    expected = TargetExited if number == errno.ESRCH else Unavailable
    with pytest.raises(expected) as refused:
        wstrace.working_set()
    assert type(refused.value) is expected


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("request_", ["_UFFDIO_REGISTER", "_UFFDIO_WRITEPROTECT", "_UFFDIO_API"])
def test_a_userfaultfd_that_is_refused_is_reported_in_a_sentence(request_, number, monkeypatch):
    """EAGAIN without end too: a target that has made its userfaultfd report forks decides when it ends."""
    monkeypatch.setattr(userfaultfd, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(userfaultfd, "_ioctl", refuses(getattr(userfaultfd, request_), number, userfaultfd._ioctl))
    with pytest.raises(Unavailable):
        wstrace.WriteWatch(4 * PAGE)


@pytest.mark.parametrize("number", NUMBERS)
def test_pages_that_may_not_be_taken_out_are_reported_in_a_sentence(number, monkeypatch):
    """process_madvise() refuses single ranges too (device memory): then the rescan tells what stayed."""

    def refused(*_):
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(pageout, "_syscall", refused)
    runs = {"start": np.array([PAGE], "u8"), "pages": np.array([1], "u4"), "flags": np.array([0], "u2"),
            "row": np.array([0], "u4")}  # fmt: skip
    if number in (errno.EPERM, errno.ESRCH, errno.ENOSYS):
        with pytest.raises(Unavailable):
            pageout.page_out(os.getpid(), runs)
    else:
        pageout.page_out(os.getpid(), runs)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EMFILE, errno.EPERM])
def test_a_process_that_cannot_be_referred_to_is_not_emptied(number, monkeypatch):
    def refused(pid):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pageout.os, "pidfd_open", refused)
    with pytest.raises(Unavailable):
        wstrace.empty_working_set()


def test_what_a_watch_and_a_snapshot_say_of_a_process_that_has_ended():
    with subprocess.Popen(["sleep", "60"]) as target:
        opened = pagemap.Pagemap(target.pid)
        target.kill()
        target.wait()
        assert len(opened.scan(PAGE, 1 << 40, mask=pagemap.IS_PRESENT, give=pagemap.IS_PRESENT)) == 0
        assert opened.gone
        opened.close()
