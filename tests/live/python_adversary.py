# ruff: noqa: PTH123
"""Targets that make code objects of one size on different lines, each freed before the next one takes its address.

`python python_adversary.py OUT KIND [N]`; KIND: functions, modules, files, tables, reload, classes.
"""

import contextlib
import ctypes
import importlib
import json
import mmap
import os
import sys

OUT, KIND = sys.argv[1:3]
N, P = int((sys.argv[3:] or ["2000"])[0]), mmap.PAGESIZE
m = mmap.mmap(-1, (N + 1) * P)
with contextlib.suppress(OSError):  # a kernel without huge pages
    m.madvise(mmap.MADV_NOHUGEPAGE)
base = ctypes.addressof(ctypes.c_char.from_buffer(m))
spare = N * P
m[spare] = 1
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
scope = {"m": m, "o": 0}


def run(text, name, offset):
    scope["o"] = offset
    exec(compile(text, name, "exec"), scope)


def functions():
    """exec'd functions of one size; their line differs, and their name."""
    texts = ["\n" * (i % 7) + f"def g{i:04d}(m, o):\n m[o] = 1\ng{i:04d}(m, o)\ndel g{i:04d}\n" for i in range(N)]
    for i in range(N):
        run(texts[i], "t.py", i * P)
        yield f"g{i:04d}", i % 7 + 2, "t.py"


def modules():
    """exec'd modules of one size, which are all `<module>` at line 1; each runs once more on a page that is there."""
    texts, names = ["\n" * (i % 7) + "m[o] = 1\n" for i in range(N)], [f"t{i:04d}.py" for i in range(N)]
    for i in range(N):
        run(texts[i], names[i], i * P)
        run(texts[i], names[i], spare)
        yield "<module>", i % 7 + 1, names[i]


def files():
    """The same text under names of one length: nothing but the file differs."""
    names = [f"t{i:04d}.py" for i in range(N)]
    for i in range(N):
        run("m[o] = 1\n", names[i], i * P)
        yield "<module>", 1, names[i]


def tables():
    """Modules whose line tables have 200 to 290 bytes and differ near their end alone."""
    for i in range(min(N, 500)):
        lines = 40 + i // 7 % 17
        run("a = 1\n" * lines + "\n" * (i % 7) + "m[o] = 1\n", "t.py", i * P)
        yield "<module>", lines + i % 7 + 1, "t.py"


def reload():
    """importlib.reload() of a module that was written anew, one line longer or shorter."""
    sys.dont_write_bytecode = True
    folder = os.path.dirname(OUT)
    sys.path.append(folder)
    path = os.path.join(folder, "again.py")
    module = None
    for i in range(min(N, 100)):
        with open(path, "w") as file:
            file.write("\n" * (i % 7) + "def touch(m, o):\n    m[o] = 1\n")
        importlib.invalidate_caches()
        module = importlib.reload(module) if module else importlib.import_module("again")
        module.touch(m, i * P)
        yield "touch", i % 7 + 2, path


def classes():
    """dataclasses and namedtuples, whose methods are exec'd by the standard library; each is freed."""
    from collections import namedtuple
    from dataclasses import make_dataclass

    texts = ["\n" * (i % 7) + "m[o] = made.a - made.a + 1\n" for i in range(N)]
    for i in range(min(N, 200)):
        kind = make_dataclass(f"D{i:03d}", ["a", "b"]) if i % 2 else namedtuple(f"T{i:03d}", "a b")
        scope["made"] = kind(i, i)
        run(texts[i], "t.py", i * P)
        del scope["made"], kind
        yield "<module>", i % 7 + 1, "t.py"


regions = []
for i, (function, line, file) in enumerate(globals()[KIND]()):
    regions.append({"name": KIND, "base": base + i * P, "pages": 1, "pid": os.getpid(), "function": function,
                    "line": line, "file": file})  # fmt: skip
with open(OUT, "w") as f:
    json.dump(regions, f)
