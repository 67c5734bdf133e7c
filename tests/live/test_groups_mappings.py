"""Processes that ran before a trace of groups: what they have mapped is known from their first fault on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.cgroups import MadeCgroup
from kit.command_line import until

from wstrace.session import Session
from wstrace_plugins.os.linux.backend import platform

pytestmark = pytest.mark.usefixtures("full_level")

#: Does what each line says: a statement of Python.
PROGRAM = """
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
        command = [*cgroup.joining(), sys.executable, "-S", "-c", PROGRAM, str(file)]
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
