"""What the kernel may answer when the Linux source asks for events: each answer has its own way."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from wstrace.errors import Unavailable
from wstrace_plugins.page_faults.linux import perf_event, tracepoints
from wstrace_plugins.page_faults.linux.events import PerfEvents, Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors of Linux")

NUMBERS = [101, 102, 103, 104, 105]


class Descriptors:
    hard = 100

    def room(self, more: int) -> bool:
        return more < 20

    def restore(self) -> None:
        pass


class Rings:
    def fd(self, kind: str, cpu: int) -> int:
        return 1


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[Any]]]:
    """events(open, ioctl): perf_event_open and ioctl answer as told; what was opened and is still open."""

    def start(answer: Callable[[Any], int], ioctl: Callable[[int], int] = lambda request: 0) -> dict[str, list[Any]]:
        seen: dict[str, list[Any]] = {"open": [], "asked": []}

        def opens(attributes: Any, pid: int, cpu: int, flags: int = 0) -> int:
            one = attributes[0]
            seen["asked"].append((int(one["config"]), int(one["read_format"])))
            if number := answer(one):
                raise OSError(number, os.strerror(number), "perf_event_open")
            fd = os.open(os.devnull, os.O_RDONLY)
            seen["open"].append(fd)
            return fd

        def controls(fd: int, request: int, argument: int = 0) -> None:
            if number := ioctl(request):
                raise OSError(number, os.strerror(number), "ioctl")

        monkeypatch.setattr(perf_event, "perf_event_open", opens)
        monkeypatch.setattr(perf_event, "ioctl", controls)
        return seen

    return start


def still_open(fds: list[int]) -> list[int]:
    found = []
    for fd in set(fds):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found


def make(cpus: int = 2) -> PerfEvents:
    return PerfEvents(Rings(), range(cpus), Descriptors())


def test_before_linux_6_0_loss_is_not_told(events: Any) -> None:
    """EINVAL to PERF_FORMAT_LOST: asked again without it."""
    seen = events(lambda one: errno.EINVAL if one["read_format"] else 0)
    events_of = make()
    assert events_of.arm(7, Settings())
    assert not events_of.counts_lost
    assert {read_format for _, read_format in seen["asked"][1:]} == {0}
    assert len(still_open(seen["open"])) == 6
    events_of.after_fork_in_child()
    assert still_open(seen["open"]) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.EBUSY, errno.ENODEV, errno.ENOSPC])
def test_a_refusal_leaves_nothing_open(events: Any, number: int) -> None:
    seen = events(lambda one: number if one["config"] == 5 and len(seen_open()) > 2 else 0)

    def seen_open() -> list[int]:
        return seen["open"]

    events_of = make()
    with pytest.raises(OSError, match=os.strerror(number)):
        events_of.arm(7, Settings())
    events_of.after_fork_in_child()
    assert still_open(seen["open"]) == []
    assert 7 not in events_of.threads


def test_a_thread_that_is_gone_is_no_error(events: Any) -> None:
    events(lambda one: errno.ESRCH)
    assert make().arm(7, Settings()) is False


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_few_descriptors_come_with_the_arithmetic(events: Any, number: int) -> None:
    events(lambda one: number)
    with pytest.raises(Unavailable, match=r"1 threads x 2 CPUs x 3 events need 6 file descriptors"):
        make().arm(7, Settings())


@pytest.mark.parametrize("request_", [perf_event.PERF_EVENT_IOC_SET_OUTPUT, perf_event.PERF_EVENT_IOC_ENABLE])
def test_an_event_that_cannot_be_pointed_or_enabled_is_closed(events: Any, request_: int) -> None:
    seen = events(lambda one: 0, lambda request: errno.EINVAL if request == request_ else 0)
    events_of = make()
    with pytest.raises(OSError, match="Invalid argument"):
        events_of.arm(7, Settings())
    events_of.after_fork_in_child()
    assert still_open(seen["open"]) == []


def test_tracepoints_are_done_without_where_there_is_no_room() -> None:
    some = Settings(tracepoints=tuple(tracepoints._attribute(number) for number in NUMBERS))
    assert make(2).make_room(1, some) == some
    assert make(3).make_room(1, some) == Settings()
    with pytest.raises(Unavailable, match="file descriptors"):
        make(9).make_room(1, some)


@pytest.mark.parametrize(
    ("refused", "given"), [([], NUMBERS), ([105], NUMBERS[:4]), ([102], []), (NUMBERS, []), ([101, 105], [])]
)
def test_tracepoints_that_perf_refuses(
    events: Any, monkeypatch: pytest.MonkeyPatch, refused: list[int], given: list[int]
) -> None:
    events(lambda one: errno.EPERM if one["config"] in refused else 0)
    monkeypatch.setattr(tracepoints, "_mounted", lambda: NUMBERS)
    monkeypatch.setattr(tracepoints, "_detached", lambda: NUMBERS)
    with tracepoints.permitted() as permitted:
        assert [int(one["config"][0]) for one in permitted] == given


@pytest.mark.parametrize("error", [PermissionError(), FileNotFoundError(), ValueError("no number")])
def test_tracefs_that_cannot_be_read(events: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails() -> list[int]:
        raise error

    events(lambda one: 0)
    monkeypatch.setattr(tracepoints, "_mounted", fails)
    monkeypatch.setattr(tracepoints, "_detached", fails)
    with tracepoints.permitted() as permitted:
        assert permitted == []
    assert Settings(tracepoints=()).events == 3
