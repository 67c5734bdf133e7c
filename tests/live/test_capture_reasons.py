"""Why a trace has less than the system accounts: reasons that are proven, and privilege gained by exec."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.usefixtures("full_level")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a program setuid: needs root")


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
