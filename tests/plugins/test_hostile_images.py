"""Images that lie cost a bound: of memory, of bytes read; each in a process of its own, whose peak the kernel tells."""

import subprocess
import sys

import pytest
from kit.hostile_images import ELF, PE, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: sparse files and VmHWM"),
]
MIB = 1 << 20
RESOLVE = """
import sys, numpy as np
from wstrace.places import MappedFile
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.resolver import ImageResolver
read, original = [], ImageFile.read
def counted(self, offset, size):
    content = original(self, offset, size)
    read.append(size)
    return content
ImageFile.read = counted
resolver = ImageResolver()
# What is imported for the first file is no cost of this one.
resolver.resolve(MappedFile("/proc/self/status"), np.array([0], "u8"))
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
before = peak()
places = resolver.resolve(MappedFile(sys.argv[1]), np.arange(0, 1 << 26, 4096, dtype="u8"))
assert len(places) == 1 << 14
print(peak() - before, sum(read))
"""


@pytest.mark.parametrize("name", [*ELF, *PE])
def test_a_file_that_lies_costs_a_bound(name, tmp_path):
    file = write(tmp_path / "image", *(ELF.get(name) or PE[name])())
    done = subprocess.run([sys.executable, "-c", RESOLVE, str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    grown, read = map(int, done.stdout.split())
    assert grown * 1024 <= 216 * MIB, "256 MiB with the interpreter and numpy"
    assert read <= 160 * MIB


def test_a_file_within_the_bounds_still_has_its_names(tmp_path):
    import numpy as np

    from wstrace.places import MappedFile
    from wstrace_plugins.symbols.resolver import ImageResolver

    for name, function in (("as many symbols as are read", "_ZN4fooEv"), ("as many COFF symbols as are read", "")):
        file = write(tmp_path / "image", *(ELF.get(name) or PE[name])())
        (place,) = ImageResolver().resolve(MappedFile(str(file)), np.array([0x1100], "u8"))
        assert place.number
        assert place.function == function
