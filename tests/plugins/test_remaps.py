"""What is known of mappings that munmap() and mremap() change, against a model that knows each page."""

import random

import pytest

from wstrace.batch import Dictionary
from wstrace.schema import KIND_ANON, KIND_FILE, KIND_SHIFT, PROCESS_FORK, SPACE_MAP
from wstrace_plugins.mapped_files.spaces import AddressSpaces
from wstrace_plugins.page_faults.linux.calls import MREMAP_DONTUNMAP, Call, space_rows

PAGE, PAGES = 4096, 48
#: A page of a file: its inode and its number there.
Known = tuple[int, int]


def applied(spaces: AddressSpaces, rows: list[tuple[int, ...]]) -> None:
    for time, pid, event, start, end, *rest in rows:
        spaces.apply(event, time, pid, start, end, tuple(rest))


def known(spaces: AddressSpaces, pid: int, time: int) -> dict[int, Known]:
    """What lies in each page of a process."""
    found = {}
    for start, end, (mapping, _) in spaces.process(pid).at(time).rows():
        for at in range(start, end, PAGE):
            found[at // PAGE] = mapping.ino, (mapping.offset + at - mapping.start) // PAGE if mapping.ino else 0
    return found


class Machine:
    """The address space of one process as the kernel has it, and what rows tell of it."""

    def __init__(self, seed: int) -> None:
        self.random, self.spaces, self.time = random.Random(seed), AddressSpaces(Dictionary()), 0
        self.truth = {}

    def span(self) -> tuple[int, int]:
        start = self.random.randrange(PAGES - 1)
        return start, self.random.randint(1, min(12, PAGES - start))

    def map(self) -> None:
        start, n = self.span()
        ino, first = self.random.randint(0, 3), self.random.randrange(20)
        self.time += 10
        self.truth |= {start + i: (ino, first + i if ino else 0) for i in range(n)}
        flags = (KIND_FILE if ino else KIND_ANON) << KIND_SHIFT | 1
        row = (self.time, 7, SPACE_MAP, start * PAGE, (start + n) * PAGE, first * PAGE * bool(ino), ino, 0, ino, flags)
        applied(self.spaces, [row])

    def called(self, name: str, *arguments: int, result: int = 0) -> None:
        self.time += 10
        call = Call(name, 7, self.time - 5, self.time, arguments, result)
        applied(self.spaces, space_rows(call))

    def unmap(self) -> None:
        start, n = self.span()
        for page in range(start, start + n):
            self.truth.pop(page, None)
        self.called("munmap", start * PAGE, n * PAGE - self.random.randrange(PAGE))

    def remap(self) -> None:
        """Moves some pages that are mapped, of one mapping or (Linux 6.17) of several, and lets one grow or shrink."""
        start, old = self.span()
        while old and any(page not in self.truth for page in range(start, start + old)):
            old -= 1
        if not old:
            return
        moved = [self.truth[page] for page in range(start, start + old)]
        ino, first = moved[0]
        one = all(page == (ino, first + i if ino else 0) for i, page in enumerate(moved))
        new = self.random.randint(1, 12) if one else old
        free = all(page not in self.truth for page in range(start + old, start + new))
        to = self.random.choice([page for page in range(2 * PAGES) if page + new <= start or page >= start + old]
                                + [start] * free)  # fmt: skip
        stays = self.random.random() < 0.2 and new == old and to != start
        now = moved[:new] + [(ino, first + i if ino else 0) for i in range(old, new)]
        for page in range(start, start + old):
            if not stays:
                del self.truth[page]
        self.truth |= {to + i: page for i, page in enumerate(now)}
        flags = 3 | MREMAP_DONTUNMAP * stays
        self.called("mremap", start * PAGE, old * PAGE, new * PAGE, flags, result=to * PAGE)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_reported_is_what_is_mapped(seed):
    machine = Machine(seed)
    for _ in range(150):
        machine.random.choice((machine.map, machine.unmap, machine.remap, machine.remap))()
        assert known(machine.spaces, 7, machine.time) == machine.truth


def test_a_child_moves_what_it_has_from_its_parent_in_its_own_memory():
    spaces = AddressSpaces(Dictionary())
    applied(spaces, [(1, 7, SPACE_MAP, 0x10000, 0x12000, 0, 5, 0, 42, KIND_FILE << KIND_SHIFT)])
    spaces.apply_process(PROCESS_FORK, 5, 8, 7)
    applied(spaces, space_rows(Call("mremap", 8, 10, 20, (0x10000, 0x2000, 0x4000, 3), 0x90000)))
    assert known(spaces, 8, 20) == {0x90 + i: (42, i) for i in range(4)}
    assert known(spaces, 7, 20) == {0x10 + i: (42, i) for i in range(2)}
