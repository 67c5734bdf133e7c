"""What lies at an address: a program that says so itself, step by step, against what `wstrace run` recorded of it."""

import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from kit.cgroups import MadeCgroup
from kit.command_line import until
from kit.recorded_run import compiled, faults, record

from wstrace.schema import KINDS, PROCESS_EXEC
from wstrace.session import Session
from wstrace_plugins.os.linux.backend import platform

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("full_level")

PROGRAM = Path(__file__).with_name("mapping_truth.c")
MOVED = 2  # so many steps, the last ones, come after an mremap()

LIBRARY = f"const char constants[64 * {mmap.PAGESIZE}] __attribute__((aligned({mmap.PAGESIZE}))) = {{1}};\n"


class Said(NamedTuple):
    pid: int
    before: int
    after: int
    va: int
    offset: int
    kind: str
    file: str


def traced_remaps() -> bool:
    """True where tracefs may be read."""
    from wstrace_plugins.page_faults.linux import calls

    with calls.permitted() as permitted:
        return bool(permitted)


def mapping_rows(trace: Any) -> dict[int, tuple[int, int, int]]:
    """id -> start, end, offset."""
    columns = trace.mappings
    rows = zip(*(columns[name].tolist() for name in ("id", "start", "end", "offset")), strict=True)
    return {number: row for number, *row in rows}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The traced program: its trace, what it said, and its path."""
    folder, other = (tmp_path_factory.mktemp(name) for name in ("truth", "library"))
    program = compiled(folder, PROGRAM.read_text(), "-fno-stack-clash-protection", "-ldl")
    library = compiled(other, LIBRARY, "-shared", "-fPIC")
    files = [folder / "a file", folder / "b\nfile"]
    for file in files:
        file.write_bytes(os.urandom(256 * mmap.PAGESIZE))
    with record(folder, [program, *files, library, folder / "said"]) as trace:
        said = []
        for line in (folder / "said").read_text().replace("b\nfile", "b\\nfile").splitlines():
            *numbers, kind, file = line.split("\t")
            said.append(Said(*map(int, numbers), kind, file.replace("\\n", "\n")))
        yield trace, said, program


def at(columns: dict[str, np.ndarray], said: Said) -> list[int]:
    """The rows of that process's faults at that address between the two times."""
    here = (columns["pid"] == said.pid) & (columns["va"] == said.va)
    here &= (columns["time_ns"] >= said.before) & (columns["time_ns"] <= said.after)
    return list(np.flatnonzero(here).tolist())


def test_every_page_is_what_the_program_says(shown):
    """GIVEN a program that maps one thing after the other at one address, in two processes and two images WHEN it
    touches a page of each THEN each fault has the kind, the file, the offset and the instruction that it says.
    """
    trace, said, program = shown
    columns, mappings, strings = faults(trace), mapping_rows(trace), trace.strings
    assert len(said) == 20
    assert len({one.pid for one in said}) == 2
    for one in said if traced_remaps() else said[:-MOVED]:
        rows = at(columns, one)
        assert len(rows) == 1, one
        row = rows[0]
        start, end, offset = mappings[int(columns["mapping"][row])]
        assert (KINDS[columns["kind"][row]], strings[columns["file"][row]]) == (one.kind, one.file), one
        assert start <= one.va < end
        if (one.kind == "file" and one.offset >= 0) or one.kind == "shared memory":
            assert one.va - start + offset == one.offset, one
        kernel = bool(columns["flags"][row] & 2)
        assert strings[columns["pc_file"][row]] == ("[kernel]" if kernel else str(program)), one
    assert trace.ledger.get("unresolved") == 0


def test_the_instruction_is_where_its_own_image_has_it(shown):
    """The program's own symbol table (nm) has a function around each of the instructions that it names."""
    if shutil.which("nm") is None:
        pytest.skip("needs nm (tests/install-peers)")
    trace, said, program = shown
    columns, mappings = faults(trace), mapping_rows(trace)
    lines = subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout.splitlines()
    sized = [line.split() for line in lines if len(line.split()) == 4]
    spans = {name: (int(start, 16), int(start, 16) + int(size, 16)) for start, size, _, name in sized}
    inside = {"reads": 0, "writes": 0}
    for one in said:
        row = at(columns, one)[0]
        start, _, offset = mappings[int(columns["pc_mapping"][row])]
        if not columns["flags"][row] & 2:
            place = int(columns["pc"][row]) - start + offset  # the text lies at its own file offset: ld's default
            inside[next(name for name in inside if spans[name][0] <= place < spans[name][1])] += 1
    assert sum(inside.values()) == len(said) - 1  # all but the one that the kernel touched


IMPORT = "import sys; sys.argv = ['x']\nimport numpy"


def test_nothing_of_an_import_is_unknown(tmp_path):
    with record(tmp_path, [sys.executable, "-c", IMPORT]) as trace:
        columns = faults(trace)
        n = len(columns["va"])
        assert n > 1000 * 4096 // mmap.PAGESIZE
        unknown = [hex(va) for va in columns["va"][columns["mapping"] == 0].tolist()]
        assert unknown == []
        assert int((columns["pc_mapping"] == 0).sum()) == 0
        assert trace.ledger.get("unresolved") == 0
        names = {trace.strings[code] for code in np.unique(columns["file"]).tolist()}
        assert any("numpy" in name and name.endswith(".so") for name in names)
        assert {"[anon]", "[heap]", "[stack]"} <= names


GROW = """
grown = []
for i in range(3_000_000):
    grown.append(i)
"""


def test_a_list_that_grows_is_anonymous_memory(tmp_path):
    """realloc() moves it by mremap(), of which perf does not tell: tracefs does."""
    if not traced_remaps():
        pytest.skip("needs tracefs (mount -t tracefs tracefs /sys/kernel/tracing)")
    with record(tmp_path, [sys.executable, "-S", "-c", GROW]) as trace:
        columns = faults(trace)
        kinds = dict(zip(*np.unique(columns["kind"], return_counts=True), strict=True))
        assert kinds[KINDS.index("anon")] > 5000 * 4096 // mmap.PAGESIZE
        assert int((columns["mapping"] == 0).sum()) == 0
        assert int((columns["pc_mapping"] == 0).sum()) == 0


RESIDENT = """
import json, mmap, os, sys, time
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
sum(mapped[::mmap.PAGESIZE])
anon = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
anon[:] = bytes(1 << 20)
shared = mmap.mmap(-1, 1 << 20)
shared[:] = bytes(1 << 20)
time.sleep(0.6)
with open(sys.argv[2], "w") as said:
    json.dump(open("/proc/self/smaps").read(), said)
time.sleep(0.6)
"""


def test_resident_pages_have_the_file_and_kind_that_smaps_has(tmp_path):
    """GIVEN `-s working_set` WHEN a process holds a file, anonymous and shared memory THEN each run of resident pages
    has the file of the line of smaps that it lies in, and the bytes by file are those of smaps' Rss.
    """
    file = tmp_path / "mapped"
    file.write_bytes(os.urandom(1 << 20))
    command = [sys.executable, "-S", "-c", RESIDENT, file, tmp_path / "said"]
    with record(tmp_path, command, "-s", "working_set:interval=0.2,max_cpu=1") as trace:
        expected = _by_file(json.loads((tmp_path / "said").read_text()))
        snapshots = {}
        for batch in trace.batches("resident"):
            assert (batch["mapping"] != 0).all()
            sums = snapshots.setdefault(batch.snapshot.number, {})
            for code, kind, pages, flags in zip(
                *(batch[name].tolist() for name in ("file", "kind", "pages", "flags")), strict=True
            ):
                if not flags & (256 | 512):  # zero pages and swapped ones are not resident
                    key = trace.strings[code], KINDS[kind]
                    sums[key] = sums.get(key, 0) + pages * (mmap.PAGESIZE // 1024)
    assert snapshots
    settled = [sums for sums in snapshots.values() if sums.get((str(file), "file")) == 1024]
    assert settled
    assert settled[-1] == pytest.approx(expected, abs=256)  # KiB: reading smaps and writing `said` touch some
    for name, kind in ((str(file), "file"), ("[shared memory]", "shared memory")):
        assert settled[-1][name, kind] == expected[name, kind] == 1024


def _by_file(smaps: str) -> dict[tuple[str, str], int]:
    """(file, kind) -> KiB resident, as smaps names them."""
    from wstrace_plugins.os.linux.procfs import label

    sums = {}
    name = ("", "")
    for line in smaps.splitlines():
        words = line.split(None, 5)
        if "-" in words[0]:
            path, kind = label(words[5] if len(words) > 5 else "")
            name = path, KINDS[kind]
        elif words[0] == "Rss:" and int(words[1]):
            sums[name] = sums.get(name, 0) + int(words[1])
    return sums


def test_a_hundred_forks_and_execs(tmp_path):
    """GIVEN a shell that runs another program again and again THEN its children are the shell until their exec and the
    program from then on, and nothing is unknown.
    """
    shell, program = (Path(shutil.which(name) or name).resolve() for name in ("sh", "true"))
    # in brackets: dash would vfork() for the program alone, and touch no page before it executes it
    with record(tmp_path, [shell, "-c", f"i=0; while [ $i -lt 100 ]; do (:; {program}); i=$((i+1)); done"]) as trace:
        columns, processes = faults(trace), trace.processes
        assert int((columns["mapping"] == 0).sum()) == int((columns["pc_mapping"] == 0).sum()) == 0
        assert trace.ledger.get("unresolved") == 0
        executed = processes["event"] == PROCESS_EXEC
        times = dict(zip(processes["pid"][executed].tolist(), processes["time_ns"][executed].tolist(), strict=True))
        names = {code: trace.strings[code] for code in np.unique([columns["file"], columns["pc_file"]]).tolist()}
        seen = {True: set(), False: set()}
        for pid, time, va, pc in zip(
            *(columns[name].tolist() for name in ("pid", "time_ns", "file", "pc_file")), strict=True
        ):
            if pid in times and pid not in trace.info.targets:
                seen[time >= times[pid]] |= {(pid, names[va]), (pid, names[pc])}
        of = {
            when: [{pid for pid, name in seen[when] if name == str(file)} for file in (shell, program)] for when in seen
        }
        assert len(of[True][1]) == len(of[False][0]) == 100
        assert of[True][0] == of[False][1] == set()


#: Does what each line says: a statement of Python.
WAITS = """
import contextlib, mmap, os, sys
def fresh(n):
    m = mmap.mmap(-1, n * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    return m
def touch(m, first, past):
    for page in range(first, past): m[page * 4096] = 1
def fork(do):
    if (child := os.fork()): os.waitpid(child, 0)
    else: do(), os._exit(0)
memory = fresh(4096)
mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 16 * 4096)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Program:
    def __init__(self, cgroup: MadeCgroup, file: Path) -> None:
        file.write_bytes(bytes(16 * 4096))
        self.file = file
        command = [*cgroup.joining(), sys.executable, "-S", "-c", WAITS, str(file)]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def do(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def program(cgroup, tmp_path):
    made = Program(cgroup, tmp_path / "mapped.bin")
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture
def traced(cgroup):
    return lambda: Session(
        groups=[platform().group("cgroup", cgroup.path)], sources=["page_faults:stacks=none"]
    ).start()


def of_file(session: Session, path: Path) -> int:
    names = {code: session.name(code) for code in np.unique(session.faults["file"]).tolist()}
    return int(
        sum(np.count_nonzero(session.faults["file"] == code) for code, name in names.items() if name == str(path))
    )


def unresolved(session: Session) -> tuple[int, int]:
    return session.ledger.get("unresolved", "va"), session.ledger.get("unresolved", "pc")


def test_a_child_has_all_that_its_parent_has(program, traced):
    session = traced()
    program.do("touch(memory, 0, 5)")
    program.do("fork(lambda: touch(memory, 5, 200))")
    session.stop()
    assert unresolved(session) == (0, 0)
    assert len(np.unique(session.faults["pid"])) == 2


def test_what_moves_without_being_known_is_not_called_anonymous(program, traced):
    """mremap() of a mapping in which no fault lay before."""
    session = traced()
    program.do("touch(memory, 0, 5)")
    until(lambda: session.ledger.get("recorded", "process"))  # calls of a process that is not known yet are nobody's
    program.do("mapped.resize(2000 * 4096); touch(mapped, 16, 2000)")
    session.stop()
    assert of_file(session, program.file) >= 1000
    assert unresolved(session) == (0, 0)


def test_what_was_mapped_since_is_newer_than_a_list_of_all(program, traced):
    """The list is read when these mappings have gone again."""
    session = traced()
    program.do("touch(memory, 0, 2)")
    program.do("for _ in range(3): touch(fresh(600), 0, 600)")
    session.stop()
    assert unresolved(session) == (0, 0)


def test_what_is_mapped_over_a_mapping_is_not_where_its_faults_were(program, traced, tmp_path):
    """Twenty mappings of two files at one place, in less time than passes until the first one is read."""
    files = [tmp_path / "one.bin", tmp_path / "other.bin"]
    for file in files:
        file.write_bytes(bytes(4096))
    program.do("import ctypes; mmap_ = ctypes.CDLL(None).mmap; mmap_.restype = ctypes.c_void_p")
    program.do("mmap_.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]")
    program.do(f"both = [os.open(name, os.O_RDONLY) for name in {[str(file) for file in files]}]")
    place = 0x6000_0000_0000
    session = traced()
    shared_fixed = 0x11
    program.do(
        f"for n in range(20): mmap_({place}, 4096, 1, {shared_fixed}, both[n % 2], 0); ctypes.string_at({place}, 1)"
    )
    session.stop()
    at = session.faults["va"] // 4096 == place // 4096
    assert [session.name(code) for code in session.faults["file"][at].tolist()] == [str(file) for file in files] * 10
