"""What is found out of images while stacks are unwound: the vdso's rules, and the interpreter's loop."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from wstrace_plugins.stacks.dynamic_symbols import DynamicSymbols
from wstrace_plugins.stacks.linux.images import Loop, _image, _vdso


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


#: an interpreter's loop, and another function, of which the compiler puts what is rarely run elsewhere
PARTED = """
int rare(int, char *) __attribute__((cold));
int used(int, char *);
int other(int n) {
    char kept[64];
    if (__builtin_expect(used(n, kept) < 0, 0)) return rare(n, kept) + kept[n];
    return n;
}
int _PyEval_EvalFrameDefault(int n) {
    char kept[4000];
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += used(i, kept) * used(sum, kept);
        if (__builtin_expect(sum < 0, 0)) { sum += rare(sum, kept) + rare(i, kept); }
    }
    return sum + kept[n];
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)")
def test_the_part_of_the_loop_that_is_put_elsewhere_is_the_loops(tmp_path: Path) -> None:
    """`_PyEval_EvalFrameDefault.cold`: a frame there that is not known would let the frame of a caller be told."""
    library = tmp_path / "libpython.so"
    (tmp_path / "parted.c").write_text(PARTED)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, tmp_path / "parted.c"], check=True)
    names = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    at = {name: int(address, 16) for address, _, name in re.findall(r"^(\w+) (\w) (\S+)$", names, re.M)}
    data = library.read_bytes()
    image = _image(lambda offset, size: data[offset : offset + size])
    assert image is not None
    loop = Loop.of(image)
    start, part = at["_PyEval_EvalFrameDefault"], at["_PyEval_EvalFrameDefault.cold"]
    assert not start <= part < loop.end
    assert loop.has(image, start)
    assert loop.has(image, part)
    assert not any(loop.has(image, at[name]) for name in ("other", "other.cold"))
    assert not any(loop.has(image, address) for address in (0, loop.end, 1 << 40, 1 << 63))
