# ruff: noqa: PTH123
"""A target whose lines touch pages of their own again and again, and which knows them: writes its regions.

`python python_lines_truth.py OUT SECONDS`. A comment `# @region` marks the line that touches a region's pages. Each
round has regions of its own, at addresses that no other round had.
"""

import contextlib
import ctypes
import json
import mmap
import re
import struct
import sys
import threading
import time

OUT, SECONDS, P, N = sys.argv[1], float(sys.argv[2]), mmap.PAGESIZE, 150
regions, keep = [], []


def region(name):
    m = mmap.mmap(-1, N * P)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    keep.append(m)
    regions.append([ctypes.addressof(ctypes.c_char.from_buffer(m)), name])
    return m


def at(m):
    return ctypes.addressof(ctypes.c_char.from_buffer(m))


def mixed(a, b, c, d, e):
    total = 0
    for i in range(N):
        a[i * P] = 1  # @assigned
        total += b[i * P]  # @read
        struct.pack_into("<I", c, i * P, 5)  # @packed
        ctypes.memset(d + i * P, 7, 8)  # @memset
        try:
            e[i * P] = 3  # @tried
            raise KeyError(i)
        except KeyError:
            total -= 1
    return total


def walk(m):
    for i in range(N):
        yield m[i * P]  # @yielded


def deep(m, i, stop):
    m[i * P] = 1  # @deep
    if i + 1 < stop:
        deep(m, i + 1, stop)


class Key:
    def __init__(self, m):
        self.m = m

    def touch(self, i):
        with memoryview(self.m) as view:
            view[i * P] = 9  # @viewed
        return i


def worker(m, n):
    for i in range(N):
        m[i * P] = 1  # @thread
        n.seek(i * P)
        n.write(b"q")  # @written


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int), ("second", ctypes.c_int)]


def parts(added, compared, read, stored):
    """Where Debian's 3.11 keeps what it executes at a place of its own, and an older pointer at the usual one."""
    total = bytearray()
    one, other = memoryview(added), memoryview(compared)
    for i in range(N):
        part = one[i * P : i * P + 8]
        total += part  # @added
        part = other[i * P : i * P + 8]
        if part == b"12345678":  # @compared
            break
        pair = Pair.from_buffer(read, i * P)
        total.append(pair.second)  # @attribute
        pair = Pair.from_buffer(stored, i * P)
        pair.first = 3  # @stored


class Box:
    __slots__ = ("view",)

    def __getitem__(self, i):
        return self.view[i * P]  # @subscript

    def __contains__(self, i):
        return self.view[i * P] == 300  # @contained

    def __iadd__(self, i):
        self.view[i * P] = i & 7  # @in_place
        return self


def called(*arguments, **named):
    return int.from_bytes(arguments[0], "little") + len(named)  # @from_bytes


def operators(*boxes):
    views = [memoryview(one) for one in boxes]
    box, within, added = Box(), Box(), Box()
    box.view, within.view, added.view = views[:3]
    kept, names = {}, set()
    for i in range(N):
        kept[i] = box[i]
        if i in within:
            break
        added += i
        part = views[3][i * P : i * P + 16]
        b"".join((b"a", part, b"b"))  # @joined
        part = views[4][i * P : i * P + 4]
        while any(part):  # @tested
            break
        part = views[5][i * P : i * P + 4]
        first, *_ = part  # @unpacked
        part = views[6][i * P : i * P + 4]
        names.add(hash(part.toreadonly()) if part.readonly else bytes(part))  # @hashed
        part = views[7][i * P : i * P + 4]
        kept[i] = f"{first}{part.tolist()}"  # @formatted
    return kept, names


def calls(read):
    view = memoryview(read)
    for i in range(N):
        called(view[i * P : i * P + 4], *(1, 2), key=i)


def round_():
    names = ("subscript", "contained", "in_place", "joined", "tested", "unpacked", "hashed", "formatted")
    operators(*map(region, names))
    calls(region("from_bytes"))
    parts(region("added"), region("compared"), region("attribute"), region("stored"))
    mixed(region("assigned"), region("read"), region("packed"), at(region("memset")), region("tried"))
    sum(walk(region("yielded")))
    deep(region("deep"), 0, N)
    key = Key(region("viewed"))
    sorted(range(N), key=lambda i: key.touch(i))
    thread = threading.Thread(target=worker, args=(region("thread"), region("written")))
    thread.start()
    thread.join()
    m = region("comprehension")
    return {i: m.__setitem__(i * P, 2) for i in range(N)}  # @comprehension


end = time.monotonic() + SECONDS
while time.monotonic() < end:
    round_()
    time.sleep(0.1)
time.sleep(0.8)  # what was taken last is read from a process that is there
marks, function = {}, ""
with open(__file__, encoding="utf-8") as text:
    for number, line in enumerate(text, 1):
        if hit := re.match(r"\s*(?:def|class) (\w+)", line):
            function = hit[1]
        if hit := re.search(r"# @(\w+)$", line):
            marks[hit[1]] = (function, number)
functions = {"viewed": "Key.touch", "comprehension": "round_", "subscript": "Box.__getitem__"}
functions |= {"contained": "Box.__contains__", "in_place": "Box.__iadd__"}
if sys.version_info < (3, 12):
    functions["comprehension"] += ".<locals>.<dictcomp>"
with open(OUT, "w") as f:
    json.dump([[begin, begin + N * P, functions.get(name, marks[name][0]), marks[name][1]]
               for begin, name in regions], f)  # fmt: skip
