"""A trace under hardship: little memory or address space, a closed terminal, a stopped tracer, lost privilege."""

import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blame_scripted import composition
from kit.cgroups import made_cgroup
from kit.command_line import WSTRACE, begun, until, wstrace
from kit.recorded_run import compiled, record

from wstrace.errors import PluginError
from wstrace.plugins import Plugins
from wstrace.session import Session
from wstrace.testing import RecordingExporter

pytestmark = pytest.mark.usefixtures("full_level")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups, pid namespaces, setuid programs: needs root")

#: touches PAGES pages of fresh memory, TIMES times; says "up" when the first have been touched, and the sum at its end
TOUCHES = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    long pages = atol(argv[1]), times = atol(argv[2]);
    for (long turn = 0; turn < times; turn++) {
        char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, pages * 4096, MADV_NOHUGEPAGE);
        for (long i = 0; i < pages; i++) ((volatile char *)p)[i * 4096] = 1;
        munmap(p, pages * 4096);
        if (!turn) { puts("up"); fflush(stdout); }
    }
    printf("%ld\n", pages * times);
    return 0;
}
"""


@pytest.fixture(scope="module")
def touches(tmp_path_factory):
    """The program TOUCHES."""
    return compiled(tmp_path_factory.mktemp("touches"), TOUCHES)


@pytest.fixture
def limited():
    """limited(mib): a cgroup whose processes may have that much memory, and no swap."""
    with made_cgroup("-little") as made:

        def limit(mib):
            made.limit(mib << 20)
            return made

        yield limit


def figures(path: Path) -> dict[str, Any]:
    """What `info` tells of a file."""
    return json.loads(wstrace("info", path, "--json").stdout)


def assert_nothing_is_lost_without_count(ledger: dict[str, int], rows: int) -> None:
    """recorded + what is counted as lost = what the kernel's own counter saw."""
    counted = sum(n for stage, n in ledger.items() if stage.startswith("counted:"))
    lost = sum(n for stage, n in ledger.items() if stage.partition(":")[0] in ("lost_kernel", "lost_tracer"))
    assert ledger["recorded:page_fault"] == rows
    assert rows + lost + sum(n for stage, n in ledger.items() if stage.startswith("unaccounted")) == counted
    assert not [stage for stage in ledger if stage.startswith("unaccounted")]


@needs_root
def test_a_target_that_the_kernel_kills_for_its_memory(touches, tmp_path, limited):
    ran = wstrace("run", "-o", tmp_path / "x.wst", "--", *limited(24).joining(), touches, 20_000, 1)
    assert ran.returncode == 128 + signal.SIGKILL, ran.stderr
    assert ran.stderr.splitlines()[0].endswith("; killed by SIGKILL")
    shown = figures(tmp_path / "x.wst")
    assert shown["state"] == "clean"
    assert 20_000 > shown["rows"]["page_fault"] > 4000  # 6,144 pages is all that it may have at once
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])


@needs_root
@pytest.mark.parametrize("mib", [16, 24, 32, 256])
def test_a_tracer_with_little_memory(touches, tmp_path, limited, mib):
    """It is killed, or it goes on: what the file holds can be read, and the target runs to its end."""
    group, said = limited(mib), tmp_path / "said"
    outside = (group.memory or group.folder).parent / "cgroup.procs"
    target = f"echo $$ > {outside}; exec {touches} 10000 30 > {said}"
    words = [*group.joining(), *WSTRACE, "run", "-o", tmp_path / "x.wst", "--", "sh", "-c", target]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if ran.returncode == -signal.SIGKILL:
        if not said.exists():
            return  # before the target was started
        until(lambda: "300000" in said.read_text())
    else:
        assert ran.returncode in (0, 122, 123), ran.stderr
        assert "internal error" not in ran.stderr
        assert mib < 256 or ran.returncode == 0
    if ran.returncode != 122:
        assert said.read_text().split() == ["up", "300000"]
    if (tmp_path / "x.wst").exists():
        shown = figures(tmp_path / "x.wst")
        assert shown["state"] in (("clean",) if mib == 256 else ("clean", "incomplete", "cut"))
        if shown["state"] == "clean":
            assert shown["rows"]["page_fault"] + sum(
                n for stage, n in shown["ledger"].items() if stage.startswith("lost_kernel")) >= 300_000  # fmt: skip
            assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes(touches, tmp_path, ignored):
    """The kernel hangs up both: the trace is whole, and a target that ignores it is traced to its end."""
    path, said = tmp_path / "x.wst", tmp_path / "said"
    trap = "trap '' HUP; " * ignored
    script = f"{trap}exec {touches} 2000 {300 if ignored else 10**9} > {said}"
    words = ["run", "-o", path, "--", "sh", "-c", script]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*WSTRACE, *map(str, words)], buffered)
    until(lambda: said.exists() and said.read_text())
    time.sleep(0.3)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    # 123: the report had nowhere to go; a command's own code that is not 0 comes before that
    assert os.waitstatus_to_exitcode(status) == (123 if ignored else 128 + signal.SIGHUP)
    shown = figures(path)
    assert shown["state"] == "clean"
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])
    if ignored:
        assert said.read_text().split() == ["up", "600000"]
        assert shown["rows"]["page_fault"] >= 600_000
    else:
        assert shown["facts"]["exit_signal"] == "SIGHUP"
        assert shown["rows"]["page_fault"] >= 2000


def nices(pid: int | str) -> list[int]:
    """The nice values of the threads of a process."""
    stats = (path.read_text().rpartition(") ")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return [int(words[16]) for words in stats]


@needs_root
def test_what_reads_the_buffers_runs_before_other_programs_and_changes_no_target():
    with begun("run", "-q", "--", "sleep", "60") as tracer:
        until(lambda: nices(tracer.pid).count(-10) == 1)
        children = Path(f"/proc/{tracer.pid}/task").glob("*/children")
        assert {nice for path in children for pid in path.read_text().split() for nice in nices(pid)} == {0}
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=60)


@pytest.mark.parametrize("ring", [8192, 1 << 20])
def test_a_tracer_that_is_stopped_and_goes_on(touches, tmp_path, ring):
    path, said = tmp_path / "x.wst", tmp_path / "said"
    words = ("-s", f"page_faults:ring_bytes={ring}", "-o", path, "--", "sh", "-c", f"exec {touches} 2000 150 > {said}")
    with begun("run", "--fail-on-loss", *words) as tracer:
        until(lambda: said.exists() and said.read_text())
        tracer.send_signal(signal.SIGSTOP)
        until(lambda: "300000" in said.read_text())  # the target is not held up by it
        tracer.send_signal(signal.SIGCONT)
        _, words_said = tracer.communicate(timeout=60)
    assert said.read_text().split() == ["up", "300000"]
    shown = figures(path)
    lost = sum(n for stage, n in shown["ledger"].items() if stage.startswith("lost_kernel"))
    assert tracer.returncode == (121 if lost else 0), words_said
    assert lost > 100_000, "rings of this size do not hold what came meanwhile"
    assert shown["rows"]["page_fault"] + lost >= 300_000
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])


@pytest.fixture(scope="module")
def setuid(touch):
    """A program of root's that anyone runs as root."""
    program = touch.with_name("setuid")
    shutil.copy(touch, program)
    program.chmod(0o4755)
    return program


@needs_root
@pytest.mark.parametrize("child", [False, True], ids=["target", "child"])
def test_what_a_setuid_program_does_is_lost(trace, setuid, child):
    traced = trace(["sh", "-c", f"{setuid} 2000; true"] if child else [setuid, 2000], user="nobody")
    traced.assert_balanced()
    lost = traced.ledger("lost_privileged")
    assert lost >= 2000
    assert traced.context.ledger.losses()
    assert any(f"{lost:,} after the kernel ended the trace: 1 program" in note for note in traced.context.info.notes)


@needs_root
def test_fail_on_loss_knows_of_it(setuid, tmp_path):
    done = wstrace("run", "--fail-on-loss", "--user", "nobody", "--", setuid, 2000, cwd=tmp_path)
    assert done.returncode == 121, done.stderr
    assert "gained privilege by exec" in done.stderr


def test_what_comes_after_the_trace_is_none_of_its_hidden_faults(attach):
    """Of a process that goes on the system's account goes on, too."""
    code = "print(flush=True)\nwhile True: bytearray(1 << 20)"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        trace = attach(process.pid)
        end = time.monotonic() + 0.3
        trace.drain(lambda: time.monotonic() > end)
        trace.stop()
        process.kill()
    notes = trace.context.info.notes
    assert notes[-1] == "what came after the end of the trace is not in it"
    assert not [note for note in notes if "without a fault" in note or "not known" in note]


#: takes faults for a while, in slices that need several drains; of small pages, also where all memory has huge ones
PROGRAM = (
    "import ctypes, time\nctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"
    "for i in range(8): x = bytearray(20_000_000); time.sleep(0.1)\nraise SystemExit(7)"
)


@pytest.mark.parametrize("failures", [1, 10**6], ids=["once", "for good"])
def test_what_the_kernel_counted_is_recorded_or_lost(failures, monkeypatch, full_level):
    from wstrace_plugins.page_faults.linux import backend

    merge, calls = backend.merge, []

    def fails(*arguments):
        calls.append(1)
        rows = merge(*arguments)  # which takes them from what is held
        if 3 <= len(calls) < 3 + failures:
            raise MemoryError("no room for the rows")
        return rows

    monkeypatch.setattr(backend, "merge", fails)
    keep = RecordingExporter()
    target = Plugins().platform.launch([sys.executable, "-c", PROGRAM])
    session = Session(targets=[target], sources="page_faults", exporters=keep, enrichers=[], record=False)
    session.start()
    assert session.wait(30)
    with pytest.raises(PluginError, match="source page_faults failed: MemoryError: no room for the rows"):
        session.stop()
    ledger = session.ledger
    recorded = sum(len(batch) for batch in keep.of("page_fault"))
    assert ledger.get("recorded", "page_fault") == recorded > 0
    lost = sum(ledger.get(stage) for stage in ("lost_kernel", "lost_tracer", "foreign_clock"))
    assert recorded + lost + ledger.get("unaccounted") == ledger.get("counted") > 8 * 20_000_000 // 4096 // 2
    assert ledger.get("lost_tracer") > 0
    assert [stage for stage, _, _ in ledger.losses()].count("lost_tracer") >= 1
    assert session.info.exit_code == 7
    assert [note for note in session.info.notes if "MemoryError" in note]
    times = np.concatenate([batch["time_ns"] for batch in keep.of("page_fault")])
    assert len(times) == recorded


#: less than a trace needs, and yet enough for most of the runs that nothing refuses
TOO_LITTLE = 185_000


def limit(kib: int) -> Callable[[], None]:
    """What a child calls before its execve() for `ulimit -v kib`."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (kib << 10, kib << 10))


def least(said: str, what: str = "a trace") -> int:
    """The KiB that a refusal names, which is one line."""
    refused = rf"wstrace: this process may have 185,000 KiB of address space \(RLIMIT_AS\), too little for {what}; "
    found = re.fullmatch(refused + r"allow at least ([\d,]+) KiB: ulimit -v (\d+), or unlimited\n", said)
    assert found is not None, said
    assert found[1].replace(",", "") == found[2]
    return int(found[2])


def test_a_command_is_refused_before_it_runs_or_traced_to_its_end(tmp_path):
    words = ("run", "-o", tmp_path / "x.wst", "--", "sh", "-c", f"touch {tmp_path / 'ran'}; exit 7")
    refused = wstrace(*words, preexec_fn=limit(TOO_LITTLE))
    enough = least(refused.stderr)
    assert refused.returncode == 122
    assert list(tmp_path.iterdir()) == []
    traced = wstrace(*words, preexec_fn=limit(enough))
    assert traced.returncode == 7, traced.stderr
    assert " faults, 0 lost" in traced.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ran", "x.wst"]


def test_a_query_is_refused_or_answered_and_says_where_its_memory_ends(tmp_path):
    """DuckDB ends the process by SIGSEGV where the system gives it nothing."""
    pytest.importorskip("duckdb", reason="needs duckdb (pip install 'wstrace[sql]')")
    trace = tmp_path / "x.wst"
    assert wstrace("run", "-q", "-o", trace, "--", "true").returncode == 0
    words = ("query", trace, "select count(*) > 0 as some from faults", "--format", "csv")
    refused = wstrace(*words, preexec_fn=limit(TOO_LITTLE))
    enough = least(refused.stderr, "a query")
    assert refused.returncode == 122
    answered = wstrace(*words, preexec_fn=limit(enough))
    assert (answered.returncode, answered.stdout.split()) == (0, ["some", "True"]), answered.stderr
    large = "select list(range order by hash(range)) from range(10000000)"
    ended = wstrace("query", trace, large, preexec_fn=limit(enough))
    assert ended.returncode == 122
    assert re.fullmatch(r"wstrace: query: Out of Memory Error: .*; ask for less at once, .*\n", ended.stderr)


def test_attaching_is_refused_and_the_process_goes_on():
    target = subprocess.Popen(["sleep", "60"])
    try:
        refused = wstrace("attach", target.pid, "--duration", "1s", preexec_fn=limit(TOO_LITTLE))
        assert least(refused.stderr) > TOO_LITTLE
        assert refused.returncode == 122
        assert target.poll() is None
    finally:
        target.kill()
        target.wait()


_SETTING = Path("/proc/sys/kernel/numa_balancing")
PAGES = 300

#: `first` writes to the pages; `again` reads them until it has had as many faults as there are pages, and says how many
FORKS_TOUCH = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
static long faults(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_minflt; }
__attribute__((noinline)) void first(volatile char *p, long n, long page) {
    for (long i = 0; i < n; i++) p[i * page] = 1;
}
__attribute__((noinline)) long again(volatile char *p, long n, long page) {
    long sum = 0, before = faults();
    for (time_t end = time(0) + 90; time(0) < end && faults() - before < n;)
        for (long i = 0; i < n; i++) sum += p[i * page];
    return faults() - before + (sum == -1);
}
int main(int argc, char **argv) {
    long n = 300, page = sysconf(_SC_PAGESIZE);
    int kind = argv[1][0] == 's' ? MAP_SHARED : MAP_PRIVATE;
    char *p = mmap(0, n * page, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    madvise(p, n * page, MADV_NOHUGEPAGE);
    first(p, n, page);
    FILE *out = fopen(argv[2], "w");
    fprintf(out, "%ld\n", again(p, n, page));
    fclose(out);
    _exit(0);
}
"""


@pytest.mark.skipif(
    not _SETTING.exists() or len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) < 2,
    reason="only on machines with two memory nodes (tests/kernels/run --append numa=fake=2)",
)
@pytest.mark.parametrize("kind", ["private", "shared"])
def test_pages_belong_to_who_touched_them_first(tmp_path, kind):
    assert _SETTING.read_text().strip() != "0", "sysctl kernel.numa_balancing=1"
    compiled(tmp_path, FORKS_TOUCH, "-g")
    sources = ("-s", "page_faults:stacks=none", "-s", "working_set")
    with record(tmp_path, [tmp_path / "program", kind, tmp_path / "shown"], *sources) as trace:
        hints = int((tmp_path / "shown").read_text())
        if hints < PAGES:
            pytest.skip(f"only where the kernel looks at these pages: {hints} hint faults in 90 s")
        rows = composition(trace, at="exit").rows("line")
        found = {
            name: sum(row["resident"] for row in rows if row.of("function") == name) for name in ("first", "again")
        }
        resident = PAGES * os.sysconf("SC_PAGE_SIZE")
        # a fault does not say whether it wrote: the second one may be the first write, so there are two candidates
        assert sum(found.values()) == resident, [(row.label, row["resident"]) for row in rows[:5]]
        assert found["first"] >= resident // 2
        assert any("between nodes" in lack for lack in trace.info.lacking), trace.info.lacking
