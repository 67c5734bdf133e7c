"""Stack samples as the kernel writes them: fixed and mixed sizes, beside other tracers, late, cut, too many."""

import struct

import numpy as np
import pytest

from wstrace.ledger import Ledger
from wstrace_plugins.page_faults.linux.samples import StackDumps

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
