# ruff: noqa: PTH123
"""A target whose pages are touched by code that attrs and jinja2 have generated: which of its lines did.

`python python_generated.py OUT`. A C function touches the page, so that the generated code is the innermost frame.
"""

import contextlib
import ctypes
import functools
import json
import linecache
import mmap
import os
import re
import sys

import attr
import jinja2

N, P = 120, mmap.PAGESIZE
m = mmap.mmap(-1, 2 * N * P)
with contextlib.suppress(OSError):  # a kernel without huge pages
    m.madvise(mmap.MADV_NOHUGEPAGE)
base = ctypes.addressof(ctypes.c_char.from_buffer(m))
regions = []


def region(number, function, line, file):
    regions.append({"name": function, "base": base + number * P, "pages": 1, "pid": os.getpid(), "function": function,
                    "line": line, "file": file})  # fmt: skip


def toucher(number):
    return functools.partial(m.__setitem__, number * P)


for i in range(N):
    # classes with up to five converted attributes, one of which touches: the line of its call differs
    names = [f"a{at}" for at in range(i % 5 + 1)]
    made = attr.make_class(
        f"C{i:03d}", {name: attr.ib(converter=toucher(i) if name == names[-1] else abs) for name in names}
    )
    init = made.__init__
    init(object.__new__(made), *[1] * len(names))
    file = init.__code__.co_filename
    lines = linecache.getlines(file)
    (line,) = (at for at, text in enumerate(lines, 1) if re.search(rf"\bself\.{names[-1]} = ", text))
    region(i, init.__code__.co_qualname, line, file)

for i in range(N):
    # templates in which one of up to five filters touches
    environment = jinja2.Environment()
    last = i % 5
    for at in range(last + 1):
        environment.filters[f"f{at}"] = toucher(N + i) if at == last else abs
    text = "\n".join(f"{{{{ x|f{at} }}}}" for at in range(last + 1))
    name = f"t{i:03d}.html"
    source = environment.compile(text, name, name, raw=True)
    template = jinja2.Template.from_code(environment, compile(source, name, "exec"), {})
    template.render(x=1)
    (call,) = re.findall(rf"(t_\d+) = environment\.filters\['f{last}'\]", source)
    (line,) = (at for at, text in enumerate(source.splitlines(), 1) if re.search(rf"yield .*\b{call}\(", text))
    region(N + i, "root", line, name)

with open(sys.argv[1], "w") as f:
    json.dump(regions, f)
