"""Why a trace has less than the system accounts: reasons that are proven, and privilege gained by exec."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.usefixtures("full_level")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a program setuid: needs root")

#: touches N pages of fresh memory, four times with a pause of so many ms behind each
TOUCHES = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int n = atoi(argv[1]), ms = atoi(argv[2]);
    for (int turn = 0; turn < 4; turn++) {
        char *p = mmap(0, n * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, n * 4096L, MADV_NOHUGEPAGE);
        for (int i = 0; i < n; i++) p[i * 4096L] = 1;
        usleep(ms * 1000);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def setuid():
    """A program of root's that anyone runs as root."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "program.c").write_text(TOUCHES)
        subprocess.run(["gcc", "-O1", "-o", folder / "program", folder / "program.c"], check=True)
        (folder / "program").chmod(0o4755)
        yield folder / "program"


@needs_root
@pytest.mark.parametrize("child", [False, True], ids=["target", "child"])
def test_what_a_setuid_program_does_is_lost(trace, setuid, child):
    traced = trace(["sh", "-c", f"{setuid} 500 0; true"] if child else [setuid, 500, 0], user="nobody")
    traced.assert_balanced()
    lost = traced.ledger("lost_privileged")
    assert lost >= 2000
    assert traced.context.ledger.losses()
    assert any(f"{lost:,} after the kernel ended the trace: 1 program" in note for note in traced.context.info.notes)


@needs_root
def test_fail_on_loss_knows_of_it(setuid, tmp_path):
    done = wstrace("run", "--fail-on-loss", "--user", "nobody", "--", setuid, "500", "0", cwd=tmp_path)
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
