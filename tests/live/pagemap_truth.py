"""Touches pages line by line and reads its own pagemap before and after each: writes which line made each page arrive.

A page has arrived when its entry has another page frame than before the step (read as root). Run as: FILE FOLDER, where
FILE gets `page line` of each page that is there at the end, line 0 of those that no line's touch brought, then
`copies N`: page frames that four children and their parent made beyond those that they shared.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
PAGE, N = mmap.PAGESIZE, 256
BIG, HUGE = N * PAGE, PAGE * PAGE // 8
READ_WRITE, SHARED, PRIVATE, PRIVATE_ANON, FIXED, AT, POPULATE, MAYMOVE = 3, 1, 2, 0x22, 0x10, 0x100000, 0x8000, 1
DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE, PAGEOUT, COLLAPSE = 4, 8, 14, 15, 21, 25
PAGEMAP = os.open("/proc/self/pagemap", os.O_RDONLY)
FOLDER = sys.argv[2]
NOBODY = 0
truth: dict[int, int] = {}  # page -> line
frames: dict[int, int] = {}
zero = -1


def mapped(address: int = 0, size: int = BIG, flags: int = 0, advice: int = NOHUGEPAGE) -> int:
    """Private memory, at that address if one is given."""
    got = libc.mmap(address, size, READ_WRITE, PRIVATE_ANON | flags, -1, 0)
    assert not address or got == address
    libc.madvise(got, size, advice)  # refused by a kernel without huge pages
    return got


def aligned(advice: int) -> int:
    """Private memory of a huge page."""
    start = -(-mapped(size=2 * HUGE) // HUGE) * HUGE
    libc.madvise(start, HUGE, advice)
    return start


def frames_at(start: int, pages: int) -> list[int]:
    """The frame of each page; 0 = it is not there."""
    raw = memoryview(os.pread(PAGEMAP, pages * 8, start // PAGE * 8)).cast("Q")
    return [entry & (1 << 55) - 1 if entry >> 63 else 0 for entry in raw]


def look(start: int, pages: int, line: int, *, keep: bool = False) -> None:
    """Notes what has arrived at these pages since the last look, as of that line; keep: who had a page keeps it."""
    for page, frame in enumerate(frames_at(start, pages), start // PAGE):
        if frame in (0, zero):
            forget(page * PAGE, 1)
        elif frames.get(page) != frame:
            truth[page] = truth.get(page, line) if keep else line
            frames[page] = frame


def write(start: int, size: int = BIG, *, keep: bool = False, among: tuple[int, int] | None = None) -> None:
    """Writes; what has arrived at the pages, or those `among`, is the caller's line's."""
    ctypes.memset(start, 1, size)
    look(*(among or (start, size // PAGE)), sys._getframe(1).f_lineno, keep=keep)


def read(start: int, size: int = BIG, *, among: tuple[int, int] | None = None) -> None:
    """As write(), by reading."""
    ctypes.string_at(start, size)
    look(*(among or (start, size // PAGE)), sys._getframe(1).f_lineno)


def forget(start: int, pages: int = N) -> None:
    """Nothing is at these pages any more."""
    for page in range(start // PAGE, start // PAGE + pages):
        truth.pop(page, None)
        frames.pop(page, None)


probe = mapped()
ctypes.string_at(probe, 1)  # the zero page's frame
zero = frames_at(probe, 1)[0]

# loaded; after a fork whose child ends, written again: these are copies only where the tracer still looks at the child
a = mapped()
write(a)
if not os.fork():
    os._exit(0)
os.wait()
write(a, keep=True)

# loaded, then written while a child has it: these are copies, and the parent's page stays its own
b = mapped()
write(b)
ready, go = os.pipe()
if not (child := os.fork()):
    os.read(ready, 1)
    os._exit(0)
write(b, BIG // 2, keep=True)
os.write(go, b"x")
os.waitpid(child, 0)

# moved and grown; then another tenant of the old place
c = mapped()
write(c)
libc.mmap(c + BIG, PAGE, READ_WRITE, PRIVATE_ANON | AT, -1, 0)  # so that it cannot grow in its place
moved = libc.mremap(c, BIG, 2 * BIG, MAYMOVE)
assert moved != c
for i in range(N):
    truth[moved // PAGE + i], frames[moved // PAGE + i] = truth.pop(c // PAGE + i), frames.pop(c // PAGE + i)
write(moved, 2 * BIG)
mapped(c, BIG, AT)
write(c, BIG // 2)

# discarded in part, and brought again
d = mapped()
write(d)
libc.madvise(d, BIG // 2, DONTNEED)
look(d, N, NOBODY)
write(d, BIG // 4)

# freed lazily, and written again before anybody needs the memory
e = mapped()
write(e)
libc.madvise(e, BIG, FREE)
write(e)

# zero pages, half of them then written
f = mapped()
read(f)
write(f, BIG // 2)

# an address used again, by munmap and by a mapping over it
g = mapped()
write(g)
libc.munmap(g, BIG)
forget(g)
mapped(g, BIG, AT)
write(g, BIG // 2)
mapped(g, BIG // 4, FIXED)
look(g, N, NOBODY)
write(g, BIG // 8)

# a file's pages come with one that is touched: written in small pieces and in one
for name, piece in (("small", PAGE), ("large", BIG)):
    with Path(FOLDER, name).open("wb+", buffering=0) as file:
        for _ in range(0, BIG, piece):
            file.write(bytes(piece))
        h = libc.mmap(0, BIG, READ_WRITE, SHARED, file.fileno(), 0)
    read(h + 3 * PAGE, 1, among=(h, N))
    read(h + 200 * PAGE, 1, among=(h, N))
    write(h + 100 * PAGE, PAGE, among=(h, N))

# a page of a file that is written to in a private mapping is another one
p = libc.mmap(0, BIG, READ_WRITE, PRIVATE, os.open(f"{FOLDER}/small", os.O_RDONLY), 0)
read(p + 3 * PAGE, 1, among=(p, N))
write(p + 2 * PAGE, 4 * PAGE)
read(p + 64 * PAGE, 1, among=(p, N))

# pages that no fault brought: populated, and read into by the device
i = mapped(flags=POPULATE)
look(i, N, NOBODY)
j = mapped()
with contextlib.suppress(OSError):  # not every file system has it
    direct = os.open(f"{FOLDER}/large", os.O_RDONLY | os.O_DIRECT)
    os.fsync(direct)
    assert libc.read(direct, j, BIG) == BIG
    look(j, N, NOBODY)

# a huge page by one touch; another one put together from pages of two lines and of none
k = aligned(HUGEPAGE)
write(k + 5 * PAGE, 1, among=(k, HUGE // PAGE))
m = aligned(NOHUGEPAGE)
write(m, BIG // 2)
write(m + BIG // 2, BIG // 4)
libc.madvise(m, HUGE, HUGEPAGE)
libc.madvise(m, HUGE, COLLAPSE)
look(m, HUGE // PAGE, NOBODY, keep=True)

# swapped out where there is a swap, and in again: it keeps who brought it
n = mapped()
write(n)
libc.madvise(n, BIG, PAGEOUT)
ctypes.string_at(n, BIG)
look(n, N, NOBODY, keep=True)

# one parent and four children write the same 1,024 pages: the last writer takes over what the others copied
o = mapped(size=4 * BIG)
write(o, 4 * BIG)
shown, tell = os.pipe()
children = []
for number in range(4):
    children.append(os.fork())
    if not children[-1]:
        PAGEMAP = os.open("/proc/self/pagemap", os.O_RDONLY)
        ctypes.memset(o, 2, 4 * BIG)
        Path(FOLDER, f"child{number}").write_text("\n".join(map(str, frames_at(o, 4 * N))))
        os.write(tell, b"x")
        os.read(ready, 1)
for _ in children:
    os.read(shown, 1)
write(o, 4 * BIG, keep=True)
every = set(frames_at(o, 4 * N))
for number in range(4):
    every |= {int(line) for line in Path(FOLDER, f"child{number}").read_text().split()}
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)

rows = [f"{page} {line}" for page, line in sorted(truth.items())]
Path(sys.argv[1]).write_text("\n".join([*rows, f"copies {len(every) - 4 * N}"]))
os._exit(0)
