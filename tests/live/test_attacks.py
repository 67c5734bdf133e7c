"""Programs, users and servers that mean harm, against whole commands: each ends in time and harms nobody."""

import contextlib
import fcntl
import gzip
import itertools
import json
import os
import pty
import random
import re
import select
import signal
import socketserver
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.another_user import CALLER
from kit.command_line import WSTRACE, answer, begun, in_process, peak_bytes, wstrace
from kit.hostile_images import section
from kit.recorded_run import compiled

pytestmark = [
    pytest.mark.usefixtures("full_level"),
    pytest.mark.skipif(os.geteuid() != 0, reason="plays users, and traces all that it starts: needs root"),
]


def of(path: Path) -> dict:
    """What `info` says of a file that holds whatever the kernel counted."""
    found = json.loads(answer("info", "--json", path))
    assert found["state"] == "clean"
    assert not [stage for stage in found["ledger"] if stage.startswith(("lost", "unaccounted"))], found["ledger"]
    return found


#: what a program can know of itself: nothing of it may differ under a trace
PROBE = """
import json, os, resource, sys
def of(name): return open(f"/proc/self/{name}").read()
kept = ("TracerPid SigB SigI SigC Cap NoNewPrivs Seccomp Threads Uid Gid Groups Umask").split()
print(json.dumps([
    sorted(os.listdir("/proc/self/fd")), [line for line in of("status").splitlines() if line.startswith(tuple(kept))],
    {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")},
    {name: value for name, value in os.environ.items() if name not in ("_", "SHLVL")},
    [of(name) for name in ("cgroup", "oom_score_adj", "timerslack_ns", "coredump_filter", "personality", "timers")],
    os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), os.getcwd(), sys.stdin.read(),
    {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}, sys.argv,
    os.getsid(0) == os.getsid(os.getppid()), of(f"task/{os.getpid()}/children")]))
"""


@pytest.mark.parametrize(
    "source", ["page_faults", "page_faults:stacks=native", "page_faults:period=3", "peak_snapshot"]
)
def test_a_program_sees_nothing_of_its_trace(source, tmp_path):
    probe = [sys.executable, "-S", "-c", PROBE]
    alone, traced = (
        subprocess.run([*words, *probe], input="x", capture_output=True, text=True, timeout=60)
        for words in ([], [*WSTRACE, "run", "-q", "-s", source, "-o", tmp_path / "x.wst", "--"])
    )
    assert json.loads(traced.stdout) == json.loads(alone.stdout), traced.stderr


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_cost_no_exit_code(closed, tmp_path):
    script = f'exec {closed}; exec "$@"'
    words = ["sh", "-c", script, "sh", *WSTRACE, "run", "-q", "-o", tmp_path / "x.wst", "--", "sh", "-c", "exit 7"]
    assert subprocess.run(words, capture_output=True, timeout=60).returncode == 7
    of(tmp_path / "x.wst")


#: counts its own faults, resolves others itself, asks to be traced, closes all descriptors, leaves its namespaces and
#: its cgroup, and goes on as a daemon
OWN = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>
#define FRESH(n) mmap(0, (n) << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
static int own;
static volatile long resolved;
static void *resolve(void *none) {
    struct uffd_msg message;
    while (read(own, &message, sizeof message) == sizeof message) {
        struct uffdio_zeropage page = {.range = {message.arg.pagefault.address & -4096L, 4096}};
        resolved++;
        ioctl(own, UFFDIO_ZEROPAGE, &page);
    }
    return none;
}
int main(int argc, char **argv) {
    struct perf_event_attr counted = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof counted, .config = PERF_COUNT_SW_PAGE_FAULTS};
    int counter = syscall(SYS_perf_event_open, &counted, 0, -1, -1, 0);
    long before = 0, after = 0;
    char *p = FRESH(1024);
    madvise(p, 1024 << 12, MADV_NOHUGEPAGE);
    if (read(counter, &before, 8) != 8) return 1;
    for (int i = 0; i < 1024; i++) p[i << 12] = 1;
    if (read(counter, &after, 8) != 8) return 1;
    struct uffdio_api api = {.api = UFFD_API};
    pthread_t thread;
    own = syscall(SYS_userfaultfd, O_CLOEXEC);
    ioctl(own, UFFDIO_API, &api);
    char *q = FRESH(256);
    struct uffdio_register all = {.range = {(unsigned long)q, 256 << 12}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    ioctl(own, UFFDIO_REGISTER, &all);
    pthread_create(&thread, 0, resolve, 0);
    for (int i = 0; i < 256; i++) q[i << 12] = 1;
    printf("%ld %ld %ld ", after - before, resolved, ptrace(PTRACE_TRACEME, 0, 0, 0));
    syscall(SYS_close_range, 3, ~0U, 0);
    printf("%d ", unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC));
    int group = open(argv[1], O_WRONLY);
    printf("%ld\n", (long)write(group, "0", 1));
    fflush(stdout);
    if (!daemon(0, 1)) memset(FRESH(2048), 1, 2048 << 12);
    return 0;
}
"""


def test_a_program_that_uses_what_the_tracer_uses_has_its_own_and_is_recorded(tmp_path, cgroup):
    program = compiled(tmp_path, OWN)
    done = wstrace(
        "run", "-q", "--wait-children", "-o", tmp_path / "x.wst", "--", program, cgroup.folder / "cgroup.procs"
    )
    assert (done.returncode, done.stdout) == (0, "1024 256 0 0 1\n"), done.stderr
    assert of(tmp_path / "x.wst")["rows"]["page_fault"] > 1024 + 256


#: a chain of processes that all live, each the child of the one before
CHAIN = r"""
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    setpgid(0, 0);
    for (int i = atoi(argv[1]); i; i--) if (fork()) { pause(); _exit(0); }
    kill(0, SIGKILL);
}
"""


@pytest.mark.long
def test_a_chain_of_living_processes_takes_memory_for_each_and_not_for_each_pair(tmp_path):
    program, most = compiled(tmp_path, CHAIN, "-static"), {}
    for n in (300, 1200):
        with begun("run", "-q", "-f", "-o", tmp_path / "x.wst", "--", program, n, stderr=subprocess.DEVNULL) as tracer:
            most[n] = peak_bytes(tracer)
        assert tracer.returncode == 128 + signal.SIGKILL
        assert of(tmp_path / "x.wst")["rows"]["process"] > 2 * n
    assert most[1200] - most[300] < 24 << 20, most


THREADS = """
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void *touch(void *unused) {
    memset(mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 65536);
    return unused + sleep(3);
}
int main(void) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < 5000; i++) if (pthread_create(&thread, &small, touch, 0)) return 1;
    return sleep(2);
}
"""


@pytest.mark.long
def test_each_page_of_5000_living_threads_is_recorded(tmp_path):
    program = compiled(tmp_path, THREADS, "-static", "-pthread")
    assert wstrace("run", "-q", "-o", tmp_path / "x.wst", "--", program).returncode == 0
    assert of(tmp_path / "x.wst")["rows"]["page_fault"] >= 5000 * 16


EVIL = ('a\x1b]0;PWNED\x07\x1b[31m\x9b5m\u202eRTL\u2066<img src=x onerror=alert(1)></script>[@click=app.quit]X[/][red]'
        '\r\n=cmd|"/C calc"!A1,\u2028')  # fmt: skip
NAMED = f"""
import ctypes, mmap, os, sys, threading, time
evil, kept, end = {EVIL!r}, [], time.monotonic() + float(sys.argv[2])
def touch(memory):
    memory[::4096] = bytes(len(memory) >> 12)
    kept.append(memory)
path = os.path.join(sys.argv[1], evil.replace("/", "_"))
touch = type(touch)(touch.__code__.replace(co_name=evil, co_qualname=evil, co_filename=path + ".py"), globals())
def work(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
    while time.monotonic() < end:
        touch(mmap.mmap(-1, 40 << 12))
        time.sleep(0.1)
with open(path, "w+b") as file:
    file.truncate(1 << 20)
    touch(mmap.mmap(file.fileno(), 0))
threading.Thread(target=work, args=(b"T\\x9b31m\\r\\x1b[2J",)).start()
work(b"\\x1b]0;COMM\\x07\\x1b[31m")
"""
#: what acts in a terminal: controls but for the end of a line, what changes the direction, and other ends of lines
ACTS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    answer("run", "-q", "-o", folder / "x.wst", "--", sys.executable, "-c", NAMED, folder, "0.5")
    return folder / "x.wst"


@pytest.mark.long
def test_hostile_names_act_in_no_output_of_any_command(named, tmp_path):
    by = "line function package import stack file module section kind process thread cgroup instruction process,line"
    formats, views = "lines jsonl", "faults pages stacks processes unshared mapping call_site resident"
    outputs = "jsonl folded html pb.gz pftrace"
    for words in (
        ["info"], ["info", "--json"], ["report", "--json"], ["report", "--over-time", "0.2s"], ["imports"],
        ["imports", "--json"], ["unshared"], ["diff", named], ["diff", named, "--json"], ["query", "--schema"],
        *(["report", "--by", one] for one in by.split()), *(["report", "--format", one] for one in formats.split()),
        *(["query", named, f"select * from {view}", "--format", one] for view in views.split()
          for one in ("table", "json")),
        *(["convert", "-o", tmp_path / f"x.{one}"] for one in outputs.split()),
        ["report", "--html", tmp_path / "r.html"], ["convert", "-e", "console"],
    ):  # fmt: skip
        code, out, err = in_process(*words, *[named] * (named not in words or words[0] == "diff"))
        assert code == 0, (words, err)
        assert not ACTS.search(out + err), (words, ACTS.findall(out + err))
    for name in ("x.jsonl", "x.folded"):
        assert not ACTS.search((tmp_path / name).read_bytes().decode()), name
    for name in ("x.html", "r.html"):
        text = (tmp_path / name).read_text("utf-8")
        assert "<img" not in text
        assert "RTL" in text


@contextlib.contextmanager
def running(*words: object) -> Iterator[int]:
    """The pid of a process that is to be there at the end, and is then ended."""
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL) as process:
        try:
            yield process.pid
            assert process.poll() is None
        finally:
            process.kill()


#: maps every file of a folder that it is given, and touches memory until it is ended
LIAR = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char name[4096];
    for (int i = 0; i < 1500 && argc > 1; i++) {
        snprintf(name, sizeof name, "%s/python%d", argv[1], i);
        mmap(0, 4096, PROT_READ, MAP_PRIVATE, open(name, O_RDONLY), 0);
    }
    for (;; usleep(1000)) {
        char *page = mmap(0, 4096, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *page = 1;
        munmap(page, 4096);
    }
}
"""


def lying(program: Path, symbols: int, strings: bytes, libraries: int, hole: int = 0) -> bytes:
    """The program with other tables: so many symbols and libraries, with names a byte apart; `hole`: bytes of more."""
    image = bytearray(program.read_bytes())
    rows = b"".join(struct.pack("<IBBHQQ", 1 + n, 0x12, 0, 0, 0, 0) for n in range(symbols))
    tags = b"".join(struct.pack("<QQ", 1, 1) for _ in range(libraries))
    at = len(image)
    image += strings + rows + tags
    end = -(-len(image) // 4096) * 4096
    heads = [section(0), section(11, end if hole else at + len(strings), hole or len(rows), link=2),
             section(3, at, len(strings)), section(6, at + len(strings) + len(rows), len(tags), link=2)]  # fmt: skip
    struct.pack_into("<Q", image, 40, len(image))
    struct.pack_into("<HHH", image, 58, 64, len(heads), 0)
    return bytes(image + b"".join(heads))


@pytest.mark.parametrize("lie", ["names without an end", "libraries in countless folders", "files named python"])
def test_a_program_that_lies_about_itself_costs_a_bound(lie, tmp_path):
    """By a table without a NUL 40 GB, by a search 120 million opens, by the files an hour."""
    program = compiled(tmp_path, LIAR, "-static")
    folder, words = tmp_path / "mapped", [program]
    if lie == "files named python":
        folder.mkdir()
        words.append(folder)
        image = lying(program, 0, b"\0_PyRuntime0\0", 0, hole=24 << 20)
        for n in range(1500):
            (folder / f"python{n}").write_bytes(image)
            os.truncate(folder / f"python{n}", len(image) + (25 << 20))
    elif lie == "names without an end":
        program.write_bytes(lying(program, 20_000, b"\0" + b"A" * (2 << 20), 0))
    else:
        program.write_bytes(lying(program, 1, b"\0libpython9.so\0", 1000))
    with subprocess.Popen(words, env={"LD_LIBRARY_PATH": ":" * 120_000}) as target:
        try:
            with begun("attach", target.pid, "--duration", "1s") as tracer:
                most = peak_bytes(tracer)
                said = tracer.stderr.read()
        finally:
            target.kill()
    assert (tracer.returncode, "0 lost" in said) == (0, True), said
    assert most <= 200 << 20


@contextlib.contextmanager
def on_a_terminal(*words: object) -> Iterator[tuple[int, int]]:
    """(pid, the other end of its terminal) of a command."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*WSTRACE, *map(str, words)], {**os.environ, "TERM": "xterm-256color"})
    try:
        yield pid, terminal
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.close(terminal)


def shown(terminal: int, seconds: float, until: bytes = b"\0") -> bytes:
    """What a terminal gets in so many seconds, or until it has got that."""
    got, end = b"", time.monotonic() + seconds
    while until not in got and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                got += os.read(terminal, 65536)
    return got


def code_of(pid: int, terminal: int | None, seconds: float = 60) -> int:
    """The exit code of a process that ends in time, while what it shows is read."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if terminal is not None:
            shown(terminal, 0.2)
        time.sleep(0.05)
    pytest.fail("it goes on")


@pytest.mark.long
def test_hostile_names_stay_text_in_top_at_every_size(tmp_path):
    pytest.importorskip("textual", reason="pip install 'wstrace[top]'")
    with (
        running(sys.executable, "-c", NAMED, tmp_path, "200") as target,
        on_a_terminal("top", target) as (pid, terminal),
    ):
        got = shown(terminal, 30, b"total of")
        for turn in range(12):
            size = struct.pack("4H", 20 + turn * 40 % 50, 60 + turn * 70 % 170, 0, 0)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
            os.write(terminal, (b"o", b"f", b"\t", b"m")[turn % 4])
            got += shown(terminal, 0.4)
        os.write(terminal, b"\x1b")
        got += shown(terminal, 1)
        os.write(terminal, b"q")
        code = code_of(pid, terminal)
    text = got.decode(errors="replace")
    assert code == 0, text[-2000:]
    for word in ("\x1b]0;", "\x9b", "\u202e", "Traceback"):
        assert word not in text
    assert "PWNED" in text


def test_a_terminal_that_is_hung_up_ends_top_and_not_the_process():
    grows = "import time\nwhile True:\n    bytearray(1 << 22)\n    time.sleep(0.1)"
    with running(sys.executable, "-c", grows) as target, on_a_terminal("top", target) as (pid, terminal):
        assert b"MiB" in shown(terminal, 60, b"MiB")
        os.close(terminal)
        assert code_of(pid, None) == 0


#: the commands that write, where A is a trace and O the beginning of a name in the folder of another user
WRITES = """
run -q -o O.wst -- true; run -q --html O.html -- true; report -o O.wst -- true; check --update --baseline O.json -- true
report A --html O.html; diff A A --html O.html; convert A -o O.wst; convert A A -o O.wst; convert A -o O.csv
convert A -o O.jsonl; convert A -o O.parquet; convert A -o O.pb.gz; convert A -o O.pftrace
convert A -o O.folded; convert A -o O.html
"""


@pytest.mark.long
@pytest.mark.parametrize("sudo", [False, True])
@pytest.mark.parametrize("plant", ["link", "dangling", "folder", "hard"])
def test_no_command_writes_where_another_user_leads_it(plant, sudo, named, open_folder, tmp_path, monkeypatch):
    closed, victim = tmp_path / "closed", tmp_path / "closed" / "victim"
    for name, value in (("SUDO_UID", CALLER), ("SUDO_GID", CALLER)) if sudo else ():
        monkeypatch.setenv(name, str(value))
    lines = WRITES.strip().replace("\n", ";").split(";")
    for tried, line in enumerate(2 * lines):
        words, [suffix] = line.split(), re.findall(r"O(\.[a-z.]+)", line)
        words[1:1] = ["-f"] * (tried >= len(lines) and words[0] != "check")
        folder = open_folder / str(tried)
        for made in (closed, folder):
            made.mkdir(0o700)
        victim.write_text("secret")
        victim.chmod(0o600)
        link = folder / ("d" if plant == "folder" else f"o{suffix}")
        if plant == "hard":
            link.hardlink_to(victim)
        else:
            link.symlink_to({"link": victim, "dangling": closed / "new", "folder": closed}[plant])
            os.lchown(link, CALLER, CALLER)
        os.chown(folder, CALLER, CALLER)
        place = link / f"o{suffix}" if plant == "folder" else link
        given = [word.replace(f"O{suffix}", str(place)) if word != "A" else str(named) for word in words]
        code, _, err = in_process(*given)
        assert code or plant == "hard", given  # a file that appears whole takes the place of a hard link
        assert "internal error" not in err, given
        status = victim.stat()
        assert [path.name for path in closed.iterdir()] == ["victim"], given
        assert (status.st_uid, status.st_mode & 0o777, victim.read_text()) == (0, 0o600, "secret"), given
        victim.unlink()
        closed.rmdir()


TOUCHES = "import mmap, time\nfor _ in range({}):\n    mmap.mmap(-1, 1 << 20)[::4096] = bytes(256)\n    time.sleep(0.1)"
#: a signal, to whom it is sent, and how often
SENT = ["KILL", "INT", "TERM", "HUP", "PIPE", "QUIT", "STOP", "INT twice", "TERM group", "INT group"]
COMMANDS = """
run -f -o r.wst -c TOUCH; run -f -o r.wst -s page_faults:stacks=native -c TOUCH
report -f -o r.wst -- PYTHON -c TOUCH; attach PID -f -o r.wst --duration 3s
attach PID --keep 2s --on rss=1MiB -o fr.wst; report PID --duration 3s; check -c TOUCH; unshared -- PYTHON -c TOUCH
imports -- PYTHON -c TOUCH; snapshot PID; wss PID --for 2s; run -q -e otel:endpoint=http://127.0.0.1:9 -c TOUCH
empty --yes PID; ps --tree; report A --by stack; report A -f --html o.html; convert A -f -o o.csv
convert A -f -o o.parquet; convert A A -f -o m.wst; convert A -e console; daemon --config d.toml; query A SELECT
"""
JOIN = "select count(*) from page_fault a, page_fault b where a.va < b.va"


def in_session(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its, *_ = path.read_text().rpartition(")")[2].split()
            found += [int(path.parent.name)] * (int(its) == session and state != "Z")
    return found


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sent", SENT)
def test_a_signal_at_any_moment_ends_a_command_and_hurts_no_other_process(sent, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.toml").write_text('exporters = ["msgpack"]\n[daemon]\ncgroups = ["/none"]\nhealth = ""\n'
                                     '[msgpack]\npath = "node.wst"\n')  # fmt: skip
    chosen, (name, _, how) = random.Random(sent), sent.partition(" ")
    with running(sys.executable, "-c", TOUCHES.format(10_000)) as target:
        places = {"PID": str(target), "A": str(named), "TOUCH": TOUCHES.format(20), "PYTHON": sys.executable,
                  "SELECT": JOIN}  # fmt: skip
        for line in chosen.sample(COMMANDS.strip().replace("\n", ";").split(";"), 9):
            words = [*WSTRACE, *(places.get(word, word) for word in line.split())]
            with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  start_new_session=True) as process:  # fmt: skip
                time.sleep(chosen.uniform(0, chosen.choice((0.6, 2.5, 4.5))))
                over = process.poll() is not None
                number, kill = signal.Signals[f"SIG{name}"], os.killpg if how == "group" else os.kill
                with contextlib.suppress(ProcessLookupError):
                    kill(process.pid, number)
                    if how == "twice" or name == "STOP":
                        time.sleep(0.05 if how else 1.5)
                        kill(process.pid, number if how else signal.SIGCONT)
                if name in ("STOP", "PIPE") and ("d.toml" in line or "--keep" in line):
                    process.terminate()
                try:
                    said = process.communicate(timeout=60)[0].decode()
                finally:
                    until = time.monotonic() + 5
                    while (left := in_session(process.pid)) and time.monotonic() < until:
                        time.sleep(0.05)
                    for pid in left:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            code, case = process.returncode, (line, process.returncode, said[-2000:])
            assert not left or name in ("KILL", "QUIT", "PIPE"), (left, case)
            assert not re.search("internal error|/wstrace/", said), case  # Python's own start has its own traceback
            assert code >= 0 or code in (-number, -signal.SIGTERM), case
            if not over and name in ("INT", "TERM", "HUP"):  # 1: in Python's own start
                assert code in (-number, 128 + number, 0, 1, 2, 120, 123), case
            assert not list(tmp_path.glob("*.part")), case
            if "r.wst" in line and (tmp_path / "r.wst").exists() and name not in ("KILL", "QUIT"):
                info = wstrace("info", "--json", "r.wst")
                assert json.loads(info.stdout)["state"] in ("clean", "incomplete"), (info.stdout, case)
            (tmp_path / "r.wst").unlink(missing_ok=True)
        assert Path(f"/proc/{target}/stat").read_text().rpartition(")")[2].split()[0] not in "tTZ"


OK, EVER = b"HTTP/1.1 200 OK\r\n", itertools.repeat


#: what a collector answers to everything, in pieces
ANSWERS = {
    "headers without end": lambda: itertools.chain([OK], EVER(b"X: " + b"x" * 60_000 + b"\r\n")),
    "a body without end": lambda: itertools.chain([OK + b"Content-Length: 100000000000\r\n\r\n"], EVER(bytes(1 << 20))),
    "chunks without end": lambda: itertools.chain(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n"], EVER(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
    ),
    "a byte now and then": lambda: (time.sleep(0.5) or b"x" for _ in range(200)),
    "a bomb": lambda: [OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(256 << 20), 1)],
    "a sequence": lambda: [b"HTTP/1.1 400 \x1b]0;PWN\x07\r\nContent-Length: 20000\r\n\r\n" + b"\x1b[2J" * 5000],
}


@pytest.mark.long
@pytest.mark.parametrize("what", ANSWERS)
def test_a_hostile_collector_costs_seconds_and_a_count(what, tmp_path):
    pytest.importorskip("opentelemetry", reason="pip install 'wstrace[otel]'")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(65536)
                for piece in ANSWERS[what]():
                    self.request.sendall(piece)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server, (tmp_path / "said").open("wb") as said:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"otel:endpoint=http://127.0.0.1:{server.server_address[1]}"
        timed = "import time\nbegan = time.monotonic()\nbytearray(1 << 24)\nprint(time.monotonic() - began)"
        began = time.monotonic()
        with begun("run", "-q", "-e", address, "-c", timed, stdout=subprocess.PIPE, stderr=said) as process:
            most = peak_bytes(process)
            delayed = float(process.stdout.read())
        took = time.monotonic() - began
        server.shutdown()
    err = (tmp_path / "said").read_text()
    assert (process.returncode, took < 40, most < 192 << 20, delayed < 5) == (123, True, True, True), (took, most, err)
    assert not ACTS.search(err)
