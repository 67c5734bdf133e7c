"""What is found out of images while stacks are unwound: the vdso's rules, and the interpreter's loop."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from wstrace_stacks.dynamic_symbols import DynamicSymbols
from wstrace_stacks.linux.images import _vdso


def test_a_function_of_the_vdso_has_its_rule():
    image = _vdso()
    if image is None:
        pytest.skip("only on Linux with a vdso")
    start, end = image.symbols.range_of(b"__vdso_clock_gettime")
    assert start < end
    assert image.unwind.rule(start) is not None


def test_the_loop_of_this_interpreter_is_where_the_loader_says():
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    address = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value
    [(place, path)] = [
        (int(line[0].split("-")[0], 16) - int(line[2], 16), line[5]) for line in maps
        if len(line) > 5 and int(line[0].split("-")[0], 16) <= address < int(line[0].split("-")[1], 16)
    ]  # fmt: skip
    data = Path(path).read_bytes()
    start, end = DynamicSymbols(lambda at, size: data[at : at + size]).range_of(b"_PyEval_EvalFrameDefault")
    assert end > start
    assert start in (address - place, address)  # of a shared library or PIE; of a program at a fixed address


def test_any_bytes_give_symbols_or_none():
    data = bytearray(Path("/proc/self/exe").read_bytes()[: 1 << 20])
    dice = np.random.default_rng(5)
    for _ in range(200):
        broken = bytearray(data[: dice.integers(0, len(data))])
        for at in dice.integers(0, min(len(broken), 4096) or 1, 8):
            if len(broken):
                broken[at] = dice.integers(0, 256)
        symbols = DynamicSymbols(lambda at, size, broken=broken: bytes(broken[at : at + size]))
        assert len(symbols.range_of(b"main")) == 2
