# ruff: noqa: PTH123, E731
"""A target that knows which line touches which page: writes its regions, each with the place that is to be named.

`python python_truth.py OUT [PAGES]`. A comment `# @region:function` marks the line that touches a region's pages.
"""

import asyncio
import contextlib
import ctypes
import json
import mmap
import os
import re
import sys
import threading

try:
    import numpy as np
except ImportError:
    np = None

OUT, N, P = sys.argv[1], int((sys.argv[2:] or ["40"])[0]), mmap.PAGESIZE
regions, keep = [], []
libc, pylibc = ctypes.CDLL(None), ctypes.PyDLL(None)
for one in (libc, pylibc):
    one.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def address(m):
    return ctypes.addressof(ctypes.c_char.from_buffer(m))


def region(name):
    m = mmap.mmap(-1, N * P)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    keep.append(m)
    regions.append({"name": name, "base": address(m), "pages": N, "pid": os.getpid()})
    return m


def plain(m):
    for i in range(0, len(m), P):
        m[i] = 1  # @plain:plain


# fmt: off
def two(m1, m2):
    for i in range(0, len(m1), P):
        m1[i] = 1  # @two_a:two
        x = i + 1
        m2[i] = (x and
                 2)  # its line is that of the statement's begin


def multi(m):
    for i in range(0, len(m), P):
        (m
         .__setitem__)(i,  # @multi:multi
                       1)
# fmt: on


def inner(m):
    for i in range(0, len(m), P):
        m[i] = 3  # @nested:inner


def outer(m):
    inner(m)


def memset_free(m):
    libc.memset(address(m), 1, len(m))  # @memset_free:memset_free


def memset_gil(m):
    pylibc.memset(address(m), 1, len(m))  # @memset_gil:memset_gil


def slice_copy(m, source):
    m[:] = source  # @slice:slice_copy


def kernel_read(m, f):
    f.readinto(m)  # @kernel:kernel_read


def generator(m):
    for i in range(0, len(m), P):
        m[i] = 1  # @generator:generator
        yield i


def genexpr(m):
    return sum(m.__setitem__(i, 1) or 1 for i in range(0, len(m), P))  # @genexpr:genexpr.<locals>.<genexpr>


def comprehension(m):
    set_ = m.__setitem__
    return [set_(i, 1) for i in range(0, len(m), P)]  # @comprehension:comprehension.<locals>.<listcomp>|comprehension


async def coroutine(m, start):
    for i in range(start, len(m), 2 * P):
        m[i] = 1  # @async:coroutine
        await asyncio.sleep(0)


async def async_generator(m):
    for i in range(0, len(m), P):
        m[i] = 1  # @async_generator:async_generator
        yield i


async def asynchronous(m1, m2):
    await asyncio.gather(coroutine(m1, 0), coroutine(m1, P))
    async for _ in async_generator(m2):
        pass


def work(m):
    for i in range(0, len(m), P):
        m[i] = 1  # @thread:work


def work_without_gil(m, at):
    libc.memset(at, 5, len(m))  # @c_thread:work_without_gil


def sort_key(m):
    def touch(i):
        m[i] = 1  # @sort_key:sort_key.<locals>.touch
        return -i

    return sorted(range(0, len(m), P), key=touch)


def deep(m, n):
    if n:
        return deep(m, n - 1)
    for i in range(0, len(m), P):
        m[i] = 1  # @deep:deep
    return None


class Dunder:
    def __init__(self, m):
        for i in range(0, len(m), P):
            self[m, i] = 1

    def __setitem__(self, k, v):
        m, i = k
        m[i] = v  # @dunder:Dunder.__setitem__


def handler(m):
    for i in range(0, len(m), P):
        try:
            raise KeyError
        except KeyError:
            m[i] = 1  # @except:handler


@contextlib.contextmanager
def manager(m, i):
    yield
    m[i] = 1  # @context:manager


def with_manager(m):
    for i in range(0, len(m), P):
        with manager(m, i):
            pass


def forked(m):
    for i in range(0, len(m), P):
        m[i] = 1  # @fork:forked


def np_fill(m):
    np.frombuffer(m, np.uint8).fill(7)  # @np_fill:np_fill


def np_add(m):
    out = np.frombuffer(m, np.float64)
    np.add(1.0, 2.0, out=out)  # @np_add:np_add


def np_list(m):
    np.frombuffer(m, np.uint8)[::P] = [1] * (len(m) // P)  # @np_list:np_list


class Späße:
    def Методы(self, m):
        for i in range(0, len(m), P):
            m[i] = 1  # @unicode:Späße.Методы


def main():
    source = b"x" * (N * P)
    plain(region("plain"))
    two(region("two_a"), region("two_b"))
    multi(region("multi"))
    outer(region("nested"))
    memset_free(region("memset_free"))
    memset_gil(region("memset_gil"))
    slice_copy(region("slice"), source)
    with open("/dev/zero", "rb", buffering=0) as f:
        kernel_read(region("kernel"), f)
    for _ in generator(region("generator")):
        pass
    genexpr(region("genexpr"))
    comprehension(region("comprehension"))
    asyncio.run(asynchronous(region("async"), region("async_generator")))
    shares = [(work, (region("thread"),)) for _ in range(6)]
    shares += [(work_without_gil, (m, address(m))) for m in (region("c_thread") for _ in range(4))]
    threads = [threading.Thread(target=target, args=args) for target, args in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sort_key(region("sort_key"))
    deep(region("deep"), 40)
    deep(region("deep"), 150)
    Dunder(region("dunder"))
    handler(region("except"))
    with_manager(region("context"))
    Späße().Методы(region("unicode"))
    if np is not None:
        np_fill(region("np_fill"))
        np_add(region("np_add"))
        np_list(region("np_list"))
    pid = os.fork()
    if not pid:
        forked(region("fork"))
        with open(OUT + ".child", "w") as f:
            json.dump(regions[-1:], f)
        os._exit(0)
    os.waitpid(pid, 0)


m = region("module")
for i in range(0, len(m), P):
    m[i] = 1  # @module:<module>
m = region("lambda")
f = lambda i: m.__setitem__(i, 1)  # @lambda:<lambda>
for i in range(0, len(m), P):
    f(i)
m = region("exec")
exec(compile("def made(m):\n  for i in range(0, len(m), 4096):\n    m[i] = 1\nmade(m)\n", "<made>", "exec"))
main()
marks = {}
with open(__file__, encoding="utf-8") as text:
    for number, line in enumerate(text, 1):
        if hit := re.search(r"# @(\w+):(\S+)", line):
            marks[hit[1]] = (hit[2], number, __file__)
marks["two_b"] = ("two", marks["two_a"][1] + 2, __file__)
marks["exec"] = ("made", 3, "<made>")
with open(OUT + ".child") as f:
    regions += json.load(f)
for one in regions:
    one["function"], one["line"], one["file"] = marks[one["name"]]
with open(OUT, "w") as f:
    json.dump(regions, f)
