"""What is known of code addresses."""

from __future__ import annotations

import queue
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wstrace.batch import Dictionary
from wstrace.interfaces import Resolver
from wstrace.places import MappedFile
from wstrace.schema import FRAME_INTERPRETER, KIND_ANON, KIND_FILE, KIND_SHIFT, MAP_EXECUTE, MAPPING
from wstrace.stack_ids import StackIds
from wstrace.testing import batch_of

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.linux import known_code
from wstrace_plugins.stacks.linux.backend import Worker
from wstrace_plugins.stacks.linux.images import CodeMapping
from wstrace_plugins.stacks.linux.known_code import KnownCode
from wstrace_plugins.stacks.unwinder import PROGRAM_COUNTER, Samples, unwind


def test_a_perf_map_is_as_old_as_the_process_not_as_the_last_mapping_that_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code memory that is told again, late, made the maps of processes that had ended too old to be believed."""
    asked: list[tuple[int, int]] = []

    class Seen(known_code.PerfMap):
        def __init__(self, pid: int, since_ns: int) -> None:
            asked.append((pid, since_ns))
            super().__init__(pid, since_ns)

    monkeypatch.setattr(known_code, "PerfMap", Seen)
    now = time.monotonic_ns()
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=[2, 3, 4], time_ns=[now, now - 7, now + 9], pid=[2**30 + 1, 2**30, 2**30],
            start=[0x1000, 0x1000, 0x3000], end=[0x2000, 0x2000, 0x4000], offset=0, file="[anon]", dev=0, ino=0,
            build_id="", flags=MAP_EXECUTE | KIND_ANON << KIND_SHIFT,
        )
    )  # fmt: skip
    code.begin([2**30], lambda rows, addresses: np.full(len(rows), 4, "<u4"))
    code.numbers_of(np.zeros(1, np.intp), np.array([0x3011]))
    assert asked == [(2**30, now - 7)]


def code_memory(ids: dict[int, int]) -> KnownCode:
    """Known code with mappings of 64 KiB: id -> start."""
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=list(ids), time_ns=1, pid=2**30, start=list(ids.values()),
            end=[start + 0x10000 for start in ids.values()], offset=0, file="[anon]", dev=0, ino=0,
            build_id="", flags=MAP_EXECUTE | KIND_ANON << KIND_SHIFT,
        )
    )  # fmt: skip
    return code


def found(code: KnownCode, rows: np.ndarray, addresses: np.ndarray) -> np.ndarray:
    """The frame numbers, as the unwinder has them: what is likely, where that is proven."""
    after = addresses.view("<i8") + 1
    likely = code.likely_numbers(rows, after)
    exact = code.numbers_of(rows, after)
    proven = code.proven(rows, after, likely)
    assert (likely[proven] == exact[proven]).all()
    return np.where(proven, likely, exact)


def test_an_address_has_its_own_frame_however_many_others_came_between() -> None:
    """More addresses than the table in front of the search has slots, in two mappings, in any order."""
    starts = {2: 0x10000, 3: 0x7F0000000000}
    code, dice = code_memory(starts), np.random.default_rng(3)
    ids = np.repeat(np.array([2, 3, 0, 9], "<u4"), 6000)  # 0: in no mapping; 9: in one whose row never came
    begin = np.array([starts.get(i, 0x10000) for i in ids.tolist()], "<u8")
    addresses = begin + dice.integers(0, 0x10000, len(ids), "<u8")
    for _ in range(3):
        order = dice.permutation(len(ids))
        code.begin([2**30], lambda rows, _, order=order: ids[order][rows])
        numbers = found(code, np.arange(len(ids)), addresses[order])
        mapping, offset = code.frames[numbers].T[1:3]
        known = np.isin(ids[order], list(starts))
        assert (mapping == np.where(known, ids[order], 0)).all()
        assert (offset == np.where(known, addresses[order], 0)).all()
        assert (numbers[~known] == known_code.OUTSIDE).all()


def test_an_address_in_another_mapping_is_another_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two slots, every second pair meets in one."""
    monkeypatch.setattr(known_code, "_SLOTS", 2)
    code = code_memory({2: 0x10000, 3: 0x10000})
    for address in np.arange(0x10000, 0x10020, dtype="<u8"):
        for own in (2, 9, 3):
            code.begin([2**30], lambda rows, _, own=own: np.full(len(rows), own, "<u4"))
            [number] = found(code, np.zeros(1, np.intp), np.array([address]))
            assert code.frames[number][1] == (own if own != 9 else 0)


def test_the_mappings_of_all_frames_are_asked_for_at_once() -> None:
    """Two processes have other code at the same addresses, 30 frames deep."""
    code, asked = code_memory({2: 0x10000, 3: 0x10000}), []

    def mappings_at(rows: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return np.where(addresses - 0x10000 < 0x10000, 2 + rows, 0).astype("<u4")

    deep = 30
    frame = 0x7000 + 16 * np.arange(deep, dtype="<u8")
    dump = np.stack((frame + 16, 0x10001 + np.arange(deep, dtype="<u8")), axis=1).reshape(1, -1)
    registers = np.zeros((2, 17), "<u8")
    registers[:, [6, 7, PROGRAM_COUNTER]] = 0x7000, 0x7000, 0x10100
    samples = Samples(registers, np.repeat(dump, 2, axis=0), np.full(2, dump.nbytes, "<u8"))
    for calls in (None, 1, 1):
        asked.clear()
        code.begin([2**30, 2**30 + 1], mappings_at)
        stacks = unwind(samples, code)
        assert stacks.depth.tolist() == [deep + 1] * 2
        assert (code.frames[stacks.frames][..., 1] == [[2], [3]]).all()
        assert calls is None or asked == [2 * (deep + 1)]


def test_two_files_of_one_name_have_interpreter_loops_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two containers `/usr/bin/python3` is not the same file."""
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=[2, 3], time_ns=1, pid=[2**30, 2**30 + 1], start=0x10000, end=0x20000, offset=0,
            file="/usr/bin/python3", dev=8, ino=[11, 12], build_id="", flags=MAP_EXECUTE | KIND_FILE << KIND_SHIFT,
        )
    )  # fmt: skip
    loops = {11: (0x100, 0x200), 12: (0x300, 0x400)}

    def image(mapping: CodeMapping) -> Any:
        rule = {"rule": lambda address: rules.FRAME_POINTER, "first_rule": lambda address: rules.FRAME_POINTER}
        unwind = SimpleNamespace(address_of=lambda offset: offset, **rule)
        return SimpleNamespace(unwind=unwind, symbols=SimpleNamespace(range_of=lambda name: loops[mapping.ino]))

    monkeypatch.setattr(code.images, "of", image)
    for own, inside, outside in ((2, 0x150, 0x350), (3, 0x350, 0x150)):
        code.begin([2**30], lambda rows, _, own=own: np.full(len(rows), own, "<u4"))
        numbers = code.numbers_of(np.zeros(2, np.intp), np.array([0x10001 + inside, 0x10001 + outside]))
        assert code.frames[numbers].T[5].tolist() == [FRAME_INTERPRETER, 0]


def test_what_a_file_says_of_an_address_is_found_out_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build runs its compiler hundreds of times; each time it is mapped elsewhere."""
    strings, asked = Dictionary(), []
    code = KnownCode(strings)
    starts = [0x10000, 0x50000, 0x90000]
    code.learn(
        batch_of(
            MAPPING, strings, id=[2, 3, 4], time_ns=1, pid=[2**30, 2**30 + 1, 2**30 + 2], start=starts,
            end=[start + 0x10000 for start in starts], offset=0, file="/usr/lib/cc1", dev=8, ino=[11, 11, 12],
            build_id="", flags=MAP_EXECUTE | KIND_FILE << KIND_SHIFT,
        )
    )  # fmt: skip

    def image(mapping: CodeMapping) -> Any:
        def rule(address: int) -> Any:
            asked.append((mapping.ino, address))
            return rules.FRAME_POINTER if mapping.ino == 11 else rules.END

        return SimpleNamespace(unwind=SimpleNamespace(address_of=lambda offset: offset, rule=rule))

    monkeypatch.setattr(code.images, "of", image)
    code.begin([2**30], lambda rows, _: (2 + rows).astype("<u4"))
    numbers = code.numbers_of(np.arange(3), np.array(starts) + 0x151)
    assert asked == [(11, 0x150), (12, 0x150)], "another file of that name is another"
    assert code.frames[numbers][:, 1].tolist() == [2, 2, 4]
    assert code.rules[:, code.rule_of[numbers]].T.tolist() == [
        [*one] for one in (rules.FRAME_POINTER,) * 2 + (rules.END,)
    ]


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_names_of_the_kernel_are_read_beside_the_worker(error: type[Exception] | None) -> None:
    """It takes up to a second, in which the rings would fill; a resolver that fails does not harm the worker."""
    asked: queue.Queue[tuple[str, bool]] = queue.Queue()

    class Asked(Resolver):
        name = "sections"

        def resolve(self, file: MappedFile, offsets: Any) -> list[Any]:
            asked.put((file.path, threading.current_thread() is threading.main_thread()))
            if error is not None:
                raise error
            return []

    context = SimpleNamespace(strings=Dictionary(), resolvers={"sections": Asked()}, stack_ids=StackIds())
    worker = Worker(context)  # type: ignore[arg-type]
    assert asked.get(timeout=60) == ("[kernel]", False)
    worker.close()
