"""Stack samples as the kernel writes them (mixed, late, cut, too many), and the unwinder that reads them."""

import struct

import numpy as np
import pytest

from wstrace.ledger import Ledger
from wstrace_plugins.page_faults.linux.samples import StackDumps
from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.unwinder import PROGRAM_COUNTER, REGISTER_ORDER, Samples, unwind

NOW = 10**9


def record(
    time_ns: int, words: int = 64, *, real: int | None = None, junk: int = 0, abi: int = 2, short: int = 0
) -> bytes:
    """A PERF_RECORD_SAMPLE of IP|TID|TIME|ADDR|REGS_USER|STACK_USER."""
    body = struct.pack("<QIIQQQ", 0x400, 7, 8, time_ns, 0x7000, abi)
    if abi:
        body += struct.pack("<20Q", *range(100, 120))
        body += struct.pack(f"<Q{words}Q", 8 * words, *range(words)) + struct.pack(
            "<Q", 8 * words if real is None else real
        )
    else:
        body += struct.pack("<Q", 0)
    body = body[: len(body) - short] + b"\xee" * junk
    return struct.pack("<IHH", 9, 2, 8 + len(body)) + body


def lost(count: int) -> bytes:
    return struct.pack("<IHHQQIIQ", 2, 0, 40, 99, count, 7, 8, 5)


def taken(*records: bytes) -> StackDumps:
    dumps = StackDumps()
    dumps.take(np.frombuffer(b"".join(records), np.uint8), 0, NOW)
    return dumps


def given(dumps: StackDumps, until: int = NOW) -> list[dict[str, list[int]]]:
    return [{name: column.tolist() for name, column in block.items()} for block in dumps.give(until)]


def test_records_of_one_size_are_read_at_once():
    [block] = given(taken(record(1), record(2, real=16)))
    assert block["time_ns"] == [1, 2]
    assert (block["pid"], block["tid"], block["pc"], block["va"]) == ([7, 7], [8, 8], [0x400] * 2, [0x7000] * 2)
    assert block["registers"][0] == [*range(100, 109), *range(112, 120)]
    assert block["size"] == [512, 16]
    assert block["dump"][0] == list(range(64))


@pytest.mark.parametrize("junk", [8, 4096])
def test_records_that_another_tracer_makes_longer_are_the_same(junk):
    mixed = given(taken(record(1, junk=junk), record(2), lost(5), record(3, words=128)))
    assert mixed[0]["time_ns"] == [1, 2, 3]
    assert mixed[0]["size"] == [512, 512, 1024]
    assert mixed[0]["dump"][2] == list(range(128))
    assert mixed[0]["dump"][0][:64] == list(range(64))


def test_what_the_kernel_cut_short_is_counted():
    dumps = taken(record(1, short=16), record(2))
    assert [block["time_ns"] for block in given(dumps)] == [[2]]
    assert dumps.unusable == 1


def test_losses_are_counted_by_reason():
    dumps = taken(lost(5), record(1, abi=0), record(2), record(NOW + 10))
    ledger = Ledger()
    dumps.account(ledger, 6)
    assert {who: n for _, who, n in ledger.rows()} == {
        "the kernel's buffer was full": 6,
        "cut short, timed by another clock, or without registers of a 64-bit program": 2,
    }


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_read_without_a_raise(seed):
    dice = np.random.default_rng(seed)
    raw = bytearray(b"".join([record(1), record(2, words=8), lost(1), record(3)]))
    for at in dice.integers(0, len(raw), 12):
        raw[at] = dice.integers(0, 256)
    given(taken(bytes(raw)))


#: finds its caller by rbx, as the dynamic linker's trampoline does: only the second way of unwinding follows it
BY_RBX = (rules.CFA_SUM, rules.RBX, 32, rules.AT_CFA, -8, *(rules.SAME, 0, 0), *((rules.SAME, 0) * len(rules.SAVED)))
LEAF = (rules.CFA_SUM, rules.RSP, 8, rules.AT_CFA, -8, *(rules.SAME, 0, 0), *((rules.SAME, 0) * len(rules.SAVED)))


class TwoProcesses:
    """Sample 0 is of a process that has no code. In that of sample 1 a leaf is called by what finds main by rbx."""

    rules = np.array([LEAF, BY_RBX, rules.END], "<i8").T
    rule_of = np.array([-1, 0, 1, 2], np.intp)

    def numbers_of(self, rows, after):
        known = np.searchsorted([0x1000, 0x1FFF, 0x2FFF], after - 1) + 1
        return np.where(rows == 1, known, 0)


def test_a_sample_that_is_unwound_again_is_still_of_its_own_process():
    registers = np.zeros((2, len(REGISTER_ORDER) + 4), "<u8")
    registers[:, PROGRAM_COUNTER] = 0x1000
    registers[:, REGISTER_ORDER[rules.RSP]] = registers[:, REGISTER_ORDER[rules.RBX]] = 0x7000
    dump = np.array([[0x2000, 0, 0, 0x3000]] * 2, "<u8")
    found = unwind(Samples(registers, dump, np.full(2, 32, "<u8")), TwoProcesses())
    assert found.whole.tolist() == [False, True]
    assert found.frames.tolist() == [[0, 0, 0], [1, 2, 3]]
    assert found.depth.tolist() == [1, 3]


CODE, STACK, WORDS = 0x1000, 0x7FFF0000, 24
KINDS = (rules.SAME, rules.AT_CFA, rules.AT_RSP, rules.AT_RBP, rules.LOST, rules.UNKNOWN)


class Scripted:
    """Frame number n is of the address CODE + 16 n; the last rule is that of no code."""

    def __init__(self, table):
        self.rules = np.array(table, "<i8").T
        self.rule_of = np.append(np.arange(len(table) - 1), -1).astype(np.intp)

    def numbers_of(self, rows, after):
        number = after - 1 - CODE >> 4
        last = len(self.rule_of) - 1
        return np.where((number >= 0) & (number < last), number, last)


def some_rule(dice):
    """Mostly what compilers make; now and then anything."""
    usual = dice.random() < 0.8
    register = rules.RSP if dice.random() < 0.7 else rules.RBP
    if not usual and dice.random() < 0.3:
        register = rules.RBX
    cfa = 8 * int(dice.integers(1, 5)) if usual else int(dice.integers(-3, 40))
    kind = rules.CFA_SUM if usual else int(dice.integers(0, 4))
    returned = (rules.AT_CFA, -8) if usual else (KINDS[dice.integers(1, 6)], 8 * int(dice.integers(-3, 3)))
    rbp = (rules.AT_CFA, -16) if dice.random() < 0.4 else (rules.SAME, 0)
    if not usual:
        rbp = KINDS[dice.integers(0, 6)], 8 * int(dice.integers(-4, 3))
    flags = 0 if usual else int(dice.choice([0, 0, rules.SIGNAL, rules.GUESS, rules.GUESS | rules.UNDESCRIBED]))
    saved = [number for _ in rules.SAVED for number in (KINDS[dice.integers(0, 6)], 8 * int(dice.integers(-4, 0)))]
    return (kind, register, cfa, *returned, *rbp, flags, *saved)


def one_by_one(code, registers, dump, size, most=12):
    """What unwind() finds, for one sample, without numpy: its frames, whether they are all, and which were guessed."""
    mask = (1 << 64) - 1
    values = {number: int(registers[column]) for number, column in enumerate(REGISTER_ORDER)}
    base, address = values[rules.RSP], int(registers[PROGRAM_COUNTER])
    frames, guesses, guessed = [], [], False

    def load(at):
        inside = at is not None and at % 8 == 0 and base <= at < base + size // 8 * 8 and base % 8 == 0
        return int(dump[(at - base) // 8]) if inside else None

    for step in range(most):
        [number] = code.numbers_of(np.zeros(1, np.intp), np.array([address], "<u8").view("<i8") + 1)
        column = int(code.rule_of[number])
        if column < 0 and step:
            return frames, False, guesses
        frames.append(int(number))
        guesses.append(guessed)
        if column < 0:
            return frames, False, guesses
        kind, register, offset, back_kind, back_offset, bp_kind, bp_offset, flags, *saved = code.rules[
            :, column
        ].tolist()
        sp, bp = values[rules.RSP], values.get(rules.RBP)
        end = values.get(register)
        end = None if end is None or kind >= rules.CFA_END else end + offset & mask
        end = load(end) if kind == rules.CFA_LOADED else end
        known = end is not None

        def stored(kind, offset, end=end, sp=sp, bp=bp, known=known):
            begin = {rules.AT_CFA: end, rules.AT_RSP: sp, rules.AT_RBP: bp}.get(kind)
            return load(begin + offset & mask) if begin is not None and known else None

        back = stored(back_kind, back_offset)
        believed = flags & rules.GUESS and (guessed or not flags & rules.UNDESCRIBED)
        if kind == rules.CFA_END or back == 0 or (believed and bp == 0):
            return frames, True, guesses
        if back is not None and (end % 8 or (end <= sp and not flags & rules.SIGNAL)):
            return frames, False, guesses
        if kind == rules.CFA_UNKNOWN or back_kind == rules.UNKNOWN:
            return frames, False, guesses
        if back is None:
            return frames, False, guesses
        pairs = [(rules.RBP, bp_kind, bp_offset), *zip(rules.SAVED, saved[::2], saved[1::2], strict=True)]
        after = {one: values.get(one) if how == rules.SAME else stored(how, at) for one, how, at in pairs}
        values = {one: value for one, value in after.items() if value is not None} | {rules.RSP: end}
        address, guessed = back - (not flags & rules.SIGNAL) & mask, bool(flags & rules.GUESS)
    return frames, False, guesses


@pytest.mark.parametrize("seed", range(8))
def test_samples_that_are_unwound_together_have_the_stacks_that_each_has_alone(seed):
    dice = np.random.default_rng(seed)
    code = Scripted([some_rule(dice) for _ in range(12)] + [rules.END, rules.NO_RULE])
    n = 300
    registers = np.zeros((n, 17), "<u8")
    registers[:] = STACK + 8 * dice.integers(0, WORDS, (n, 17), "<u8")
    registers[:, PROGRAM_COUNTER] = CODE + 16 * dice.integers(0, 14, n, "<u8")
    registers[:, REGISTER_ORDER[rules.RSP]] = STACK
    registers[:5, REGISTER_ORDER[rules.RSP]] += np.uint64(4)
    back = CODE + 1 + 16 * dice.integers(0, 13, (n, WORDS), "<u8")
    dump = np.where(dice.random((n, WORDS)) < 0.7, back, STACK + 8 * dice.integers(0, WORDS, (n, WORDS), "<u8"))
    dump[dice.random((n, WORDS)) < 0.05] = 0
    size = 8 * dice.integers(0, WORDS + 1, n, "<u8")
    found = unwind(Samples(registers, dump, size), code, 12)
    for row in range(n):
        frames, whole, guesses = one_by_one(code, registers[row], dump[row], int(size[row]))
        depth = int(found.depth[row])
        unwound = found.frames[row, :depth].tolist(), found.whole[row], found.guessed[row, :depth].tolist()
        assert unwound == (frames, whole, guesses), row
        assert not found.frames[row, depth:].any()
