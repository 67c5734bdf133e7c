"""Which process runs which CPython: attach, many threads, exec, forks, subinterpreters, namespaces, late starts."""

import os
import select
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.pythons import installed, named
from kit.recorded_run import compiled

from wstrace.schema import PROCESS_EXEC, STACK_HOW

#: Starts ORPHANS orphans, whose parents end at once, and executes argv[1...] in the midst of them. Each orphan touches
#: PAGES pages at BASE some time later. Ends when all have ended.
ORPHANS, PAGES, BASE = 400, 4, 0x5000_0000_0000
_SOURCE = f"""
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef UNSEEN
#define fork() syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
#define execv(program, words) syscall(SYS_execve, program, words, environ)
#endif
static void orphan(int i) {{
    usleep(i * 7919 % 1600000);
    volatile char *p = mmap((void *){BASE:#x}, {PAGES} * 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    madvise((void *)p, {PAGES} * 4096, MADV_NOHUGEPAGE);
    for (int page = 0; page < {PAGES}; page++) p[page * 4096] = 1;
    _exit(0);
}}
int main(int argc, char **argv) {{
    int ends[2];
    char none;
    if (pipe(ends)) return 1;
    for (int i = 0; i < {ORPHANS}; i++) {{
        pid_t parent = fork();
        if (!parent) {{
            close(ends[0]);
            if (!fork()) orphan(i);
            _exit(0);
        }}
        waitpid(parent, 0, 0);
        if (i == {ORPHANS} / 3 && !fork()) execv(argv[1], argv + 1);
    }}
    close(ends[1]);
    while (read(ends[0], &none, 1) > 0);
    while (wait(0) > 0);
    return 0;
}}
"""


def fork_storm(folder: Path, *, unseen: bool) -> Path:
    """The compiled program; `unseen`: nothing that it imports says that it starts processes."""
    return compiled(folder, _SOURCE, *["-DUNSEEN"] * unseen)


def touched(faults: Any) -> tuple[int, int]:
    """(the faults in the orphans' pages, how many different pages of different orphans these are)."""
    mine = faults[(faults.va >= BASE) & (faults.va < BASE + PAGES * 4096)]
    return len(mine), len(np.unique(np.stack([mine.pid, mine.va >> np.uint64(12)]), axis=1).T)


PYTHONS = {python.label: python for python in installed()}
OURS = [python for python in PYTHONS.values() if not python.root]
pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")

#: touches PAGES fresh pages in touch(), and tells where they are
TOUCH = """
import contextlib, ctypes, mmap, sys
def fresh(n):
    m = mmap.mmap(-1, n * 4096)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    return m, ctypes.addressof(ctypes.c_char.from_buffer(m))
def touch(m):
    for i in range(0, len(m), 4096):
        m[i] = 1
"""


#: the same where ctypes cannot be had: pages of a file
INSIDE = """
import mmap
def touch(m):
    for i in range(0, len(m), 4096):
        m[i] = 1
with open({file!r}, 'wb+') as file:
    file.truncate(100 * 4096)
    m = mmap.mmap(file.fileno(), 100 * 4096)
with open('/proc/self/maps') as maps:
    line = next(line for line in maps if {file!r} in line)
with open({out!r}, 'w') as out:
    out.write(str(int(line.partition('-')[0], 16)))
touch(m)
"""


def innermost(trace: Any, base: int, pages: int) -> Counter[str]:
    """What the last fault on each page of a region names: a function, or why there is none."""
    names = dict(zip(trace.column("call_site", "id").tolist(), trace.column("call_site", "function").tolist(),
                     strict=True))  # fmt: skip
    faults = np.rec.fromarrays([trace.column("page_fault", name) for name in ("va", "stack", "stack_how")],
                               names=["va", "stack", "how"])  # fmt: skip
    mine = faults[(faults.va >= base) & (faults.va < base + pages * 4096)]
    last = {int(row.va) >> 12: row for row in mine}
    strings = trace.context.strings
    return Counter(strings[names[int(row.stack)]] if row.stack else STACK_HOW[row.how] for row in last.values())


def run(*command: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            **options)  # fmt: skip


@pytest.mark.parametrize("python", OURS, ids=lambda python: python.label)
def test_attached_to_a_process_that_knows_nothing_of_us(attach, python):
    program = TOUCH + "m, at = fresh(200)\nprint(at, flush=True)\ninput()\ntouch(m)\nprint('done', flush=True)\ninput()"
    with run(*python.command("-c", program)) as process:
        base = int(process.stdout.readline())
        trace = attach(process.pid, stacks="python")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        trace.batches += trace.source.drain(0.2)
        process.stdin.write("\n")
        process.stdin.flush()
    trace.stop()
    assert innermost(trace, base, 200) == {"touch": 200}


def test_a_thousand_threads_are_distinguished_after_an_attach(attach):
    program = (
        TOUCH
        + """
import threading
N = 1000
threading.stack_size(64 << 10)
go = threading.Event()
left = threading.Semaphore(0)
def first(m): touch(m)
def work(m):
    go.wait()
    first(m)
    left.release()
m, at = fresh(2 * N)
views = [memoryview(m)[i * 8192 : (i + 1) * 8192] for i in range(N)]
for view in views:
    threading.Thread(target=work, args=(view,), daemon=True).start()
print(at, flush=True)
input()
go.set()
for _ in range(N): left.acquire()
print('done', flush=True)
input()
"""
    )
    with run(sys.executable, "-c", program) as process:
        base = int(process.stdout.readline())
        trace = attach(process.pid, stacks="python")
        process.stdin.write("\n")
        process.stdin.flush()
        trace.drain(lambda: len(trace.faults()) and select.select([process.stdout], [], [], 0)[0])
        trace.batches += trace.source.drain(0.2)
        process.stdin.write("\n")
        process.stdin.flush()
    trace.stop()
    assert innermost(trace, base, 2000) == {"touch": 2000}


def test_a_shell_that_executes_pythons_of_two_versions(trace, tmp_path):
    """Each exec makes void what was known of the process before it."""
    program = (
        TOUCH
        + """
import os, time
m, at = fresh(100)
with open(sys.argv[1], 'w') as out:
    out.write(str(at))
time.sleep(1)  # an exec that nobody expected is met by a look at the process; a busy machine lets the tracer wait
touch(m)
if sys.argv[2:]:
    os.execv(sys.argv[3], [sys.argv[3], __file__, sys.argv[2]])
"""
    )
    (tmp_path / "p.py").write_text(program)
    others = OURS[1:] or OURS
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    command = f"{OURS[0].program} {tmp_path}/p.py {first} {second} {others[0].program}"
    traced = trace(["sh", "-c", f"true; {command}; true"], stacks="python")
    for path in (first, second):
        assert innermost(traced, int(Path(path).read_text()), 100) == {"touch": 100}


def test_what_is_no_python_lacks_no_stack(trace):
    traced = trace(["true"])
    assert {STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist()} == {"no Python frame"}
    assert traced.ledger("without_stack") == 0
    traced.assert_balanced()


def test_a_python_that_another_program_starts_has_stacks_from_its_first_frame_on(trace, tmp_path):
    (tmp_path / "p.py").write_text(
        TOUCH + "m, at = fresh(1000)\ntouch(m)\nwith open(sys.argv[1], 'w') as out:\n    out.write(str(at))\n"
    )
    python = (OURS[0].program, f"{tmp_path}/p.py", f"{tmp_path}/at")
    (tmp_path / "start").write_text(f"#!/bin/sh\n{' '.join(python)}\ntrue\n")
    (tmp_path / "start").chmod(0o755)
    starter = compiled(
        tmp_path, "#include <unistd.h>\nint main(int n, char **words) { return execv(words[1], words + 1); }"
    )
    for command in ([str(tmp_path / "start")], ["sh", str(tmp_path / "start")], ["nice", *python],
                    ["find", "/", "-maxdepth", "0", "-exec", *python, ";"], [starter, *python]):  # fmt: skip
        found = innermost(trace(command, slow=True), int((tmp_path / "at").read_text()), 1000)
        assert found == {"touch": 1000}, command


@pytest.mark.parametrize("python", installed(), ids=lambda python: python.label)
def test_a_python_that_a_command_names_is_known_to_a_tracer_that_does_not_get_to_run(trace, python):
    """`chroot FOLDER PYTHON` for those of a root of their own; none is started by its path alone."""
    words = python.command("-S", "-c", TOUCH + "m, at = fresh(1000)\ntouch(m)\n")
    traced = trace(["sh", "-c", f"{shlex.join(words)}; true"], slow=True)
    sites, faults = named(traced)
    assert [sites.get(stack, ("",))[0] for stack in faults.stack.tolist()].count("touch") >= 1000


def test_what_comes_before_pythons_first_frame_is_no_loss(trace):
    traced = trace([OURS[0].program, "-c", "0"])
    hows = Counter(STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist())
    assert hows["no Python frame"] > 100
    assert hows["interpreter not known"] + hows["frames not readable"] < 20, hows


def test_what_comes_after_pythons_last_frame_is_without_one(trace, tmp_path):
    """A library that is unloaded when the interpreter has ended: that is not before the first frame."""
    library = compiled(tmp_path, """
#include <sys/mman.h>
static void __attribute__((destructor)) last(void) {
    volatile char *p = mmap((void *)0x500000000000, 409600, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    madvise((void *)p, 409600, MADV_NOHUGEPAGE);
    for (int i = 0; i < 100; i++) p[i * 4096] = 1;
}
""", "-shared", "-fPIC")  # fmt: skip
    program = "import time; time.sleep(0.5); x = bytes(1) * (1 << 20)"
    traced = trace(["env", f"LD_PRELOAD={library}", OURS[0].program, "-c", program])
    assert innermost(traced, 0x500000000000, 100) == {"no Python frame": 100}


def test_a_python_of_another_version_is_refused_with_a_sentence(trace):
    old = next(iter(sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))), None)
    if old is None:
        pytest.skip("no CPython 3.10")
    traced = trace([old, "-c", "x = bytearray(1 << 20)"], stacks="python")
    assert not traced.column("page_fault", "stack").any()
    assert any("before 3.11" in what for what in traced.context.info.lacking)


@pytest.mark.parametrize("python", OURS, ids=lambda python: python.label)
def test_inside_of_a_subinterpreter(trace, tmp_path, python):
    (tmp_path / "inner.py").write_text(INSIDE.format(file=str(tmp_path / "pages"), out=str(tmp_path / "at")))
    module = "_interpreters" if python.version >= (3, 13) else "_xxsubinterpreters"
    program = f"""
import {module} as interpreters
def outer():
    one = interpreters.create()
    result = interpreters.run_string(one, open({str(tmp_path / "inner.py")!r}).read())
    assert result is None, result
outer()
"""
    traced = trace(python.command("-c", program), stacks="python")
    found = innermost(traced, int((tmp_path / "at").read_text()), 100)
    assert found == {"touch": 100}


def test_in_a_pid_namespace_of_its_own(tmp_path):
    """Ours is not the first one: the programs see other ids than perf events and we do."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("needs unshare and root")
    program = (
        TOUCH
        + """
import os
touch(fresh(300)[0])
if not os.fork():
    touch(fresh(100)[0])
    os._exit(0)
os.wait()
"""
    )
    (tmp_path / "p.py").write_text(program)
    code = f"""
import collections, sys
sys.path[:0] = {sys.path!r}
from wstrace.interfaces import Context
from wstrace.schema import FRAME_CUT, STACK_HOW
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux.backend import PageFaults
target = platform().launch([{sys.executable!r}, {str(tmp_path / "p.py")!r}])
source = PageFaults(stacks="python")
source.start(Context(targets=(target,)))
target.resume()
batches = []
while target.wait(0) is None:
    batches += source.drain(0.1)
batches += source.stop()
faults = [batch for batch in batches if batch.schema.name == "page_fault"]
print(dict(collections.Counter(STACK_HOW[how] for batch in faults for how in batch["stack_how"].tolist())))
"""
    done = subprocess.run(["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", code], capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'exact': " in done.stdout, done.stdout
    assert int(done.stdout.partition("'exact': ")[2].partition(",")[0].strip("}\n")) >= 400


@pytest.mark.parametrize("unseen", [False, True])
def test_no_orphan_loses_its_events_when_stacks_are_opened(trace, tmp_path, unseen):
    """Its parent has ended when another process is met, and it is not known yet that it was born."""
    program = (
        "import mmap, time\nfor i in range(8): time.sleep(0.3); x = mmap.mmap(-1, 1 << 22); x.write(bytes(1 << 22))"
    )
    traced = trace([fork_storm(tmp_path, unseen=unseen), OURS[0].program, "-S", "-c", program])
    assert touched(traced.faults()) == (ORPHANS * PAGES, ORPHANS * PAGES)
    assert "exact" in {STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist()}
    traced.assert_balanced()


def test_what_a_short_process_ran_is_known_from_its_mappings(trace):
    """It has ended before anybody could look at it."""
    python = OURS[0].program
    traced = trace(["sh", "-c", f"for i in 1 2 3 4 5 6; do {python} -S -c pass; /bin/true; done"])
    names = {code: traced.context.strings[code] for code in set(traced.column("process", "name").tolist())}
    executed = traced.processes(PROCESS_EXEC)
    pythons = {int(row.pid) for row in executed if names[int(row.name)].startswith("python")}
    others = {int(row.pid) for row in executed} - pythons
    assert (len(pythons), len(others)) == (6, 7)
    pids, hows = traced.column("page_fault", "pid"), traced.column("page_fault", "stack_how")
    of_others = np.isin(pids, list(others))
    assert {STACK_HOW[how] for how in hows[of_others].tolist()} == {"no Python frame"}
