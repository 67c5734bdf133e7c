"""Mappings that are believed: of calls that fail, shared address spaces, the heap, and a process that ran before."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from kit.recorded_run import compiled, faults, record

import wstrace
from wstrace.schema import KINDS
from wstrace.testing import RecordingExporter

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("full_level")

#: calls of munmap() and mremap() that fail, then a touch of what they did not take away
FAILING = r"""
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    char *p = mmap(0, 64 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, 64 << 20, MADV_NOHUGEPAGE);
    if (!munmap(0, (size_t)-1) || !munmap(p + 1, 4096) || !munmap((char *)main + 1, 4096)) return 1;
    if (mremap(p, 4096, 1 << 20, 0) != MAP_FAILED) return 2;
    for (int i = 0; i < 8; i++) { memset(p + ((long)i << 20), 1, 1 << 20); usleep(50000); }
    return 0;
}
"""


def test_calls_that_failed_change_nothing(tmp_path):
    with record(tmp_path, [compiled(tmp_path, FAILING)]) as trace:
        columns = faults(trace)
        assert len(columns["va"]) > 8 * 256
        assert int((columns["mapping"] == 0).sum()) == int((columns["pc_mapping"] == 0).sum()) == 0
        assert trace.ledger.get("unresolved") == 0


#: a process that shares its memory with its parent (clone() with CLONE_VM, without CLONE_THREAD), not its signals;
#: each maps a file that the other one touches
SHARED_SPACE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define N 64
static char *const AT = (char *)0x200000000000, *const ALSO = (char *)0x300000000000;
static volatile int turn;
static int a, b;
static void maps(char *at, int fd) {
    if (mmap(at, N * 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED) _exit(9);
    madvise(at, N * 4096, MADV_RANDOM);
}
static void touches(char *at) { for (int i = 0; i < N; i++) (void)((volatile char *)at)[i * 4096]; }
static int child(void *unused) {
    while (turn < 1) usleep(1000);
    touches(AT);
    maps(ALSO, a);
    turn = 2;
    return 0;
}
int main(int argc, char **argv) {
    a = open(argv[1], O_RDONLY), b = open(argv[2], O_RDONLY);
    maps(AT, a);
    int pid = clone(child, (char *)malloc(65536) + 65536, CLONE_VM | SIGCHLD, 0);
    maps(AT, b);
    turn = 1;
    while (turn < 2) usleep(1000);
    touches(ALSO);
    return waitpid(pid, 0, 0) != pid;
}
"""


def test_processes_that_share_memory_have_one_address_space(tmp_path):
    """GIVEN two processes of one address space WHEN each touches what the other has mapped THEN the faults have its
    file: not none, and not that of what lay there when they parted.
    """
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(os.urandom(64 * 4096))
    with record(tmp_path, [compiled(tmp_path, SHARED_SPACE), *files]) as trace:
        columns = faults(trace)
        for base, file, pid_is_parent in ((0x2000_0000_0000, files[1], False), (0x3000_0000_0000, files[0], True)):
            here = (columns["va"] >= base) & (columns["va"] < base + 64 * 4096)
            here &= (columns["pid"] == trace.facts["pid"]) == pid_is_parent
            assert here.any()
            assert {trace.strings[code] for code in columns["file"][here].tolist()} == {str(file)}
        assert int((columns["mapping"] == 0).sum()) == 0


def test_without_tracefs_kcmp_tells_who_shares_memory(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("wstrace_plugins.page_faults.linux.backend.permitted", lambda: nullcontext([]))
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(64 * 4096))
    # so that both still live when the rows of the birth are read
    program = compiled(tmp_path, SHARED_SPACE.replace("turn = 1;", "usleep(500000); turn = 1;"))
    traced = trace([program, tmp_path / "a", tmp_path / "b"])
    rows = zip(*(traced.column("address_space", name).tolist() for name in ("pid", "start", "file")), strict=True)
    also = {(pid, traced.context.strings[file]) for pid, start, file in rows if start == 0x3000_0000_0000}
    pids = set(traced.faults().pid.tolist())
    assert also == {(pid, str(tmp_path / "a")) for pid in pids}
    assert len(pids) == 2


#: its heap's first piece begins where its .bss ends, where addresses are not randomized
HEAP = r"""
#include <stdlib.h>
#include <string.h>
static char bss[(BSS ? 10 : 0) * 4096 + 1];
int main(void) {
    char *volatile heap = malloc(100000), *volatile zeros = bss;
    memset(heap, 1, 100000);
    memset(zeros, 1, sizeof bss);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("setarch") is None, reason="needs setarch (util-linux)")
@pytest.mark.parametrize("bss", [0, 1])
def test_the_heap_is_the_heap_where_addresses_are_not_randomized(tmp_path, bss):
    program = compiled(tmp_path, HEAP, f"-DBSS={bss}")
    with record(tmp_path, ["setarch", "-R", program]) as trace:
        columns = faults(trace)
        own = np.array([trace.strings[code] == str(program) for code in columns["pc_file"].tolist()])
        own |= (columns["va"] >= 0x5555_5555_4000) & (columns["va"] < 0x5555_6000_0000)
        named = {trace.strings[code] for code in columns["file"][own].tolist()}
        heap = int((columns["va"][own & (columns["kind"] == KINDS.index("heap"))] > 0).sum())
        assert heap >= 100000 // 4096
        assert named - {"[stack]"} == {str(program), "[heap]"} | ({"[anon]"} if bss else set())


ATTACHED = """
import mmap, os, sys, threading
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
mapped.madvise(mmap.MADV_RANDOM)
print(flush=True)
sys.stdin.readline()
threading.Thread(target=mapped.__getitem__, args=(7 * 4096,)).start()
later = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
later.madvise(mmap.MADV_RANDOM)
later[9 * 4096]
os.close(1)
sys.stdin.readline()
"""


def test_what_was_mapped_before_it_was_attached(tmp_path):
    """A process that runs already: its old mappings are read from maps, its new ones come from the kernel."""
    file = tmp_path / "mapped"
    file.write_bytes(os.urandom(1 << 20))
    command = [sys.executable, "-S", "-c", ATTACHED, file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        recorded = RecordingExporter()
        with wstrace.Session(process.pid, exporters=[recorded]):
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.read()  # it has touched them
        process.stdin.close()
    found = set()
    mappings = {int(m["id"][i]): int(m["start"][i]) for m in recorded.of("mapping") for i in range(len(m))}
    for batch in recorded.of("page_fault"):
        assert (batch["pid"] == process.pid).all()
        assert (batch["mapping"] != 0).all()
        assert (batch["pc_mapping"] != 0).all()
        for va, mapping, code in zip(*(batch[n].tolist() for n in ("va", "mapping", "file")), strict=True):
            if recorded.context.strings[code] == str(file):
                found.add((va - mappings[mapping]) // 4096)
    assert found == {7, 9}
