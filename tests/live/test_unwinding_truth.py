"""The unwinder beside perf's own on the very same samples, and beside gdb in stopped processes."""

import collections
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from kit.recorded_run import compiled

from wstrace.batch import Dictionary
from wstrace.schema import KIND_FILE, KIND_SHIFT, KIND_VDSO, MAP_EXECUTE, MAP_READ, MAPPING
from wstrace.testing import batch_of
from wstrace_plugins.stacks.linux.known_code import KnownCode
from wstrace_plugins.stacks.unwinder import Samples, unwind

# perf.data: tools/perf/Documentation/perf.data-file-format.txt, include/uapi/linux/perf_event.h
#: registers of perf's dumps on x86-64, in the order in which they are written: ours come first but for the segments
_MASK = 0xFF0FFF


class Sample(NamedTuple):
    pid: int
    tid: int
    time: int
    ip: int
    registers: list[int]
    dump: bytes
    size: int


class Mapping(NamedTuple):
    pid: int
    start: int
    end: int
    offset: int
    device: tuple[int, int]
    ino: int
    protection: int
    name: str


def record(command: Sequence[str], folder: Path, *, event: str, period: int, dump: int = 16384) -> Path:
    """perf.data of a command, with the stack of one event out of this many."""
    path = folder / "perf.data"
    subprocess.run(
        ["perf", "record", "-q", "-e", event, "-c", str(period), "-m", "2048", "--call-graph", f"dwarf,{dump}",
         "-o", str(path), "--", *command],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return path


def read(path: Path) -> tuple[list[Sample], list[Mapping]]:
    """The samples that have registers, and the mappings in the order of their times.

    The file holds the records of one CPU's ring behind those of another: a process that moved between CPUs has its
    mappings out of order there.
    """
    data = path.read_bytes()
    (attributes,) = struct.unpack_from("<Q", data, 24)
    start, size = struct.unpack_from("<QQ", data, 40)
    (kind,) = struct.unpack_from("<Q", data, attributes + 24)
    #: the fields of a record behind the time, where `sample_id_all` puts one: id, stream, CPU, identifier
    behind_time = 8 * (1 + sum(bool(kind & bit) for bit in (64, 512, 128, 1 << 16)))
    samples = []
    mappings = []
    at = start
    while at < start + size:
        record, _, length = struct.unpack_from("<IHH", data, at)
        if record == 10:
            pid, _, first, bytes_, offset, major, minor, ino, _, protection, _ = struct.unpack_from(
                "<IIQQQIIQQII", data, at + 8
            )
            name = data[at + 72 : at + length].split(b"\0")[0].decode()
            (time,) = struct.unpack_from("<Q", data, at + length - behind_time)
            new = Mapping(pid, first, first + bytes_, offset, (major, minor), ino, protection, name)
            mappings.append((time, new))
        elif record == 9 and (sample := _sample(data, at + 8, kind)) is not None:
            samples.append(sample)
        at += length or size
    mappings.sort(key=lambda one: one[0])
    return samples, [new for _, new in mappings]


def _sample(data: bytes, at: int, kind: int) -> Sample | None:
    at += 8 * bool(kind & 1 << 16)
    ip, pid, tid, time = struct.unpack_from("<QIIQ", data, at)
    at += 24 + 8 * sum(bool(kind & bit) for bit in (8, 64, 512, 128, 256))
    if kind & 32:
        at += 8 + 8 * struct.unpack_from("<Q", data, at)[0]
    (abi,) = struct.unpack_from("<Q", data, at)
    if not abi:
        return None
    count = _MASK.bit_count()
    registers = struct.unpack_from(f"<{count}Q", data, at + 8)
    at += 8 + 8 * count
    (size,) = struct.unpack_from("<Q", data, at)
    (real,) = struct.unpack_from("<Q", data, at + 8 + size) if size else (0,)
    return Sample(pid, tid, time, ip, [*registers[:9], *registers[-8:]], data[at + 8 : at + 8 + size], real)


def script(path: Path) -> dict[tuple[int, int], list[int]]:
    """(tid, time) -> the addresses that perf's own unwinder found, innermost first, without the kernel's."""
    text = subprocess.run(
        ["perf", "script", "-i", str(path), "-F", "pid,tid,time,ip", "--ns", "--no-inline", "--max-stack", "1024"],
        capture_output=True, text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    found = {}
    stack = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and "/" in words[0]:
            seconds, _, rest = words[1].rstrip(":").partition(".")
            stack = found.setdefault((int(words[0].partition("/")[2]), int(seconds) * 10**9 + int(rest)), [])
        elif words and int(words[0], 16) < 1 << 63:
            stack.append(int(words[0], 16))
    return found


def arrays(samples: Sequence[Sample]) -> dict[str, Any]:
    """registers u64 (n, 17), dump u64 (n, words), size u64 (n,)."""
    words = max((len(sample.dump) for sample in samples), default=0) // 8
    dump = np.zeros((len(samples), words), "<u8")
    for row, sample in enumerate(samples):
        dump[row, : len(sample.dump) // 8] = np.frombuffer(sample.dump, "<u8")
    registers = np.array([sample.registers for sample in samples], "<u8").reshape(-1, 17)
    return {"registers": registers, "dump": dump, "size": np.array([sample.size for sample in samples], "<u8")}


class Stack(NamedTuple):
    """The places of its frames, innermost first, and whether they are all.

    A place is an offset into a file, or an address.
    """

    places: list[int]
    addresses: list[int]
    whole: bool


def _around(old: Mapping, new: Mapping) -> list[Mapping]:
    """What a new mapping leaves of an old one."""
    below = old._replace(end=min(old.end, new.start))
    first = max(old.start, new.end)
    above = old._replace(start=first, offset=old.offset + first - old.start)
    return [one for one in (below, above) if one.start < one.end]


def code_of(pid: int, mappings: Sequence[Mapping]) -> KnownCode:
    """What is known of the code of a process; of two mappings of an address the later one holds."""
    live = []
    for new in mappings:
        if new.protection & 4 or new.name == "//anon":
            live = [rest for one in live for rest in _around(one, new)] + [new]
    live.sort(key=lambda one: one.start)
    kinds = [KIND_VDSO if one.name == "[vdso]" else KIND_FILE for one in live]
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=list(range(2, 2 + len(live))), time_ns=1, pid=pid,
            start=[one.start for one in live], end=[one.end for one in live], offset=[one.offset for one in live],
            file=[one.name if one.name.startswith("/") and not one.name.startswith("//") else "[anon]" for one in live],
            dev=[os.makedev(*one.device) for one in live], ino=[one.ino for one in live], build_id="",
            flags=[MAP_READ | MAP_EXECUTE | kind << KIND_SHIFT for kind in kinds],
        )
    )  # fmt: skip
    starts, ends = np.array([one.start for one in live], "<u8"), np.array([one.end for one in live], "<u8")

    def mappings_at(rows, addresses):
        at = np.searchsorted(starts, addresses, side="right") - 1
        return np.where((at >= 0) & (addresses < ends[np.maximum(at, 0)]), at + 2, 0).astype("<u4")

    code.begin([pid], mappings_at)
    return code


def stacks(samples: Sequence[Sample], code: KnownCode) -> list[Stack]:
    """The stacks of samples of one process."""
    found = unwind(Samples(**arrays(samples)), code)
    made = []
    mappings = {one.id: one for one in code._mappings}
    for row, whole in enumerate(found.whole.tolist()):
        frames = [code.frames[number].tolist() for number in found.frames[row, : found.depth[row]]]
        places = [frame[2] for frame in frames if frame[1]]
        addresses = []
        for _, mapping, offset, *_ in frames:
            if mapping:
                one = mappings[mapping]
                in_file = code._strings[one.file].startswith("/") or one.is_vdso
                addresses.append(offset - one.offset + one.start if in_file else offset)
        made.append(Stack(places, addresses, whole))
    return made


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
    samples, mappings = read(data)
    [(pid, _)] = collections.Counter(one.pid for one in samples).most_common(1)
    return pid, [one for one in samples if one.pid == pid], [one for one in mappings if one.pid == pid]


def compared(data: Path) -> tuple[dict[str, float], collections.Counter[str]]:
    """The shares of our stacks that are equal to perf's, longer, shorter, different; and examples."""
    pid, samples, mappings = in_main_process(data)
    truth = script(data)
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
    data = record([python, "-c", PYTHON], tmp_path, event="page-faults", period=12)
    shares, examples = compared(data)
    assert shares["equal"] >= 0.994, (shares, examples.most_common(5))


def test_cxx_with_exceptions_signals_and_realigned_frames(tmp_path):
    source = (Path(__file__).parent / "unwinding_truth.cpp").read_text()
    program = compiled(tmp_path, source, "-O2", "-lstdc++", name="program.cpp")
    shares, examples = compared(record([str(program)], tmp_path, event="page-faults", period=8))
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
    shares, examples = compared(record(command, tmp_path, event="page-faults", period=8))
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
