"""Programs that call functions of new names without end: every fault has a new call site."""

from __future__ import annotations

#: A function after the other, of one page each.
ONE_PAGE = """
import mmap, time
memory, page = mmap.mmap(-1, 1 << 24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
code = (lambda page: memory.__setitem__(page, 1)).__code__
make, end, i = type(lambda: 0), time.monotonic() + SECONDS, 0
while time.monotonic() < end:
    i, page = i + 1, (page + 4096) % (1 << 24)
    if not page:
        memory.madvise(mmap.MADV_DONTNEED)
    name = f"n{i}_" + "x" * LONG
    make(code.replace(co_name=name, co_qualname=name, co_filename="/f" + name), {"memory": memory})(page)
"""
#: The same, and each of them touches a page by each of its 4,096 lines: more than 100,000 call sites a second.
MANY_LINES = """
import mmap, time
memory = mmap.mmap(-1, 1 << 24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
code = compile("\\n".join(f"memory[{page}] = 1" for page in range(0, 1 << 24, 4096)), "/f", "exec")
end, i = time.monotonic() + SECONDS, 0
while time.monotonic() < end:
    i += 1
    exec(code.replace(co_name=f"n{i}", co_qualname=f"n{i}"), {"memory": memory})
    memory.madvise(mmap.MADV_DONTNEED)
print(4096 * i)
"""


def new_functions(seconds: float, long: int = 0, *, lines: bool = False) -> str:
    """The program, for so many seconds, of names that have so many characters; lines: the one of many lines."""
    return (MANY_LINES if lines else ONE_PAGE).replace("SECONDS", str(seconds)).replace("LONG", str(long))
