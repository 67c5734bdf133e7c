"""What is known of code addresses."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

import re
import shutil
import subprocess

import pytest

from wstrace_plugins.stacks.linux.images import Loop, _image, _vdso


def test_a_function_of_the_vdso_has_its_rule():
    image = _vdso()
    if image is None:
        pytest.skip("only on Linux with a vdso")
    start, size = image.elf.symbol(b"__vdso_clock_gettime")
    assert size
    assert image.rule(start) is not None


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
