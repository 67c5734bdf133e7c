"""Unwinding rules: what gcc, glibc and a PLT say, and files and programs that lie."""

import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.hostile_images import LOAD, header, program

from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.eh_frame import UNREADABLE, Common, Frames, UnwindFile, Value, evaluate, rule_at, sleb, uleb

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="native stacks are Linux's")
EH_FRAME = 0x6474E550
#: DW_CFA_def_cfa rsp 8, DW_CFA_offset ra at CFA-8: how every entry of x86-64 begins
INITIAL = bytes([0x0C, 7, 8, 0x80 | 16, 1])
ROUNDS = [pytest.param(300, id="short"), pytest.param(30_000, id="long", marks=pytest.mark.long)]


def rule(body: bytes, pc: int, *, signal: bool = False, initial: bytes = INITIAL) -> rules.Rule:
    common = Common(1, -8, 16, signal, initial)
    return rule_at(Frames(0x1000, 0x2000, common, body), pc)


def test_without_return_address_the_stack_ends():
    assert rule(bytes([0x07, 16]), 0x1000)[0] == rules.CFA_END


def test_a_signal_frame_is_one_with_its_registers_where_the_kernel_put_them():
    """As in glibc's __restore_rt: the CFA is loaded from rsp+160, rip is at rsp+168, rbp at rsp+120."""

    def at(register, offset):
        expression = bytes([0x77]) + leb(offset)
        return bytes([0x10, register, len(expression)]) + expression

    loaded = bytes([0x77]) + leb(160) + b"\x06"
    body = bytes([0x0F, len(loaded)]) + loaded + at(16, 168) + at(6, 120)
    assert rule(body, 0x1000, signal=True)[:8] == (
        rules.CFA_LOADED, 7, 160, rules.AT_RSP, 168, rules.AT_RSP, 120, rules.SIGNAL
    )  # fmt: skip


def leb(number: int) -> bytes:
    """An SLEB128 of two bytes."""
    return bytes([0x80 | number & 127, number >> 7 & 127])


@pytest.mark.parametrize(("low", "offset"), [(0, 8), (10, 8), (11, 16), (15, 16)])
def test_a_procedure_linkage_table_is_a_constant_at_a_known_address(low, offset):
    """What ld writes: rsp + 8 + ((rip & 15) >= 11) * 8."""
    code = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])
    assert evaluate(code, 0x1020 + low) == Value(7, offset)


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"\x9f" * 10,
        b"\x77\x00\x06\x06",  # loaded twice
        b"\x31",  # no register
        b"\x77\x00\x06\x23\x08",  # loaded, and a sum
        b"\x80\x00",  # the program counter
    ],
)
def test_an_expression_that_is_no_rule_gives_none(code):
    body = bytes([0x0F]) + bytes([len(code) & 127 | 0x80, len(code) >> 7]) + code
    try:
        found = rule(body, 0x1000)
    except UNREADABLE:
        return
    assert found == rules.NO_RULE


def test_numbers_of_any_length_end():
    with pytest.raises(IndexError):
        uleb(b"\x80" * 1000, 0)
    assert uleb(b"\xff" * 9 + b"\x01", 0) == ((1 << 64) - 1, 10)
    assert sleb(b"\x7f", 0) == (-1, 1)
    assert sleb(b"\x80\x7f", 0) == (-128, 2)


@given(st.binary(max_size=64), st.binary(max_size=200), st.integers(0, 0x1000))
def test_programs_of_any_bytes_give_a_rule_or_a_known_error(initial, body, at):
    try:
        found = rule(body, 0x1000 + at, initial=initial)
    except UNREADABLE:
        return
    assert len(found) == len(rules.NO_RULE)
    assert all(abs(number) < 1 << 62 for number in found)


def elf_file(body: bytes = bytes([0, 0x41, 0x0E, 16, 0, 0, 0]), covered: int = 0x100) -> bytearray:
    """An ELF file with `.eh_frame_hdr` of one entry, which covers [0x1000, 0x1000 + covered)."""
    cie = struct.pack("<II", 20, 0) + b"\x01zR\0\x01\x78\x10\x01\x1b" + INITIAL + b"\0\0"
    fde_at = 0x500 + len(cie)
    fde = struct.pack("<II", 4 + 8 + len(body), fde_at + 4 - 0x500) + struct.pack("<ii", 0x1000 - (fde_at + 8), covered)
    table = (
        bytes([1, 0x1B, 0x03, 0x3B]) + struct.pack("<iI", 0x500 - 0x404, 1) + struct.pack("<ii", 0xC00, fde_at - 0x400)
    )
    parts = [
        (0, header((64, 2))),
        (64, program(LOAD, 0, max(0x3000, 0x1000 + covered)) + program(EH_FRAME, 0x400, len(table), 0x400)),
        (0x400, table),
        (0x500, cie + fde + body),
    ]
    content = bytearray(0x3000)
    for at, some in parts:
        content[at : at + len(some)] = some
    return content


def opened(content: bytes) -> UnwindFile:
    return UnwindFile(lambda offset, size: bytes(content[offset : offset + size]))


@LINUX
def test_code_that_takes_long_to_describe_takes_no_more_than_its_time(tmp_path):
    """A program decides how many addresses it runs at, and how many instructions describe each: 65,000 took 7 ms."""
    from wstrace.batch import Dictionary
    from wstrace.schema import KIND_FILE, KIND_SHIFT, MAP_EXECUTE, MAPPING
    from wstrace.testing import batch_of
    from wstrace_plugins.stacks.linux.known_code import OUTSIDE, KnownCode

    (tmp_path / "slow").write_bytes(elf_file(bytes(4000), 1 << 20))
    status, strings, n = (tmp_path / "slow").stat(), Dictionary(), 100_000
    code = KnownCode(strings)
    code.learn(batch_of(MAPPING, strings, id=[1], time_ns=[1], pid=[os.getpid()], start=[1 << 40], end=[2 << 40],
                        offset=[0], file=[strings.code(str(tmp_path / "slow"))], dev=[status.st_dev],
                        ino=[status.st_ino], flags=[MAP_EXECUTE | KIND_FILE << KIND_SHIFT]))  # fmt: skip
    began, addresses = time.process_time(), (1 << 40) + 0x1001 + np.arange(n)
    code.begin([os.getpid()], lambda rows, addresses: np.ones(len(rows), "<u4"))
    numbers = code.numbers_of(np.arange(n), addresses)
    assert time.process_time() - began <= 4
    assert 100 < (numbers != OUTSIDE).sum() < n
    assert (code.numbers_of(np.arange(n), addresses) == numbers).all(), "and then nothing more"
    code.close()


def test_the_entry_that_covers_an_address_is_found():
    file = opened(elf_file())
    assert file.rule(0x1000)[2] == 8
    assert file.rule(0x1001)[2] == 16
    assert file.rule(0xFFF) is None
    assert file.rule(0x1100) is None
    assert file.elf.address_of(0x1000) == 0x1000
    assert file.elf.address_of(0x3000) is None


def largest_read(content: bytearray) -> int:
    """The bytes that are read of a hostile file at once, at most, for an address without a rule."""
    sizes = []

    def read(offset, size):
        sizes.append(size)
        return bytes(content[offset : offset + size])

    assert UnwindFile(read).rule(0x1000) is None
    return max(sizes)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_files_changed_where_it_hurts_give_a_rule_or_none_in_bounded_time(rounds):
    dice, whole = random.Random(11), elf_file()
    used = [at for at in range(len(whole)) if any(whole[max(at - 8, 0) : at + 8])]
    numbers = [0, 1, 7, 127, 128, 255, 0xFFFF, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]
    began = time.process_time()
    for _ in range(rounds):
        broken = bytearray(whole)
        for _ in range(dice.randrange(1, 5)):
            width = dice.choice((1, 2, 4, 8))
            at = dice.choice(used)
            value = dice.choice(numbers) & (1 << 8 * width) - 1
            broken[at : at + width] = value.to_bytes(width, "little")
        try:
            file = opened(broken)
        except ValueError:
            continue
        for address in (0x1000, 0x1001, 0x10FF, 0, 1 << 63, (1 << 64) - 1):
            found = file.rule(address)
            assert found is None or len(found) == len(rules.NO_RULE)
    assert time.process_time() - began < 0.01 * rounds  # a hang, not a speed


@pytest.mark.parametrize("content", [b"", b"\x7fELF", bytes(64), b"\x7fELF\2\1" + bytes(58)])
def test_what_is_no_elf_file_is_refused(content):
    with pytest.raises(ValueError, match="ELF"):
        opened(content)


def test_a_table_of_four_billion_entries_is_not_read():
    content = elf_file()
    content[0x408:0x40C] = b"\xff\xff\xff\xff"
    assert largest_read(content) < 1 << 20


def test_every_function_of_our_own_libc_has_a_rule():
    """The real thing: the C library of this machine, by the addresses of its own table."""
    [libc] = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line} or [
        None
    ]
    if libc is None:
        pytest.skip("only on a system with glibc as a shared library")
    data = Path(libc).read_bytes()
    file = opened(data)
    assert file.rule(0) is None
    starts = [file._base + int(start) for start in file._starts]
    assert len(starts) > 1000
    found = [file.rule(start) for start in starts]
    assert sum(one is not None and one != rules.NO_RULE for one in found) > 0.999 * len(found)


@LINUX
def test_a_function_of_the_vdso_has_its_rule():
    from wstrace_plugins.stacks.linux.images import _vdso

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


@LINUX
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)")
def test_the_part_of_the_loop_that_is_put_elsewhere_is_the_loops(tmp_path):
    """`_PyEval_EvalFrameDefault.cold`: a frame there that is not known would show the frame of a caller."""
    from wstrace_plugins.stacks.linux.images import Loop, _image

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
