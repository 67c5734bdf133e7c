"""Which samples are unwound together, which are given up, to which faults their stacks belong; maps of JITs (perf).

Small batches of samples are unwound together, as a step of numpy costs as much for one as for hundreds. Samples that
have waited for long are given up, so that the records behind them are not.
"""

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.schema import HOW_OWN, MAP_EXECUTE, MAP_WRITE, MAPPING, PAGE_FAULT, STACK_DUMP
from wstrace.testing import batch_of
from wstrace_plugins.stacks.enricher import BEHIND_NS, NativeStacks
from wstrace_plugins.stacks.linux.backend import Join, Stacks
from wstrace_plugins.stacks.linux.perf_maps import PerfMap

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)


def samples(n: int, words: int, begin: int, time_ns: int = 0) -> Batch:
    number = begin + np.arange(n)
    columns = {name: number.astype("<u4") for name in ("pid", "tid", "size")}
    columns |= {name: number.astype("<u8") for name in ("pc", "va")}
    columns["time_ns"] = np.full(n, time_ns, "<u8")
    columns["registers"] = number[:, None].astype("<u8") * np.ones(17, "<u8")
    columns["dump"] = number[:, None].astype("<u8") + np.arange(words, dtype="<u8")
    return Batch(STACK_DUMP, columns)


@pytest.mark.parametrize(("waited_ns", "given_up"), [(-60 * 10**9, 0), (BEHIND_NS + 1, 3)])
def test_samples_that_wait_for_too_long_are_given_up_and_reported(waited_ns, given_up):
    context = Context()
    enricher = NativeStacks()
    enricher.start(context)
    taken = samples(3, 4, 1, now_ns() - waited_ns)
    zeros = np.zeros(2, "<u8")
    columns = {"time_ns": zeros, "pid": zeros, "tid": zeros, "pc": zeros, "va": zeros, "flags": zeros}
    assert list(enricher.enrich(taken)) == []
    faults = list(enricher.enrich(Batch(PAGE_FAULT, {name: one.astype("<u4") for name, one in columns.items()})))[-1]
    assert len(faults) == 2, "no record is given up"
    assert context.ledger.get("stacks_lost", "unwound too slowly") == given_up
    list(enricher.close())


@pytest.mark.parametrize(("rights", "most"), [(MAP_WRITE, 1 << 20), (MAP_EXECUTE, 20 << 20)])
@pytest.mark.parametrize(("batches", "n"), [(3000, 1), (300, 2000)])
def test_mappings_before_the_first_sample_take_a_bounded_memory(rights, most, batches, n):
    enricher = NativeStacks()
    enricher.start(Context())
    rest = dict.fromkeys(("time_ns", "pid", "start", "end", "offset", "file", "dev", "ino"), np.zeros(n))
    tracemalloc.start()
    try:
        for _ in range(batches):
            list(enricher.enrich(batch_of(MAPPING, id=np.arange(n), flags=np.full(n, rights), **rest)))
        assert tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()


def faults(*rows: tuple[int, int, int]):
    """Rows (time, tid, va)."""
    time_ns, tid, va = zip(*rows, strict=True)
    return batch_of(PAGE_FAULT, time_ns=time_ns, pid=7, tid=tid, pc=1, va=va, flags=0)


def unwound(*rows: tuple[int, int, int]) -> Stacks:
    """Samples (time, tid, va), whose stack is their time."""
    time_ns, tid, va = (np.array(column, "<u8") for column in zip(*rows, strict=True))
    return Stacks(time_ns, tid.astype("<u4"), np.ones(len(va), "<u8"), va, time_ns.astype("<u4"),
                  np.full(len(va), HOW_OWN, "u1"))  # fmt: skip


def joined(join: Join, batch) -> dict[int, tuple[int, int]]:
    """time of the row -> (stack, weight)."""
    found = join.rows(batch)
    columns = (batch["time_ns"][found.rows].tolist(), found.stacks.stack.tolist(), found.weight.tolist())
    return {time_ns: (stack, weight) for time_ns, stack, weight in zip(*columns, strict=True)}


def test_a_sample_without_a_row_of_its_fault_belongs_to_none():
    """The fault ended in a signal, or its row was lost: the next row is of another address."""
    join = Join()
    join.add(unwound((10, 1, 0x1000)))
    assert joined(join, faults((12, 1, 0x2000), (13, 1, 0x1000))) == {}
    assert join.without_row == 1
    assert len(join.waiting.tid) == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_every_sample_gets_its_own_fault_and_the_weights_add_up(made, size):
    """Against the plain statement: faults of three threads, cut into batches anywhere."""
    rows = [(10 * n + 5, tid, n) for n, (tid, _) in enumerate(made)]
    taken = [(10 * n, tid, n) for n, (tid, sampled) in enumerate(made) if sampled]
    join, found = Join(), {}
    if taken:
        join.add(unwound(*taken))
    for start in range(0, len(rows), size):
        found |= joined(join, faults(*rows[start : start + size]))
    assert {time: stack for time, (stack, _) in found.items()} == {time + 5: time for time, _, _ in taken}
    for thread in (1, 2, 3):
        own = [n for n, (tid, _) in enumerate(made) if tid == thread]
        last = max((place for place, n in enumerate(own) if made[n][1]), default=-1)
        assert sum(weight for time, (_, weight) in found.items() if made[(time - 5) // 10][0] == thread) == last + 1


@pytest.fixture
def target():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()
    path_of(process.pid).unlink(missing_ok=True)


def path_of(pid: int) -> Path:
    return Path(f"/tmp/perf-{pid}.map")


def read(text: bytes, pid: int) -> PerfMap:
    path_of(pid).write_bytes(text)
    found = PerfMap(pid, 0)
    assert found.grow()
    return found


def test_a_map_grows(target):
    found = read(b"1000 10 first\n2000 10 sec", target.pid)
    assert found.name(0x2000) is None
    with path_of(target.pid).open("ab") as file:
        file.write(b"ond\n")
    assert found.grow()
    assert found.name(0x2000) == "second"
    assert not found.grow()
    found.close()


@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12), min_size=1, max_size=8))
@settings(max_examples=60)
def test_of_all_lines_that_cover_an_address_the_last_one_names_it(pieces):
    """Against the plain statement, however the map grew."""
    path, lines = path_of(os.getpid()), []
    path.write_bytes(b"")
    found = PerfMap(os.getpid(), 0)
    try:
        for piece in pieces:
            with path.open("ab") as file:
                for start, size in piece:
                    lines.append((start, size, f"f{len(lines)}"))
                    file.write(b"%x %x f%d\n" % (start, size, len(lines) - 1))
            assert found.grow() == bool(piece)
        for address in range(55):
            names = [name for start, size, name in lines if start <= address < start + size]
            assert found.name(address) == (names[-1] if names else None)
    finally:
        found.close()
        path.unlink()


def test_lines_that_lie_are_left_out(target):
    text = (
        b"x y z\n-1 10 a\n1000 0 b\n1000 ffffffffffffffffff c\n" + b"ffffffffffffffff 10 d\n" + b"\xff" * 5000 + b"\n"
    )
    found = read(text + b"1000 10 " + b"n" * 5000 + b"\n", target.pid)
    assert found.name(0x1000) == "n" * 1024
    found.close()


def test_a_map_costs_a_bound_however_many_lines_it_has(target):
    """Of 64 MiB of short lines 2.7 GB were taken, and each name was looked for in a million lines."""
    path_of(target.pid).write_bytes(b"0 1 a\n" * (1 << 20) + b"\n" * (4 << 20))
    found = PerfMap(target.pid, 0)
    tracemalloc.start()
    assert found.grow(8 << 20)
    assert tracemalloc.get_traced_memory()[1] <= 64 << 20
    tracemalloc.stop()
    assert 80_000 < len(found) < 400_000
    while found.grow(8 << 20):
        pass
    began = time.process_time()
    assert {found.name(0) for _ in range(2000)} == {"a"}
    assert time.process_time() - began <= 2
    found.close()


def test_a_map_of_another_user_is_not_believed(target):
    if os.geteuid():
        pytest.skip("only on a system where we are root: gives a file away")
    path_of(target.pid).write_bytes(b"1000 10 evil\n")
    os.chown(path_of(target.pid), 12345, 12345)
    assert not PerfMap(target.pid, 0).grow()


def test_a_map_of_an_older_process_with_that_pid_is_not_believed(target):
    path_of(target.pid).write_bytes(b"1000 10 old\n")
    past = time.time() - 3600
    os.utime(path_of(target.pid), (past, past))
    assert not PerfMap(target.pid, 0).grow()


def test_a_map_that_is_written_at_the_end_counts_where_the_process_had_its_folder(tmp_path):
    """As a JVM does (-XX:+DumpPerfMapAtExit). It is looked for in the process's root, as the process's user's file."""
    if os.geteuid():
        pytest.skip("only on a system where we are root: changes root and user")
    (tmp_path / "tmp").mkdir()
    code = f"import os, time; os.chroot({str(tmp_path)!r}); os.setuid(12345); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    found = PerfMap(process.pid, 0)
    assert not found.grow()
    process.kill()
    process.communicate()
    path_of(process.pid).write_bytes(b"1000 10 in_our_root\n")
    mine = tmp_path / "tmp" / f"perf-{process.pid}.map"
    mine.write_bytes(b"1000 10 its_own\n")
    try:
        assert not found.grow(), "root wrote it, not the process's user"
        os.chown(mine, 12345, 12345)
        assert found.grow()
        assert found.name(0x1000) == "its_own"
    finally:
        path_of(process.pid).unlink()
        found.close()


def test_a_link_or_a_pipe_in_its_place_is_not_opened(target, tmp_path):
    (tmp_path / "secret").write_bytes(b"1000 10 secret\n")
    path_of(target.pid).symlink_to(tmp_path / "secret")
    assert not PerfMap(target.pid, 0).grow()
    path_of(target.pid).unlink()
    os.mkfifo(path_of(target.pid))
    assert not PerfMap(target.pid, 0).grow()


def test_of_a_process_that_has_ended_a_map_of_our_own_user_is_believed(target):
    target.kill()
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which has no root any more
    began = time.monotonic_ns()
    path_of(target.pid).write_bytes(b"1000 10 own\n")
    found = PerfMap(target.pid, began)
    assert found.grow()
    assert found.name(0x1000) == "own"
    found.close()
    assert not PerfMap(target.pid, time.monotonic_ns() + 10**10).grow(), "older than the process"
    if not os.geteuid():
        os.chown(path_of(target.pid), 12345, 12345)
        assert not PerfMap(target.pid, began).grow()
