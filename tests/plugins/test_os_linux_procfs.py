"""/proc as columns: golden text anywhere, and the running kernel with psutil's answers as the oracle."""

import os
import subprocess
import sys

import psutil
import pytest
from kit.command_line import until
from kit.titles import TITLE

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited
from wstrace.plugins import own_platform
from wstrace.schema import KINDS
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.working_set.linux.backend import accounted

TEXT = b"""00400000-0040b000 r-xp 00001000 08:01 1048602                            /bin/with space
0065a000-0067b000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
7f0000001000-7f0000002000 r--p 00002000 103:100005 18446744073709551615  /tmp/new\\012line (deleted)
7f0000002000-7f0000003000 rw-s 00000000 00:01 7                          /dev/zero (deleted)
7f0000003000-7f0000004000 rw-s 00000000 00:01 8                          /memfd:\x1b[31mred\xff (deleted)
7f0000004000-7f0000005000 rw-s 00000000 00:16 9                          /dev/shm/segment
7f0000005000-7f0000006000 rw-s 00000000 00:01 32769                      /SYSV00000000 (deleted)
7f0000006000-7f0000007000 rw-p 00000000 00:00 0                          [anon: glibc: malloc]
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00030000-7ffc00032000 r-xp 00000000 00:00 0                          [vdso]
7ffc00032000-7ffc00034000 r--p 00000000 00:00 0                          [vvar_vclock]
this is no mapping
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""  # noqa: W291 - an unnamed mapping's line ends in a blank


def test_golden_maps():
    columns, files = procfs.parse_maps([TEXT])
    names = [files[i] for i in columns["file"]]
    assert [(name, KINDS[k]) for name, k in zip(names, columns["flags"] >> 8, strict=True)] == [
        ("/bin/with space", "file"),
        ("[heap]", "heap"),
        ("[anon]", "anon"),
        ("/tmp/new\nline", "file"),
        ("[shared memory]", "shared memory"),
        ("/memfd:\x1b[31mred\udcff", "shared memory"),
        ("/dev/shm/segment", "shared memory"),
        ("/SYSV00000000", "shared memory"),
        ("[anon: glibc: malloc]", "anon"),
        ("[stack]", "stack"),
        ("[vdso]", "vdso"),
        ("[vvar_vclock]", "vdso"),
        ("[vsyscall]", "vdso"),
    ]
    assert columns["start"][0] == 0x400000
    assert columns["end"][-1] == 0xFFFFFFFFFF601000
    assert columns["offset"][:2].tolist() == [0x1000, 0]
    assert columns["ino"][3] == 2**64 - 1
    assert columns["dev"][3] == os.makedev(0x103, 0x100005)
    assert (columns["flags"][:5] & 15).tolist() == [5, 3, 3, 1, 11]
    coded = procfs.parse_maps([TEXT]).coded(strings := Dictionary())
    assert [strings[code] for code in coded["file"]] == names
    assert {name: str(column.dtype) for name, column in coded.items()} == {
        "start": "uint64", "end": "uint64", "offset": "uint64", "file": "uint32", "dev": "uint64", "ino": "uint64",
        "flags": "uint16",
    }  # fmt: skip


pytestmark = pytest.mark.skipif(not procfs.exists(os.getpid()), reason="no /proc on this system")


def test_processes_and_counters():
    psutil = pytest.importorskip("psutil")
    code = (
        "import subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "subprocess.run([sys.executable, '-c', 'print(flush=True); input()'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        family = [p.pid for p in psutil.Process(child.pid).children(recursive=True)]
        assert procfs.descendants(child.pid) == procfs.living_descendants(child.pid) == family
        assert len(family) == 1
        assert set(procfs.living_descendants(os.getpid())) == set(procfs.descendants(os.getpid()))
        assert {child.pid, *family} <= set(procfs.descendants(os.getpid()))
        assert sorted(procfs.threads(child.pid)) == sorted(t.id for t in psutil.Process(child.pid).threads())
        assert len(procfs.threads(child.pid)) == 2
        stat = procfs.stat(child.pid)
        assert (stat.ppid, stat.kernel_thread, stat.gone) == (os.getpid(), False, False)
        assert stat.name == procfs.name(child.pid) == procfs.status(child.pid)["Name"]
        assert stat.minor > 100
        child.stdin.close()
        until(lambda: procfs.stat(child.pid).gone)
        assert procfs.stat(child.pid).minor_children > 100
    with pytest.raises(TargetExited):
        procfs.stat(child.pid)
    with pytest.raises(TargetExited):
        procfs.read_maps(child.pid)
    with pytest.raises(TargetExited):
        procfs.threads(child.pid)
    assert procfs.name(child.pid) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("words", "text", "shown"),
    [
        (["secret"], "kit: worker [app]", b"kit: worker [app]"),  # shorter than the command line
        ([], "kit: " + "w" * 400, b"kit: " + b"w" * 123),  # longer, and more than is taken
        (["--password=secret"], "", b""),  # nobody wrote over it
        (["secret"], "/usr/bin/browser --type=tab --key=secret", b""),  # a command line, written anew
    ],
)
def test_a_title_is_what_a_process_wrote_over_its_command_line(words, text, shown):
    code = f"{TITLE}\nif {text!r}: title({text!r})\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert procfs.title(child.pid) == shown
        child.communicate(b"\n")
    assert procfs.title(child.pid) == b""


def test_an_ended_process_that_nobody_waited_for_has_no_arguments_and_no_account():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.arguments(child.pid) == ()
    with pytest.raises(TargetExited):
        accounted(child.pid)
    child.wait()
    assert procfs.arguments(child.pid) == ()
    with pytest.raises(TargetExited):
        accounted(child.pid)
    assert accounted(os.getpid()).private


def test_the_platform_says_of_a_process_what_psutil_says():
    """GIVEN a process with a long name THEN name, sizes, start and family are those of an independent reader."""
    platform, me = own_platform(), psutil.Process()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        now, theirs = platform.process(me.pid), me.memory_info()
        assert (now.name, platform.process_names()[me.pid]) == (me.name(), me.name())
        assert abs(now.resident - theirs.rss) < 16 << 20
        assert abs(now.virtual - theirs.vms) < 64 << 20
        assert abs(now.started - me.create_time()) < 1
        assert child.pid in platform.descendants(me.pid)
    assert platform.process(child.pid) is None
