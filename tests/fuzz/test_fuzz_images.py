"""ELF and PE files changed where it hurts: an Image, or an ImageError, within the bounds; `--long` tries many more."""

import itertools
import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.hostile_images import LOAD, NOTE, header, pe, program, section, write

from wstrace_plugins.symbols.image import Image, ImageError, ImageFile
from wstrace_plugins.symbols.resolver import read_image

OFFSETS = np.arange(0, 1 << 16, 512, dtype="u8")
WIDTHS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
TABLE = 0x400  # where the section headers of the ELF file stand
ROUNDS = [pytest.param(150, id="short"), pytest.param(20_000, id="long", marks=pytest.mark.long)]


def elf_file() -> bytearray:
    """A small ELF file that has all that is read: segments, notes, section names, symbols."""
    symbol = struct.pack("<IBBHQQ", 1, 2, 0, 3, 0x1000, 64)
    parts = [
        (0, header((64, 3), (TABLE, 4, 2))),
        (64, program(LOAD, 0, 0x3000) + program(NOTE, 0x200, 64) + program(NOTE, 0x240, 64)),
        (0x200, struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))),
        (0x300, b"\0.text\0_ZN3foo3barEv\0"),
        (TABLE, section(0) + section(2, 0x600, 48, link=2) + section(3, 0x300, 32)
         + section(1, 0x1000, 0x1000, flags=6, address=0x1000)),
        (0x600, bytes(24) + symbol),
    ]  # fmt: skip
    content = bytearray(0x3000)
    for at, some in parts:
        content[at : at + len(some)] = some
    return content


def pe_file() -> bytearray:
    """A small PE file with exports."""
    content = bytearray(0x3000)
    for at, some in pe(0, 2, exports=4, size=0x2000):
        content[at : at + len(some)] = some
    functions, names = struct.pack("<4I", *range(0x1500, 0x1540, 16)), struct.pack("<4I", *[0x2300] * 4)
    tables = {0x101C: struct.pack("<3I", 0x2000, 0x2100, 0x2200), 0x2000: functions, 0x2100: names,
              0x2200: struct.pack("<4H", *range(4)), 0x2300: b"main\0"}  # fmt: skip
    for at, some in tables.items():
        content[at : at + len(some)] = some
    return content


def mutants(whole: bytearray, seed: int) -> Iterator[bytes]:
    """It with one to four numbers replaced by ones that mean something, sometimes cut off."""
    dice = random.Random(seed)
    interesting = [0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0xFFFE, 0xFFFF, 0x10000, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40,
                   1 << 63, (1 << 64) - 1, len(whole), len(whole) - 1, len(whole) + 1]  # fmt: skip
    used = [at for at in range(len(whole)) if any(whole[max(at - 8, 0) : at + 8])]
    while True:
        broken = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            width = dice.choice((1, 2, 4, 8))
            at = min(dice.choice(used), len(broken) - width)
            value = dice.choice((dice.choice(interesting), dice.getrandbits(8 * width)))
            struct.pack_into(WIDTHS[width], broken, at, value % (1 << 8 * width))
        yield bytes(broken[: dice.choice((len(broken), len(broken), dice.randint(0, len(broken))))])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("whole", [elf_file, pe_file])
def test_whatever_is_changed_in_an_image(whole, rounds, tmp_path, monkeypatch):
    read = []
    original = ImageFile.read

    def counted(self, offset, size):
        content = original(self, offset, size)
        read.append(size)
        return content

    monkeypatch.setattr(ImageFile, "read", counted)
    (sound, _) = wanted(write(tmp_path / "sound", 0x3000, [(0, bytes(whole()))]))
    assert sound is not None
    assert len(sound.symbols), "the file that is changed is whole"
    images = 0
    tracemalloc.start()
    try:
        for number, content in enumerate(itertools.islice(mutants(whole(), 7), rounds)):
            read.clear()
            (tmp_path / "image").write_bytes(content)
            image, why = wanted(tmp_path / "image")
            images += image is not None
            assert sum(read) <= 64 * len(content) + 4096, (number, why)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert rounds // 20 < images < rounds, "both happen"


def wanted(path: Path) -> tuple[Image | None, str]:
    """The image of a file after all of it was read, or why there is none."""
    with ImageFile(str(path)) as file:
        try:
            image = read_image(file)
        except ImageError as error:
            return None, str(error)
    assert len(image.places("image", OFFSETS)) == len(OFFSETS)
    return image, ""
