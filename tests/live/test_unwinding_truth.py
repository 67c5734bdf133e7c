"""The unwinder beside perf's own on the very same samples, and beside gdb in stopped processes."""

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import perf_data
from kit.perf_data import Mapping, Sample
from kit.recorded_run import compiled
from kit.unwound import Stack, code_of, stacks

pytestmark = [
    pytest.mark.usefixtures("full_level"),
    pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (tests/install-peers)"),
]

PYTHON = """
import asyncio, decimal, email.message, json, re, unittest
def deep(n):
    return deep(n - 1) if n else bytearray(1 << 22)
async def later(n):
    return deep(n)
for n in range(2):
    deep(20)
    asyncio.run(later(9))
    json.loads(json.dumps([{str(i): [i] * 50} for i in range(2000)]))
    try:
        re.sub("(a|b)*c", lambda m: str(deep(3))[:1], "ababc" * 5)
        raise ValueError(sorted([str(i) for i in range(1000)], key=lambda word: deep(0) and word))
    except ValueError:
        pass
"""
NODE = """
let kept = [];
for (let round = 0; round < 15; round++) {
  kept = Array.from({length: 20000}, (_, i) => ({i, text: 'x' + i, more: [i]}));
  JSON.parse(JSON.stringify(kept)).map(one => one.text.repeat(3)).sort();
}
"""
JAVA = """
public class Faulty {
    static int[][] kept = new int[2000][];
    static int fill(int n) {
        int sum = 0;
        for (int i = 0; i < 1000; i++) { kept[(n * 31 + i) % 2000] = new int[500]; sum += i; }
        return sum;
    }
    static int deeper(int n, int depth) { return depth == 0 ? fill(n) : deeper(n, depth - 1) + 1; }
    public static void main(String[] words) throws Exception {
        Thread other = new Thread(() -> { for (int i = 0; i < 100; i++) deeper(i, 12); });
        other.start();
        for (int i = 0; i < 150; i++) deeper(i, i % 20);
        other.join();
    }
}
"""


def in_main_process(data: Path) -> tuple[int, list[Sample], list[Mapping]]:
    samples, mappings = perf_data.read(data)
    [(pid, _)] = collections.Counter(one.pid for one in samples).most_common(1)
    return pid, [one for one in samples if one.pid == pid], [one for one in mappings if one.pid == pid]


def compared(data: Path) -> tuple[dict[str, float], collections.Counter[str]]:
    """The shares of our stacks that are equal to perf's, longer, shorter, different; and examples."""
    pid, samples, mappings = in_main_process(data)
    truth = perf_data.script(data)
    assert len(samples) > 500
    counts = collections.Counter()
    examples = collections.Counter()
    for sample, ours in zip(samples, stacks(samples, code_of(pid, mappings)), strict=True):
        perf = truth.get((sample.tid, sample.time))
        if perf is None:
            continue
        # perf prints a caller's return address less one or not, by version; ours are less one
        same = 0
        while same < min(len(ours.places), len(perf)) and perf[same] - ours.places[same] in (0, 1):
            same += 1
        kind = (
            "equal" if same == len(ours.places) == len(perf)
            else "longer" if same == len(perf)
            else "shorter" if same == len(ours.places)
            else "different"
        )  # fmt: skip
        counts[kind] += 1
        if kind != "equal":
            holds = [one for one in mappings if one.start <= [*perf, 0][min(same, len(perf))] < one.end]
            examples[f"{kind} at {same} (whole: {ours.whole}): {[hex(x) for x in ours.places[max(same - 1, 0) :][:3]]} "
                     f"{[hex(x) for x in perf[max(same - 1, 0) :][:3]]}; mapped there: {holds[:3]}"] += 1  # fmt: skip
    total = sum(counts.values())
    assert total > 0.9 * len(samples)
    return {kind: count / total for kind, count in counts.items()}, examples


def test_python_of_the_distribution(tmp_path):
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("needs the distribution's python3")
    data = perf_data.record([python, "-c", PYTHON], tmp_path, event="page-faults", period=12)
    shares, examples = compared(data)
    assert shares["equal"] >= 0.994, (shares, examples.most_common(5))


def test_cxx_with_exceptions_signals_and_realigned_frames(tmp_path):
    source = (Path(__file__).parent / "unwinding_truth.cpp").read_text()
    program = compiled(tmp_path, source, "-O2", "-lstdc++", name="program.cpp")
    shares, examples = compared(perf_data.record([str(program)], tmp_path, event="page-faults", period=8))
    assert shares["equal"] >= 0.994, (shares, examples.most_common(5))


@pytest.mark.parametrize("name", ["node", "java"])
def test_a_just_in_time_compiler_is_not_cut_shorter(tmp_path, name):
    """perf's unwinder knows no frame pointers in code without `.eh_frame`: ours go on to the outermost frame."""
    if shutil.which(name) is None:
        pytest.skip(f"needs {name} (tests/install-peers)")
    if name == "java":
        (tmp_path / "Faulty.java").write_text(JAVA)
        subprocess.run(["javac", "-d", tmp_path, tmp_path / "Faulty.java"], check=True)
        command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", str(tmp_path), "Faulty"]
    else:
        command = ["node", "-e", NODE]
    shares, examples = compared(perf_data.record(command, tmp_path, event="page-faults", period=8))
    assert shares.get("shorter", 0) < 0.001, (shares, examples.most_common(5))
    assert shares.get("different", 0) < 0.002, (shares, examples.most_common(5))
    assert shares["equal"] + shares.get("longer", 0) > 0.998


GDB = """
import gdb, json, sys
names = ("rax rbx rcx rdx rsi rdi rbp rsp rip r8 r9 r10 r11 r12 r13 r14 r15").split()
made = []
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, frames = gdb.newest_frame(), []
    registers = [int(frame.read_register(name)) & (1 << 64) - 1 for name in names]
    while frame is not None and len(frames) < 300:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):  # made from debug information, not on the stack
            frames.append(frame.pc() & (1 << 64) - 1)
        try:
            frame = frame.older()
        except gdb.error:
            break
    stack = b""
    try:
        while len(stack) < 65536:
            stack += bytes(gdb.selected_inferior().read_memory(registers[7] + len(stack), 256))
    except gdb.error:
        pass
    made.append({"tid": thread.ptid[1], "registers": registers, "frames": frames, "stack": stack.hex()})
open(sys.argv[1] if len(sys.argv) > 1 else "gdb.json", "w").write(json.dumps(made))
"""


def mappings_of(pid: int) -> list[Mapping]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, protection, offset, device, ino, *name = line.split(maxsplit=5)
        start, _, end = place.partition("-")
        major, _, minor = device.partition(":")
        found.append(Mapping(pid, int(start, 16), int(end, 16), int(offset, 16), (int(major, 16), int(minor, 16)),
                             int(ino), 4 * ("x" in protection), name[0] if name else ""))  # fmt: skip
    return found


def test_gdb_finds_the_same_frames_in_a_stopped_process(tmp_path):
    if shutil.which("gdb") is None:
        pytest.skip("needs gdb (tests/install-peers)")
    (tmp_path / "dump.py").write_text(GDB)
    busy = "import json, threading\ndef f(n): return f(n - 1) if n else json.dumps([{'a': [1] * 99}] * 999)\n"
    busy += "threading.Thread(target=lambda: [f(9) for _ in range(10**6)], daemon=True).start()\nwhile True: f(30)"
    same = total = 0
    target = subprocess.Popen([sys.executable, "-c", busy])
    try:
        while len(list(Path(f"/proc/{target.pid}/task").iterdir())) < 2:
            assert target.poll() is None
            time.sleep(0.01)
        for _ in range(6):
            time.sleep(0.2)
            os.kill(target.pid, signal.SIGSTOP)
            subprocess.run(
                ["gdb", "-q", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", str(target.pid), "-x",
                 tmp_path / "dump.py"], cwd=tmp_path, capture_output=True, timeout=60, check=True,
            )  # fmt: skip
            for thread in json.loads((tmp_path / "gdb.json").read_text()):
                dump = bytes.fromhex(thread["stack"])
                sample = Sample(
                    target.pid, thread["tid"], 0, thread["registers"][8], thread["registers"], dump, len(dump)
                )
                [ours] = stacks([sample], code_of(target.pid, mappings_of(target.pid)))
                total += 1
                same += _less_one(thread["frames"], ours)
            os.kill(target.pid, signal.SIGCONT)
    finally:
        target.kill()
        target.wait()
    assert total >= 12
    assert same == total


def _less_one(frames: list[int], ours: Stack) -> bool:
    """Whether they are the same; a caller's place is one byte before its return address."""
    return len(frames) == len(ours.addresses) and all(
        theirs - place in (0, 1) for theirs, place in zip(frames, ours.addresses, strict=True)
    )
