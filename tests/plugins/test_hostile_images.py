"""Images that lie cost a bound: of memory, of bytes read; each in a process of its own, whose peak the kernel tells."""

import os
import struct
import subprocess
import sys
import tracemalloc

import pytest
from kit.hostile_images import ELF, PE, header, section, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: sparse files and VmHWM"),
]
MIB = 1 << 20
RESOLVE = """
import sys, numpy as np
from wstrace.interfaces import MappedFile
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

    from wstrace.interfaces import MappedFile
    from wstrace_plugins.symbols.resolver import ImageResolver

    for name, function in (("as many symbols as are read", "_ZN4fooEv"), ("as many COFF symbols as are read", "")):
        file = write(tmp_path / "image", *(ELF.get(name) or PE[name])())
        (place,) = ImageResolver().resolve(MappedFile(str(file)), np.array([0x1100], "u8"))
        assert place.number
        assert place.function == function


def _names(tmp_path, strings: bytes, *, imports: int = 0, needed: int = 0):
    """An ELF file that expects so many symbols, and needs so many libraries, whose names begin a byte apart."""
    from wstrace_plugins.os.elf import Elf, read_of

    rows = b"".join(struct.pack("<IBBHQQ", 1 + n, 0x12, 0, 0, 0, 0) for n in range(imports))
    tags = b"".join(struct.pack("<QQ", 1, 1 + n) for n in range(needed))
    heads = [section(0), section(11, 8192, len(rows), link=2), section(3, 8192 + len(rows), len(strings)),
             section(6, 8192 + len(rows) + len(strings), len(tags), link=2)]  # fmt: skip
    parts = [(0, header((64, 0), (4096, 4, 0))), (4096, b"".join(heads)), (8192, rows + strings + tags)]
    file = write(tmp_path / "image", 8192 + len(parts[-1][1]), parts)
    return Elf(read_of(os.open(file, os.O_RDONLY)))


def test_names_without_an_end_are_cut_and_too_many_are_refused(tmp_path):
    """A name without its NUL would be the rest of its table: 4,000 of them in 1 MiB are 4 GB."""
    endless = b"\0" + b"A" * MIB
    tracemalloc.start()
    assert {len(name) for name in _names(tmp_path, endless, imports=4000).imports()} == {4096}
    needed, _ = _names(tmp_path, endless, needed=1000).libraries()
    assert {len(name) for name in needed} == {4096}
    assert tracemalloc.get_traced_memory()[1] <= 64 * MIB
    tracemalloc.stop()
    for wanted in ({"imports": 40_000}, {"needed": 2000}):
        image = _names(tmp_path, endless, **wanted)
        with pytest.raises(ValueError, match=r"more than 1024 libraries|expects 40000 symbols"):
            image.imports() if "imports" in wanted else image.libraries()
