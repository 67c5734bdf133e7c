"""The flight recorder beside a cgroup whose processes are really killed for want of memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.cgroups import MadeCgroup, made_cgroup
from kit.command_line import begun, until, wstrace

from wstrace import open_trace
from wstrace.errors import TraceFileError
from wstrace.firing import Recording


def wait_until_traced(ring: Path, tracer: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Waits until a ring has rows of processes, which come when these are armed; fails when its tracer ends."""
    until(lambda: tracer.poll() is not None or _has_processes(ring), seconds)
    assert tracer.poll() is None, tracer.communicate()


def _has_processes(ring: Path) -> bool:
    try:
        with open_trace(ring) as trace:
            return bool(trace.rows.get("process"))
    except TraceFileError:  # it is not there yet, or has no header yet
        return False


#: Each line of its input is `N [PAUSE [PROCESSES]]`: it grows by N times 1.25 MiB, by its lines 5 and 7, with pauses of
#: so many seconds, and prints `done`. Of several processes its children grow, and it prints the exit status of each.
PROGRAM = """
import os, sys, time
kept = []
def load_index():
    kept.append(bytearray(1 << 20))
def cache_user():
    kept.append(bytearray(256 << 10))
for line in sys.stdin:
    n, pause, processes = map(float, (*line.split(), "0", "1")[:3])
    children = []
    while processes > 1 and len(children) < processes and (pid := os.fork()):
        children.append(pid)
    if len(children) > 1 and len(children) == processes:
        print("ends", *sorted(os.waitpid(pid, 0)[1] for pid in children), flush=True)
        sys.exit()
    for _ in range(int(n)):
        load_index()
        cache_user()
        if pause:
            time.sleep(pause)
    print("done", flush=True)
"""


def growing(folder: Path) -> str:
    """The path of the program, `app.py` in that folder."""
    file = folder / "app.py"
    file.write_text(PROGRAM)
    return str(file)


def grow(program: subprocess.Popen[str], n: int) -> None:
    """Lets the program grow by n times 1.25 MiB, and waits until it has."""
    print(n, file=program.stdin, flush=True)
    assert program.stdout.readline() == "done\n"


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: control groups")

LIMIT = 64 << 20


@pytest.fixture
def cgroup():
    with made_cgroup("-oom") as made:
        made.limit(LIMIT)
        yield made


def watching(folder: Path, *words: object) -> subprocess.Popen[str]:
    """A flight recorder of what the words of `attach` say, once it traces."""
    tracer = begun("attach", *words, "--keep", "60s", "-o", "api.wst", "--quiet", cwd=folder)
    wait_until_traced(folder / "api.ring.wst", tracer)
    return tracer


def recorded(tmp_path: Path, cgroup: MadeCgroup, pause: float, processes: int = 1) -> tuple[str, int, str]:
    """Traces a program that grows in the cgroup. Returns what wstrace said, the program's exit code and words."""
    program = subprocess.Popen([*cgroup.joining(), sys.executable, growing(tmp_path)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    tracer = watching(tmp_path, program.pid, "--on", "oom_kill")
    try:
        printed, _ = program.communicate(f"400 {pause} {processes}\n", timeout=100)
        said = tracer.communicate(timeout=100)[1]
    finally:
        for process in (program, tracer):
            process.kill()
            process.communicate()
    return said, program.returncode, printed


def shown(said: str) -> re.Match[str]:
    """The line of a kill."""
    lines = [line for line in said.splitlines() if ": killed at " in line]
    assert len(lines) == 1, said
    found = re.match(r"(\S+): killed at ([\d.]+) MiB charged; \+([\d.]+) in the last [^:]+: (.*)", lines[0])
    assert found, said
    return found


@pytest.mark.timeout(300)
def test_a_slow_grower_has_snapshots_before_its_kill(tmp_path, cgroup, full_level, python_stacks):
    for pause in (0.02, 0.1, 0.4):  # on a busy machine a look comes late
        said, code, _ = recorded(tmp_path, cgroup, pause)
        assert code == -signal.SIGKILL
        line = shown(said)
        if "at the last snapshot" in line[4]:
            break
        for path in tmp_path.glob("api*"):
            path.unlink()
    assert line[1] == cgroup.path.strip("/")
    assert float(line[2]) == 64.0
    assert float(line[3]) > 30
    amounts = re.match(r"resident ([\d.]+) by load_index app.py:5, ([\d.]+) by cache_user app.py:7 "
                       r"\(at the last snapshot, [\d.]+ m?s before, at ([\d.]+)", line[4])  # fmt: skip
    assert amounts, said
    # a look counts pages of libraries, too, which other groups are charged for
    assert 25 < float(amounts[1]) < float(amounts[3]) <= 64 + 16
    assert float(amounts[2]) == pytest.approx(float(amounts[1]) / 4, rel=0.15)
    with open_trace(tmp_path / "api-1.wst") as trace:
        fact = Recording.of(trace.info.extra)
        assert (fact.how, fact.cgroup) == ("killed", cgroup.path)
        assert 0 < fact.last_look_ns < fact.time_ns


@pytest.mark.timeout(200)
def test_a_fast_grower_has_its_faults_at_least(tmp_path, cgroup, full_level, python_stacks):
    said, code, _ = recorded(tmp_path, cgroup, 0.0)
    assert code == -signal.SIGKILL
    line = shown(said)
    assert float(line[2]) == 64.0
    assert "load_index app.py:5" in line[4], said
    assert "at the last snapshot" in line[4] or "brought, which may have been given back" in line[4], said


@pytest.mark.timeout(200)
def test_each_kill_of_several_processes_is_reported_and_the_others_go_on(tmp_path, cgroup, full_level, python_stacks):
    said, code, printed = recorded(tmp_path, cgroup, 0.05, processes=2)
    assert code == 0
    assert f" {int(signal.SIGKILL)}" in printed, "a child was killed"
    lines = [line for line in said.splitlines() if ": killed at " in line]
    assert "load_index app.py:5" in lines[0]
    folder = cgroup.memory or cgroup.folder
    counted = next(folder / name for name in ("memory.events", "memory.oom_control") if (folder / name).exists())
    kills = int(re.search(r"^oom_kill (\d+)$", counted.read_text(), re.MULTILINE)[1])
    found = 0
    for number in range(1, len(lines) + 1):
        with open_trace(tmp_path / f"api-{number}.wst") as trace:
            several = re.search(r"\((\d+) kills\)", Recording.of(trace.info.extra).what)
            found += int(several[1]) if several else 1
    assert found == kills > 0, "as many as the kernel counted"


@pytest.mark.timeout(200)
def test_a_cgroup_that_is_attached_to_is_watched_until_it_is_removed(tmp_path, cgroup, full_level):
    idle = subprocess.Popen([*cgroup.joining(), "sh", "-c", "while :; do sleep 0.1; done"])  # it is met when it forks
    program = subprocess.Popen([*cgroup.joining(), sys.executable, growing(tmp_path)], stdin=subprocess.PIPE, text=True)
    # its size is read once a second
    triggers = ("--on", "rss=24MiB", "--on", "oom_kill", "--on", "end")
    tracer = watching(tmp_path, "--cgroup", cgroup.path, *triggers)
    try:
        program.communicate("400 0.05\n", timeout=100)
        time.sleep(3)  # a cgroup takes its count of kills along, which is read once a second
        cgroup.remove()
        said = tracer.communicate(timeout=60)[1]
    finally:
        for process in (program, idle, tracer):
            process.kill()
            process.communicate()
    assert tracer.returncode == 0, said
    assert program.returncode == -signal.SIGKILL
    name = cgroup.path.strip("/")
    for how in ("at", "killed at 64.0 MiB charged;", "ended at"):
        assert f"{name}: {how} " in said
    assert shown(said)[1] == name
    with open_trace(tmp_path / "api-2.wst") as trace:
        fact = Recording.of(trace.info.extra)
        assert (fact.how, fact.cgroup) == ("killed", cgroup.path)


@pytest.fixture
def unified(cgroup):
    """A cgroup whose memory is in the v2 hierarchy."""
    if not (cgroup.folder / "memory.high").exists():
        pytest.skip("only on a v2 hierarchy of memory, and it is in a v1 one here: tests/kernels/run trixie runs this")
    return cgroup


@pytest.mark.timeout(300)
def test_a_group_that_is_killed_as_a_whole_is_one_recording(tmp_path, unified, full_level):
    """GIVEN memory.oom.group WHEN one process is too much THEN all three are killed at once, and shown once.

    How many is not: the kernel counts the first one again when it kills the group.
    """
    (unified.folder / "memory.oom.group").write_text("1")
    said, code, printed = recorded(tmp_path, unified, 0.05, processes=2)
    assert (code, printed) == (-signal.SIGKILL, ""), "the one that waits for the others was killed with them"
    events = dict(line.split() for line in (unified.folder / "memory.events").read_text().splitlines())
    assert int(events["oom_kill"]) >= 3
    assert int(events["oom_group_kill"]) == 1
    shown(said)
    with open_trace(tmp_path / "api-1.wst") as trace:
        fact = Recording.of(trace.info.extra)
        assert (fact.how, fact.what, fact.cgroup) == ("killed", "oom_kill (the whole group)", unified.path)


def test_a_cgroup_without_a_kill_has_no_recording(tmp_path, cgroup, full_level):
    cgroup.limit(1 << 30)
    said, code, _ = recorded(tmp_path, cgroup, 0.0)
    assert code == 0
    assert "killed" not in said
    assert list(tmp_path.glob("api*")) == []


#: Reads a file of more pages than it may have, again and again; begins on request.
READS = """
import mmap, sys
file = open(sys.argv[1], 'rb')
memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sys.stdin.readline()
while True:
    for at in range(0, len(memory), 4096): memory[at]
"""


@pytest.fixture
def waiting(tmp_path, cgroup):
    """A program of the cgroup that waits for memory from its first line of input on."""
    from wstrace_plugins.os.linux.cgroups.tree import Cgroups

    cgroups = Cgroups.mounted()
    files = cgroups.memory(cgroups.at(cgroup.path))
    if files.pressure_file is None:
        pytest.skip("this kernel does not tell pressure")
    path = tmp_path / "read.bin"
    path.write_bytes(bytes(2 * LIMIT))
    with path.open("rb") as file:  # what is in the page cache already counts for whoever brought it
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with subprocess.Popen([*cgroup.joining(), sys.executable, "-S", "-c", READS, path],
                          stdin=subprocess.PIPE) as program:  # fmt: skip
        yield program
        program.kill()


@pytest.mark.timeout(200)
def test_waiting_for_memory_is_recorded(tmp_path, cgroup, full_level, waiting):
    program = waiting
    tracer = watching(tmp_path, program.pid, "--on", "psi=50ms/2s")
    try:
        program.stdin.write(b"\n")
        program.stdin.flush()
        until((tmp_path / "api-1.wst").exists, 100)
        program.kill()
        said = tracer.communicate(timeout=60)[1]
    finally:
        tracer.kill()
        tracer.communicate()
    with open_trace(str(tmp_path / "api-1.wst")) as trace:
        recording = Recording.of(trace.info.extra)
    assert recording is not None
    assert recording.what == "psi=50ms/2s", said
    assert recording.cgroup == cgroup.path


def test_a_limit_that_is_not_there_is_reported_before_anything_is_traced(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as process:
        done = wstrace("attach", process.pid, "--on", "psi=300ms/2s", cwd=tmp_path)
        process.kill()
    assert done.returncode == 122
    assert done.stderr.startswith("wstrace: ")
    assert "trigger psi" in done.stderr or "memory" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_attach_records_the_minutes_before_a_size_and_the_end(tmp_path, full_level, python_stacks):
    program = subprocess.Popen(
        [sys.executable, growing(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    grow(program, 1)
    words = ("--keep", "60s", "--on", "rss=100MiB", "--on", "end", "-o", "api.wst")
    tracer = begun("attach", program.pid, *words, cwd=tmp_path)
    try:
        wait_until_traced(tmp_path / "api.ring.wst", tracer)
        grow(program, 100)
        until((tmp_path / "api-1.wst").exists)
        grow(program, 1)
        program.communicate(timeout=20)
        _, said = tracer.communicate(timeout=90)
    finally:
        for process in (program, tracer):
            process.kill()
            process.communicate()
    assert tracer.returncode == 0, said
    line = next(line for line in said.splitlines() if ": at " in line)
    found = re.fullmatch(r"\S+: at ([\d.]+) MiB; \+([\d.]+) in the last \S+ m?s: ([\d.]+) by load_index app.py:5,"
                         r" ([\d.]+) by cache_user app.py:7", line)  # fmt: skip
    assert found, said
    size, gained, first, second = (float(one) for one in found.groups())
    assert size >= 100
    assert first == pytest.approx(100, abs=40), "how many had come when it was looked at depends on the machine"
    assert second == pytest.approx(first / 4, rel=0.1)
    assert gained == pytest.approx(first + second, rel=0.1)
    assert any(": ended at " in line for line in said.splitlines()), said
    assert sorted({path.name.partition(".")[0] for path in tmp_path.glob("*.wst")}) == ["api-1", "api-2"], "no ring"
    with open_trace(tmp_path / "api-1.wst") as trace:
        shown = Recording.of(trace.info.extra)
        assert shown.what == "rss=100MiB"
        assert shown.n_bytes / (1 << 20) == pytest.approx(size, abs=0.1)
        assert trace.state == "clean"
        assert not trace.info.incomplete
    with open_trace(tmp_path / "api-2.wst") as later:
        assert Recording.of(later.info.extra).how == "ended"
        assert later.rows["page_fault"] >= 101 * 320, "it has the minutes of the first one too"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["-s", "triggers:pause=-1"], "pause is 0 or more"),
        (["-e", "flight_recorder:recordings=-1"], "recordings is 0 or more"),
        (["--on", "rss=much"], "trigger rss=much"),
    ],
)
def test_options_of_both_parts_hold_beside_keep_and_on(tmp_path, words, refused):
    with subprocess.Popen(["sleep", "60"]) as process:
        keep = ("--keep", "60s", "--on", "end", "-o", "api.wst", "--duration", "1ms")
        done = wstrace("attach", process.pid, *keep, *words, cwd=tmp_path)
        process.kill()
    assert (done.returncode, list(tmp_path.iterdir())) == (125, []), done.stderr
    assert refused in done.stderr
