"""Attaching by control group on the real kernel: what perf itself counts there, what comes, moves, goes and returns."""

import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from kit.command_line import until

from wstrace.errors import TargetExited, UsageError
from wstrace.session import Session
from wstrace_plugins.os.linux.backend import platform

pytestmark = pytest.mark.usefixtures("full_level")

#: Touches fresh pages each time that a line comes, and says so; `fork`: in a new child.
TOUCHES = """
import contextlib, mmap, os, sys
def touch(n):
    m = mmap.mmap(-1, n * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError): m.madvise(mmap.MADV_NOHUGEPAGE)  # none without huge pages
    for i in range(n): m[i * 4096] = 1
print('ready', flush=True)
for line in sys.stdin:
    word, n = line.split()
    if word == 'fork' and (child := os.fork()): os.waitpid(child, 0)
    else: touch(int(n))
    if word == 'fork' and not child: os._exit(0)
    print('done', flush=True)
"""


class Touching:
    """That program."""

    def __init__(self, joining: list[str] | None = None) -> None:
        self.process = subprocess.Popen([*(joining or []), sys.executable, "-S", "-c", TOUCHES], stdin=-1, stdout=-1,
                                        text=True)  # fmt: skip
        self.pid = self.process.pid
        assert self._answer() == "ready"

    def _answer(self) -> str:
        return self.process.stdout.readline().strip()

    def say(self, word: str, n: int) -> None:
        self.process.stdin.write(f"{word} {n}\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.communicate()


@pytest.fixture
def touching():
    made = []

    def start(joining=None):
        made.append(Touching(joining))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.end()


def traced(*chosen: tuple[str, str], stacks: str = "none") -> Session:
    groups = [platform().group(*one) for one in chosen]
    return Session(groups=groups, sources=[f"page_faults:stacks={stacks}"]).start()


def by_cgroup(session: Session) -> dict[str, int]:
    codes, counts = np.unique(session.faults["cgroup"], return_counts=True)
    return {session.name(code): int(n) for code, n in zip(codes, counts, strict=True)}


def assert_balanced(session: Session) -> None:
    ledger = session.ledger
    lost = sum(ledger.get(stage) for stage in ("lost_kernel", "lost_tracer", "foreign_clock", "unaccounted"))
    assert len(session.faults) + lost == ledger.get("counted")


def test_counts_by_cgroup_are_those_of_perf(cgroup, touching):
    """Two cgroups, programs that are executed in them, and children."""
    if shutil.which("perf") is None:
        pytest.skip("needs perf (tests/install-peers)")
    one, other = cgroup.make("one"), cgroup.make("other")
    session = traced(("cgroup", one.path), ("cgroup", other.path))
    names = f"{one.path[1:]},{other.path[1:]}"
    perf = subprocess.Popen(["perf", "stat", "-x,", "-a", "-e", "page-faults,page-faults", "-G", names, "--", "cat"],
                            stdin=-1, stderr=-1, text=True)  # fmt: skip
    while not subprocess.run(["pgrep", "-P", str(perf.pid), "-x", "cat"], stdout=-1, check=False).stdout:
        time.sleep(0.02)  # perf counts from its exec of cat on
    for made, n in ((one, 700), (other, 1100)):
        program = touching(made.joining())
        program.say("here", n)
        program.say("fork", n)
        program.end()
    _, shown = perf.communicate()
    session.stop()
    found = by_cgroup(session)
    assert found.keys() == {one.path, other.path}, shown
    assert found[one.path] > 1400
    assert found[other.path] > 2200
    numbers = [int(n) for n in re.findall(r"^(\d+),,page-faults", shown, re.M)]
    assert numbers == [found[one.path], found[other.path]], shown
    assert_balanced(session)


def test_what_several_choices_hold_is_accounted_once(cgroup, touching):
    inner = cgroup.make("inner")
    chosen = [("cgroup", inner.path), ("cgroup", f"{cgroup.path}/*"), ("cgroup", f"{cgroup.path}*")]
    session = traced(*chosen, ("cgroup", cgroup.path))
    program = touching(inner.joining())
    program.say("here", 3000)
    processes = session.context.processes()
    session.stop()
    assert processes.count(program.pid) == 1
    assert session.info.extra["cgroups"] == [cgroup.path]
    assert by_cgroup(session).keys() == {inner.path}
    accounted = session.info.usage.faults
    assert accounted is None or accounted < 2 * len(session.faults)
    assert_balanced(session)


def test_a_process_that_moves_is_counted_where_it_is(cgroup, touching):
    one, other = cgroup.make("one"), cgroup.make("other")
    program = touching(one.joining())
    session = traced(("cgroup", cgroup.path))
    program.say("here", 300)
    other.take(program.pid)
    program.say("here", 500)
    session.stop()
    found = by_cgroup(session)
    assert found.keys() == {one.path, other.path}
    assert 300 <= found[one.path] < 400
    assert 500 <= found[other.path] < 600
    faults = session.faults
    places = {session.name(code) for code in faults["file"]}
    assert "[anon]" in places, "a process that was there before has mappings"
    assert session.ledger.get("unresolved", "va") == 0


def test_a_fork_storm(cgroup):
    """Each process is in from its first instruction on, with its name and mappings."""
    session = traced(("cgroup", cgroup.path))
    script = "for i in $(seq 150); do /bin/true; done"
    subprocess.run([*cgroup.joining(), "sh", "-c", script], check=True)
    session.stop()
    assert by_cgroup(session).keys() == {cgroup.path}
    assert len(np.unique(session.faults["pid"])) >= 151
    assert session.ledger.get("unresolved", "va") <= len(session.faults) // 100
    names = [row.label for row in session.trace.report(by="process").rows]
    assert sum(name.startswith("true") for name in names) == 150
    assert_balanced(session)


def test_all_processes_and_not_ourselves(cgroup, touching):
    from wstrace.schema import FAULT_OBSERVER

    session = traced(("all", ""))
    program = touching(cgroup.joining())
    program.say("fork", 800)
    program.end()
    session.stop()
    assert by_cgroup(session)[cgroup.path] >= 800
    note = next((note for note in session.info.notes if "faulted in by the kernel itself" in note), "0 ")
    shown = int(note.split()[0].replace(",", ""))  # of the same time as what the report calls not visible
    assert shown == max((session.info.usage.faults or 0) - session.ledger.get("counted"), 0)
    own = session.faults["pid"] == os.getpid()
    assert ((session.faults["flags"] & FAULT_OBSERVER != 0) == own).all()
    assert_balanced(session)


def test_python_stacks_of_a_process_that_was_there(cgroup, touching, python_stacks):
    """Its first faults have their lines: which CPython it runs is known before they come."""
    program = touching(cgroup.joining())
    program.say("here", 1)
    session = traced(("cgroup", cgroup.path), stacks="python")
    program.say("here", 300)
    session.stop()
    assert int((session.faults["stack"] != 0).sum()) >= 300


def test_cgroups_that_come_and_go_before_they_can_be_traced_are_counted(cgroup):
    """Below a traced one they are traced from the beginning; beside it only since they were seen."""
    cgroup.make("there")
    beside, below = traced(("cgroup", f"{cgroup.path}/*")), traced(("cgroup", cgroup.path))
    for number in range(20):
        cgroup.make(f"empty{number}").remove()
    short = cgroup.make("short")
    subprocess.run([*short.joining(), "true"], check=True)
    short.remove()
    until(lambda: beside.ledger.get("missed_cgroups"))
    beside.stop()
    below.stop()
    assert "missed_cgroups" in {stage for stage, _, _ in beside.ledger.losses()}
    assert by_cgroup(below)[short.path] > 10
    assert not below.ledger.get("missed_cgroups")


def test_it_ends_with_its_cgroup_and_says_so(cgroup, touching):
    one = cgroup.make("one")
    program = touching(one.joining())
    session = traced(("cgroup", one.path))
    program.say("here", 300)
    program.end()
    one.remove()
    assert session.wait(30)
    session.stop()
    assert f"the cgroup {one.path} was removed during the trace" in session.info.notes
    assert len(session.faults) >= 300


def test_line_1_of_the_command_is_the_growth_of_its_processes_in_bytes(cgroup):
    """GIVEN a process that takes 20 MiB and a new one that takes 10 WHEN their cgroup is traced THEN +30 MiB."""
    takes = "input(); kept = b'x' * ({} << 20); print(flush=True); input()"
    command = [sys.executable, "-m", "wstrace", "attach", "--cgroup", cgroup.path, "--duration", "6s"]
    pipes, mib = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}, (20, 10)
    joining = [[*cgroup.joining(), sys.executable, "-S", "-c", takes.format(n)] for n in mib]
    with subprocess.Popen(joining[0], **pipes) as there, subprocess.Popen(command, **pipes, stderr=-2) as tracer:
        time.sleep(3)
        with subprocess.Popen(joining[1], **pipes) as late:
            for one in (there, late):
                one.stdin.write("\n")
                one.stdin.flush()
                one.stdout.readline()
            shown = tracer.stdout.read()
            late.communicate("\n")
        there.communicate("\n")
    found = re.match(r"\+(\d+\.\d) MiB in .* in 2 processes, .*: (\d+\.\d) ", shown)
    assert found, shown
    assert 30 <= float(found[1]) < 40


def test_a_cgroup_that_comes_back_is_traced_again(cgroup, touching):
    """As a service that is restarted: another id, the same path."""
    one = cgroup.make("one")
    session = traced(("cgroup", f"{cgroup.path}/on?"))
    program = touching(one.joining())
    program.say("here", 300)
    program.end()
    one.remove()
    again = cgroup.make("one")
    note = f"the cgroup {one.path} was made again during the trace, and is traced since then"
    until(lambda: note in session.info.notes)
    program = touching(again.joining())
    program.say("here", 500)
    assert not session.wait(0)
    session.stop()
    assert by_cgroup(session)[one.path] >= 800
    assert session.info.notes[:2].count(note) == 1
    assert_balanced(session)


def test_containers_and_units(cgroup, touching):
    container, unit = cgroup.make("docker-" + "ab01" * 16 + ".scope"), cgroup.make("wstrace-test.service")
    program = touching(container.joining())
    for chosen in (("container", "AB01ab01"), ("unit", "wstrace-test")):
        session = traced(chosen)
        program.say("here", 200)
        session.stop()
        assert len(session.faults) >= 200 if chosen[0] == "container" else len(session.faults) == 0
        unit.take(program.pid)
        container.take(program.pid)
    with pytest.raises(UsageError, match="is not the id of a container"):
        platform().group("container", "ab01")
    for kind, name in (("container", "cdcdcdcd"), ("unit", "no-such-unit"), ("cgroup", "/no/such"), ("cgroup", "/no*")):
        with pytest.raises(TargetExited):
            platform().group(kind, name)


@pytest.mark.parametrize("enter", [["chroot"], ["unshare", "--mount", "chroot"]], ids=["chroot", "mount_namespace"])
def test_files_have_the_names_of_the_containers_root(cgroup, tmp_path, enter):
    """A program that is started in it has its names below that root, and its mappings the file's own inode."""
    programs = ["/bin/sh", "/bin/true"]
    shown = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for file in {*programs, *re.findall(r"(/lib\S+)(?= \()", shown)}:
        (tmp_path / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / file[1:])
    session = traced(("cgroup", cgroup.path))
    subprocess.run(
        [*cgroup.joining(), *enter, str(tmp_path), "/bin/sh", "-c", "for i in 1 2 3; do /bin/true; done"], check=True
    )
    session.stop()
    found = {row.label: row.values["faults"] for row in session.trace.report(by="file").rows}
    assert found.get("/bin/true", 0) > 3, found
    inodes = {int(ino) for batch in session.trace.batches("mapping") for ino in batch["ino"]}
    assert (tmp_path / "bin/true").stat().st_ino in inodes


def test_a_cgroup_that_is_removed_before_its_events_are_opened_is_left_out(cgroup):
    """One of two, and then the only one, in which case there is nothing to trace."""
    for name in ("one", "other"):
        cgroup.make(name)
    group = platform().group("cgroup", f"{cgroup.path}/*")
    cgroup.at("one").remove()
    session = Session(groups=[group], sources=["page_faults:stacks=none"]).start()
    subprocess.run([*cgroup.at("other").joining(), "true"], check=True)
    session.stop()
    assert {session.name(code) for code in session.faults["cgroup"].tolist()} == {f"{cgroup.path}/other"}
    assert f"the cgroup {cgroup.path}/one was removed during the trace" in session.info.notes
    alone = platform().group("cgroup", f"{cgroup.path}/oth*")
    cgroup.at("other").remove()
    with pytest.raises(TargetExited, match=f"the cgroup {cgroup.path}/other has been removed"):
        Session(groups=[alone], sources=["page_faults:stacks=none"]).start()
