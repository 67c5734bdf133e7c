"""What a program does without end takes no memory of the tracer without end: what finds no room is counted."""

import sys
from pathlib import Path

import pytest
from kit.command_line import begun, peak_bytes
from kit.new_functions import new_functions

from wstrace import bus, open_trace
from wstrace.batch import Dictionary, StackIds
from wstrace_plugins.mapped_files.spaces import AddressSpaces, Space
from wstrace_plugins.page_faults.linux.python_stacks import decoder

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")]

SECONDS = 60
#: what may wait: for an exporter that gathers, and of mappings and processes
QUEUES = bus.GATHERED_BYTES + bus.PATIENT_BYTES
#: 52 B a call site: a frame, its id, and four places of the index
NAMES, STACKS = Dictionary.LIVE_BYTES, decoder.MOST_BYTES + 52 * StackIds.LIMIT
#: 500 B each: mappings of processes that have ended, and the changes of one that lives
MAPPINGS = 500 * (AddressSpaces.MAX_ENDED + 3 * Space.MOST)
#: what allocators keep of tables that were copied as they grew: a storm of mappings took 133 MiB in 60 s, 115 in 180
KEPT = 32 << 20
ENDLESS = f"import itertools, mmap, os, time\nend = time.monotonic() + {SECONDS}\n"
#: a program that does one thing without end, and the tables that this fills
STORMS = {
    "mappings": (ENDLESS + "while time.monotonic() < end:\n    with mmap.mmap(-1, 8192) as memory:\n"
                 "        memory[0] = memory[4096] = 1\n", MAPPINGS),
    "processes": (ENDLESS + "while time.monotonic() < end:\n"
                  "    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n", MAPPINGS + STACKS),
    "file names": (
        ENDLESS + "import tempfile\nwith tempfile.TemporaryDirectory() as folder, open(folder + '/0', 'w+b') as file:\n"
        "    file.truncate(4096)\n    os.chdir(folder)\n"
        "    for _ in range(18):\n        os.mkdir('d' * 200)\n        os.chdir('d' * 200)\n"
        "    os.rename(folder + '/0', '0')\n"
        "    for n in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):\n"
        "        os.rename(str(n), str(n + 1))\n"
        "        with mmap.mmap(file.fileno(), 4096) as memory:\n            memory[0] = 1\n", NAMES + MAPPINGS),
    "functions": (new_functions(SECONDS), NAMES + STACKS),
    "lines": (new_functions(SECONDS, lines=True), NAMES + STACKS),
    "long names": (new_functions(SECONDS, 1500), NAMES + STACKS),
}  # fmt: skip


def traced(program: str, kept: Path) -> int:
    """The most resident bytes of the tracer of that program."""
    with begun("run", "-q", "-f", "-o", kept, "-c", program) as tracer:
        most = peak_bytes(tracer)
    assert tracer.returncode in (0, 123)
    return most


@pytest.mark.parametrize("storm", STORMS)
def test_the_memory_of_the_tracer_is_what_its_tables_may_take(storm: str, tmp_path: Path) -> None:
    (program, tables), kept = STORMS[storm], tmp_path / "x.wst"
    least = traced("import time; time.sleep(1)", kept)
    most = traced(program, kept)
    print(f"{storm}: {most >> 20} MiB, {least >> 20} at the start; the tables {tables >> 20}, queues {QUEUES >> 20}")
    assert most <= least + tables + QUEUES + KEPT
    with open_trace(str(kept)) as trace:
        counts = trace.ledger
    stages = ("lost_kernel", "lost_tracer", "foreign_clock", "unaccounted")
    lost = sum(counts.get(stage, kind) for stage in stages for kind in ("minor", "major", "page_faults"))
    assert counts.get("recorded", "page_fault") + lost == counts.get("counted")
