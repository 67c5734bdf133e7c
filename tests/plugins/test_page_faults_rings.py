"""The sizes of the kernel's buffers by the number of CPUs: the memory that they lock has a bound."""

import ctypes
import errno
import mmap
import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

from wstrace.errors import Unavailable
from wstrace_plugins.page_faults.linux import perf_event
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, SIDE, STACKS, Rings

MIB = 1 << 20
_DESCRIPTOR = 1 << 30


class Kernel:
    """What may be locked of it, and what is."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.mapped, self.most = allowed, dict[int, int](), 0
        self.opened = []
        self._rooms = []

    def perf_event_open(self, *_: object) -> int:
        self.opened.append(_DESCRIPTOR)
        return _DESCRIPTOR

    def map_ring(self, fd: int, size: int) -> int:
        if sum(self.mapped.values()) + size > self.allowed:
            raise OSError(errno.EPERM, "Operation not permitted", "mmap")
        room = ctypes.create_string_buffer(1)  # an address of its own; nothing is read there before it is filled
        self._rooms.append(room)
        self.mapped[address := ctypes.addressof(room)] = size
        self.most = max(self.most, sum(self.mapped.values()))
        return address

    def unmap_ring(self, address: int, size: int) -> None:
        assert self.mapped.pop(address) == size


@pytest.fixture
def kernel(monkeypatch):
    close = os.close

    def make(allowed=1 << 40):
        made = Kernel(allowed)
        monkeypatch.setattr(perf_event, "perf_event_open", made.perf_event_open)
        monkeypatch.setattr(os, "close", lambda fd: made.opened.remove(fd) if fd == _DESCRIPTOR else close(fd))
        monkeypatch.setattr(perf_event, "map_ring", made.map_ring)
        monkeypatch.setattr(perf_event, "unmap_ring", made.unmap_ring)
        return made

    return make


@pytest.mark.parametrize(
    ("cpus", "size"), [(1, 16 * MIB), (8, 16 * MIB), (9, 8 * MIB), (96, MIB), (256, MIB // 2), (1024, MIB // 8)]
)
@pytest.mark.parametrize("stacks", [False, True])
def test_the_size_by_the_number_of_cpus(kernel, cpus, size, stacks):
    machine = kernel()
    rings = Rings(range(cpus), stacks=stacks)
    assert rings.size == size
    of = {kind: {ring.size for ring in rings if ring.kind == kind} for kind in (MINOR, MAJOR, SIDE, STACKS)}
    assert of[MINOR] == {size}
    assert of[STACKS] == ({size} if stacks else set())
    assert of[MAJOR] == {max(size // 8, mmap.PAGESIZE)}
    assert of[SIDE] == {min(max(size // 4, mmap.PAGESIZE), MIB)}
    assert len(list(rings)) == cpus * (4 if stacks else 3)
    assert sum(ring.size for ring in rings if ring.kind == MINOR) <= 128 * MIB
    rings.close()
    assert not machine.mapped
    assert not machine.opened


def test_no_room_for_256_cpus_is_reported_and_nothing_is_left(kernel):
    machine = kernel(allowed=256 * 60 * 1024)
    with pytest.raises(Unavailable, match="no room for the kernel's buffers"):
        Rings(range(256))
    assert not machine.mapped
    assert not machine.opened
    assert machine.most > 0
