"""What is known of code addresses."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from wstrace.batch import Dictionary
from wstrace.schema import FRAME_INTERPRETER, KIND_FILE, KIND_SHIFT, MAP_EXECUTE, MAPPING
from wstrace.testing import batch_of

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from wstrace_plugins.os.elf import Elf, read_of
from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.linux.images import Loop, _image, _vdso
from wstrace_plugins.stacks.linux.known_code import KnownCode


def test_two_files_of_one_name_have_interpreter_loops_of_their_own(monkeypatch):
    """In two containers `/usr/bin/python3` is not the same file."""
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=[2, 3], time_ns=1, pid=[2**30, 2**30 + 1], start=0x10000, end=0x20000, offset=0,
            file="/usr/bin/python3", dev=8, ino=[11, 12], build_id="", flags=MAP_EXECUTE | KIND_FILE << KIND_SHIFT,
        )
    )  # fmt: skip
    loops = {11: (0x100, 0x100), 12: (0x300, 0x100)}

    def image(mapping):
        rule = {"rule": lambda address: rules.FRAME_POINTER, "first_rule": lambda address: rules.FRAME_POINTER}
        elf = SimpleNamespace(address_of=lambda offset: offset, symbol=lambda name, kinds: loops[mapping.ino])
        return SimpleNamespace(elf=elf, **rule)

    monkeypatch.setattr(code.images, "of", image)
    for own, inside, outside in ((2, 0x150, 0x350), (3, 0x350, 0x150)):
        code.begin([2**30], lambda rows, _, own=own: np.full(len(rows), own, "<u4"))
        numbers = code.numbers_of(np.zeros(2, np.intp), np.array([0x10001 + inside, 0x10001 + outside]))
        assert code.frames[numbers].T[5].tolist() == [FRAME_INTERPRETER, 0]


def test_a_function_of_the_vdso_has_its_rule():
    image = _vdso()
    if image is None:
        pytest.skip("only on Linux with a vdso")
    start, size = image.elf.symbol(b"__vdso_clock_gettime")
    assert size
    assert image.rule(start) is not None


def test_the_loop_of_this_interpreter_is_where_the_loader_says():
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    address = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value
    [(place, path)] = [
        (int(line[0].split("-")[0], 16) - int(line[2], 16), line[5]) for line in maps
        if len(line) > 5 and int(line[0].split("-")[0], 16) <= address < int(line[0].split("-")[1], 16)
    ]  # fmt: skip
    with Path(path).open("rb") as file:
        start, size = Elf(read_of(file.fileno())).symbol(b"_PyEval_EvalFrameDefault")
    assert size
    assert start in (address - place, address)  # of a shared library or PIE; of a program at a fixed address


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
def test_the_part_of_the_loop_that_is_put_elsewhere_is_the_loops(tmp_path):
    """`_PyEval_EvalFrameDefault.cold`: a frame there that is not known would show the frame of a caller."""
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
