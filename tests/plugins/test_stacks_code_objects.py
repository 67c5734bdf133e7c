"""Code objects read from the memory of a process: this one, and one that ends."""

from __future__ import annotations

import ctypes
import dis
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace.batch import Dictionary
from wstrace.clock import now_ns
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.cpython.elf import ElfFile, python_in
from wstrace_plugins.os.linux.cpython.instructions import Instructions
from wstrace_plugins.stacks.linux import code_objects
from wstrace_plugins.stacks.linux.code_objects import CodeObjects, Types

KNOWN = Instructions.of(sys.version_info[:2])
INSTRUCTIONS = KNOWN or Instructions((3, 13))


def cpython() -> tuple[Any, Types]:
    """The layout of the CPython that runs this test, and where its types are."""
    maps = procfs.read_maps(os.getpid())
    for row, name in enumerate(maps.files[code] for code in maps.columns["file"].tolist()):
        if "python" in name.rpartition("/")[2] and not maps.columns["offset"][row]:
            with Path(name).open("rb") as file:
                if (python := python_in(file.fileno())) is not None and python.layout is not None:
                    elf = ElfFile(file.fileno())
                    start = int(maps.columns["start"][row]) - python.first if python.movable else 0
                    names = (b"PyCode_Type", b"PyUnicode_Type", b"PyBytes_Type")
                    return python.layout, Types(*(start + (elf.symbol(one) or 0) for one in names))
    pytest.skip("this is no CPython whose frames are known")


@pytest.fixture
def objects() -> Iterator[CodeObjects]:
    found = CodeObjects(os.getpid(), *cpython(), INSTRUCTIONS, Dictionary())
    yield found
    found.close()


def target(a: int) -> int:
    b = a + 1
    return b * len("ä")


def word(code: CodeType, unit: int) -> int:
    """What points behind an instruction of a code object of this process."""
    return id(code) + cpython()[0].code_adaptive + 2 * (unit + 1)


def test_a_word_in_bytecode_has_its_function_and_line(objects: CodeObjects) -> None:
    code = target.__code__
    words = np.array([word(code, unit) for unit in range(len(code.co_code) // 2)], "<u8")
    objects.find(words)
    rows = objects.locate(words)
    assert (rows >= 0).all()
    by_unit = {start // 2 + i: line or 0 for start, end, line in code.co_lines() for i in range((end - start) // 2)}
    assert objects.lines_of(words, rows).tolist() == [by_unit[unit] for unit in range(len(words))]
    names = [objects._strings[int(one)] for one in objects.names[rows[0]]]
    assert names == [code.co_qualname, code.co_filename]


@pytest.mark.skipif(KNOWN is None, reason="the instructions of this Python are not known")
def test_a_word_in_bytecode_has_its_instruction(objects: CodeObjects) -> None:
    code = target.__code__
    for _ in range(100):
        target(3)  # specializes its instructions
    begins = [one.offset // 2 for one in dis.get_instructions(code)]
    words = np.array([word(code, unit) for unit in begins], "<u8")
    objects.find(words)
    found = objects.instructions_of(words, objects.locate(words)).tolist()
    assert found == INSTRUCTIONS.plain[[one.opcode for one in dis.get_instructions(code)]].tolist()


def test_a_word_outside_has_none(objects: CodeObjects) -> None:
    code = target.__code__
    begin, size = word(code, -1), len(code.co_code)
    words = np.array([begin, begin + 3, begin + size + 2, id(target), 0, 1 << 63, (1 << 47) + 2], "<u8")
    objects.find(words)
    assert objects.locate(words).tolist() == [-1] * len(words)
    assert objects.lines_of(words, objects.locate(words)).tolist() == [0] * len(words)


def test_a_fault_before_the_first_reading_is_not_given_the_code(objects: CodeObjects) -> None:
    words, before = np.array([word(target.__code__, 1)], "<u8"), now_ns()
    objects.find(words)
    since = objects.since_of(objects.locate(words))
    assert (since > before).all()
    objects.begin()
    objects.find(words)
    assert (objects.since_of(objects.locate(words)) == since).all(), "it is what it was"


def test_other_code_at_its_place_is_new(objects: CodeObjects) -> None:
    """The first line is written over in place: nothing but the content differs."""
    code = compile("def one():\n  return 5\n", "made.py", "exec").co_consts[0]
    words = np.array([word(code, 1)], "<u8")
    objects.find(words)
    first = objects.since_of(objects.locate(words))[0], objects.lines_of(words, objects.locate(words))[0]
    line = ctypes.c_int.from_address(id(code) + cpython()[0].code_firstlineno)
    line.value += 7
    objects.find(words)
    assert objects.lines_of(words, objects.locate(words))[0] == first[1], "read once for a batch"
    objects.begin()
    objects.find(words)
    rows = objects.locate(words)
    assert objects.since_of(rows)[0] > first[0]
    assert objects.lines_of(words, rows)[0] == first[1] + 7


@pytest.mark.skipif(sys.version_info < (3, 12), reason="only on CPython 3.12 and later: code has no version before")
def test_code_that_was_made_before_a_newer_one_was_read_was_there_then(objects: CodeObjects) -> None:
    old = compile("def old():\n  return 5\n", "made.py", "exec").co_consts[0]
    new = compile("def new():\n  return 5\n", "made.py", "exec").co_consts[0]
    objects.find(np.array([word(new, 1)], "<u8"))
    between = now_ns()
    words = np.array([word(old, 1)], "<u8")
    objects.find(words)
    assert (objects.since_of(objects.locate(words)) < between).all()


@pytest.mark.parametrize("part", ["references", "type", "units", "first", "table"])
def test_what_contradicts_itself_is_no_code_object(objects: CodeObjects, part: str) -> None:
    layout, types = cpython()
    copy = ctypes.create_string_buffer(1 << 12)
    begin = ctypes.addressof(copy) + 15 & ~15
    ctypes.memmove(begin, id(target.__code__), layout.code_adaptive + len(target.__code__.co_code))
    words = np.array([begin + layout.code_adaptive + 4], "<u8")
    places = {"references": (0, 0), "type": (8, types.string), "units": (16, 1 << 62), "first": (16, 3),
              "table": (layout.code_linetable, 8)}  # fmt: skip
    at, value = places[part]
    ctypes.c_uint64.from_address(begin + at).value = value
    objects.find(words)
    assert (objects.locate(words) == -1).all()


def test_a_line_table_is_not_longer_than_its_entries_can_be(objects: CodeObjects) -> None:
    """What stands behind the last entry is not read by anyone: a program could make us keep gigabytes of it."""
    layout, code = cpython()[0], target.__code__
    copy = ctypes.create_string_buffer(1 << 12)
    begin = ctypes.addressof(copy) + 15 & ~15
    ctypes.memmove(begin, id(code), layout.code_adaptive + len(code.co_code))
    words = np.array([begin + layout.code_adaptive + 4], "<u8")
    objects.find(words)
    assert (objects.locate(words) >= 0).all()
    table = code.co_linetable + bytes(32 * len(code.co_code))
    ctypes.c_uint64.from_address(begin + layout.code_linetable).value = id(table)
    objects.begin()
    objects.find(words)
    assert (objects.locate(words) == -1).all()


def test_code_that_cannot_be_read_in_time_is_left_and_not_proven(
    objects: CodeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, new = (np.array([word(one.__code__, 1)], "<u8") for one in (target, word))
    assert objects.find(known)
    objects.begin()
    monkeypatch.setattr(code_objects.time, "thread_time_ns", iter(range(0, 1 << 40, 1 << 20)).__next__)
    assert not objects.find(np.concatenate((known, new)), 1 << 10)
    rows = objects.locate(np.concatenate((known, new)))
    assert rows.tolist() == [0, -1]
    assert not objects.read_of(rows).any(), "it may be another by now"
    monkeypatch.undo()
    objects.begin()
    assert objects.find(np.concatenate((known, new)))
    assert objects.read_of(objects.locate(np.concatenate((known, new)))).all()


def test_memory_that_is_searched_is_bounded(objects: CodeObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(objects, "_search", lambda piece: asked.append(piece) or np.zeros(0, "<u8"))
    objects.find(np.arange(1 << 20, (1 << 20) + (5000 << 16), 1 << 16, dtype="<u8"))
    assert len(asked) == code_objects.MOST_PIECES


def test_a_process_that_is_gone_is_not_readable() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    objects = CodeObjects(child.pid, *cpython(), INSTRUCTIONS, Dictionary())
    child.communicate(b"\n")
    words = np.array([word(target.__code__, 1)], "<u8")
    objects.find(words)
    assert (objects.locate(words) == -1).all()
    objects.close()
    with pytest.raises(OSError, match="No such"):
        CodeObjects(child.pid, *cpython(), INSTRUCTIONS, Dictionary())
