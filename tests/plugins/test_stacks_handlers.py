"""Which instruction of the bytecode a place in CPython's loop belongs to: on the CPythons that are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pythons import Installed, installed

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace_plugins.os.linux.cpython.elf import ElfFile
from wstrace_plugins.os.linux.cpython.instructions import _SAME, Instructions
from wstrace_plugins.stacks.linux.handlers import ENTRIES, Handlers
from wstrace_plugins.stacks.linux.images import _image
from wstrace_plugins.stacks.linux.loops import Loop

PYTHONS = [python for python in installed() if Instructions.of(python.version) is not None]
#: what a CPython says of its instructions, and of code that has run often
_ASKED = """
import dis, json, opcode
def often(a):
    b = {1: 2}
    for i in range(a):
        b[1] = b[1] + i
        b.get(i)
    return b == a
for _ in range(99): often(9)
units = opcode._inline_cache_entries
units = {n: units.get(n, 0) if isinstance(units, dict) else units[o] if o < len(units) else 0
         for n, o in opcode.opmap.items()}
plain = {dis._all_opmap[one]: (opcode.opmap[base], units[base]) for one, base in dis.deoptmap.items()}
plain |= {o: (o, units[n]) for n, o in opcode.opmap.items() if o < 236 and n not in ("RESERVED", "ENTER_EXECUTOR")}
code = often.__code__
begins = [(one.offset, one.opcode) for one in dis.get_instructions(code)]
print(json.dumps([plain, code._co_code_adaptive.hex(), begins]))
"""
_LIBRARY = """
import os, re
if os.path.exists("/proc/self/maps"): print(*re.findall(r"\\S*libpython\\S*", open("/proc/self/maps").read()))
"""


def said(python: Installed, program: str) -> str:
    return subprocess.run(python.command("-c", program), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_the_instructions_are_those_of_the_interpreter(python: Installed) -> None:
    instructions = Instructions.of(python.version)
    assert instructions is not None
    plain, adaptive, begins = json.loads(said(python, _ASKED))
    same = _SAME.get(python.version, {})
    for form, (base, units) in plain.items():
        assert instructions.plain[int(form)] == same.get(base, base), form
        assert instructions._behind[int(form)] == units, form
    units = instructions.by_unit(bytes.fromhex(adaptive))
    assert [int(units[offset // 2]) for offset, _ in begins] == [same.get(number, number) for _, number in begins]
    assert len(units) == len(adaptive) // 4


def test_what_stands_in_anothers_place_makes_all_unknown() -> None:
    instructions = Instructions.of((3, 12))
    assert instructions is not None
    assert not instructions.by_unit(bytes([100, 0, 254, 0, 124, 0])).any(), "INSTRUMENTED_LINE"
    assert instructions.by_unit(b"").tolist() == []


@contextmanager
def opened(python: Installed) -> Iterator[tuple[ElfFile, tuple[int, int]]]:
    """The file with a CPython's loop, and where that is in it."""
    library = said(python, _LIBRARY).split()
    fd = os.open(python.root + (library[0] if library else python.program), os.O_RDONLY)
    try:
        image = _image(lambda offset, size: os.pread(fd, size, offset))
        assert image is not None
        yield ElfFile(fd), Loop.of(image, fd).code
    finally:
        os.close(fd)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_the_table_of_a_cpython_is_found(python: Installed) -> None:
    with opened(python) as (elf, loop):
        handlers = Handlers.of(elf, python.version, loop)
    assert handlers is not None
    assert set(handlers.at(np.arange(*loop, dtype="<u8")).tolist()) > {25 if python.version < (3, 13) else 5}
    assert handlers.at(np.array([0, loop[0] - 1, loop[1]], "<u8")).tolist() == [0, 0, 0]


class File:
    """An ELF file with these words of data, and code at 0x1000 to 0x9000."""

    def __init__(self, *data: np.ndarray) -> None:
        self._data = data

    def pointers(self) -> Iterator[np.ndarray]:
        yield from self._data

    def code_ranges(self) -> list[tuple[int, int]]:
        return [(0x1000, 0x9000)]


def handlers(*data: np.ndarray) -> Handlers | None:
    file: Any = File(*data)
    return Handlers.of(file, (3, 11), (0x2000, 0x8000))


TABLE = 0x3000 + 16 * np.arange(ENTRIES, dtype="<u8")
OTHER = np.zeros(9, "<u8")


def test_an_address_belongs_to_the_instruction_whose_code_begins_before_it() -> None:
    found = handlers(OTHER, np.concatenate((OTHER, TABLE, OTHER)))
    assert found is not None
    at = 0x3000 + 16 * np.array([60, 168, 171, 22, 166], "<u8")
    assert found.at(at).tolist() == [60, 60, 171, 171, 171]
    assert found.at(at + 15).tolist() == [60, 60, 171, 171, 171]


def test_code_of_several_instructions_tells_nothing() -> None:
    table = TABLE.copy()
    table[[60, 25]] = 0x2800
    found = handlers(table)
    assert found is not None
    assert found.at(np.array([0x2800, 0x2900], "<u8")).tolist() == [0, 0]


@pytest.mark.parametrize("data", [(), (OTHER,), (TABLE[:-1],), (TABLE, TABLE), (np.append(TABLE, TABLE[:1]),)])
def test_without_exactly_one_table_none_is_known(data: Any) -> None:
    assert handlers(*data) is None


def test_a_table_of_other_code_is_none() -> None:
    assert handlers(TABLE - 0x2000) is None
    assert handlers(TABLE + 0x8000) is None


def test_a_file_that_is_cut_has_none(tmp_path: Path) -> None:
    for python in PYTHONS[:1]:
        with opened(python) as (elf, loop):
            elf._segments = [(*one[:2], one[2] + (1 << 40), *one[3:]) for one in elf._segments]
            assert Handlers.of(elf, python.version, loop) is None
