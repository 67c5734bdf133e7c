"""Launching and attaching on a real Linux: what the target inherits, how it ends, what the system refuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.fresh_process import ran_in_a_fresh_process

from wstrace.errors import CannotExecute, CommandNotFound, TargetExited, Unavailable
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.backend import LinuxTarget, platform

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="launches Linux processes")
root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="changes the user: needs root")


@pytest.fixture(autouse=True, params=["tiny program", "fork"])
def held_by(request, monkeypatch):
    """What holds a command until it is resumed: where the one cannot be executed the other does."""
    if request.param == "fork":
        monkeypatch.setattr("wstrace_plugins.os.linux.launcher.image", lambda go, answer: None)


def run(*command: str, user: str | None = None) -> LinuxTarget:
    target = platform().launch(command, user=user)
    assert isinstance(target, LinuxTarget)
    target.resume()
    assert target.wait(20) is not None
    target.close()
    return target


def shell(script: str, out: Path, user: str | None = None) -> str:
    run("/bin/sh", "-c", f"exec >{out}; {script}", user=user)
    return out.read_text()


def test_the_code_of_one_that_ends_unasked_outlives_the_close():
    """GIVEN a command that ends after the trace has looked at it for the last time, and before all is closed."""
    target = platform().launch(["sh", "-c", "exit 7"])
    target.resume()
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
    target.close()
    assert target.wait(0) == 7


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_exit_codes(script, code):
    target = platform().launch(["sh", "-c", script])
    target.resume()
    assert target.wait(20) == code
    assert target.wait(0) == code
    target.signal(signal.SIGTERM)  # gone: nothing happens
    target.close()


def test_held_until_resume(tmp_path):
    target = platform().launch(["touch", str(tmp_path / "ran")])
    assert target.wait(0.2) is None
    assert not (tmp_path / "ran").exists()
    target.resume()
    assert target.wait(20) == 0
    assert (tmp_path / "ran").exists()


def test_never_run_is_ended(tmp_path):
    target = platform().launch(["touch", str(tmp_path / "ran")])
    target.close()
    with pytest.raises(ProcessLookupError):
        os.kill(target.pid, 0)
    assert not (tmp_path / "ran").exists()


def test_blocked_and_ignored_signals_are_handed_on(tmp_path):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        run("cp", "/proc/self/status", str(tmp_path / "status"))
    finally:
        signal.signal(signal.SIGHUP, old)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    lines = (line.split() for line in (tmp_path / "status").read_text().splitlines())
    blocked, ignored = (int(line[1], 16) for line in lines if line[0] in ("SigBlk:", "SigIgn:"))
    assert blocked == 1 << signal.SIGUSR1 - 1
    assert ignored & 1 << signal.SIGHUP - 1
    assert not ignored & 1 << signal.SIGPIPE - 1


def test_refused_commands(tmp_path):
    with pytest.raises(CommandNotFound, match="no-such-program: no such command"):
        platform().launch(["no-such-program"])
    with pytest.raises(CommandNotFound):
        platform().launch([str(tmp_path / "absent")])
    with pytest.raises(CannotExecute, match="directory"):
        platform().launch([str(tmp_path)])
    plain = tmp_path / "plain"
    plain.write_text("no program\n")
    for mode, content, why in (
        (0o644, "no program\n", "Permission denied"),
        (0o755, "no program\n", "needs a #! line"),
        (0o755, "#!/no/such/interpreter\n", "names an interpreter"),
    ):
        plain.write_text(content)
        plain.chmod(mode)
        target = platform().launch([str(plain)])
        with pytest.raises(CannotExecute, match=why):
            target.resume()
        with pytest.raises(ProcessLookupError):
            os.kill(target.pid, 0)


@root
def test_runs_as_another_user(open_folder, monkeypatch):
    open_folder.chmod(0o777)
    assert shell("id -un; id -G; echo $HOME", open_folder / "a", "nobody") == "nobody\n65534\n/nonexistent\n"
    assert shell("id -un", open_folder / "b", "65534") == "nobody\n"
    monkeypatch.setenv("SUDO_UID", "65534")
    assert shell("id -un", open_folder / "c") == "nobody\n"
    assert shell("id -un", open_folder / "d", "root") == "root\n"
    assert platform().output_owner() == (65534, 65534)
    with pytest.raises(Unavailable, match="no user someone-else"):
        platform().launch(["true"], user="someone-else")


def test_attach():
    child = subprocess.Popen(["sleep", "60"])
    target = platform().attach(child.pid)
    assert target.wait(0.05) is None
    target.signal(signal.SIGTERM)
    assert target.wait(20) == 0
    with pytest.raises(TargetExited, match="has ended"):  # a zombie: we have not waited for it
        platform().attach(child.pid)
    assert child.wait() == -signal.SIGTERM
    target.close()
    with pytest.raises(TargetExited, match=f"no process {child.pid}"):
        platform().attach(child.pid)
    if procfs.name(2) == "kthreadd":
        with pytest.raises(Unavailable, match="kernel thread"):
            platform().attach(2)


def test_the_process_of_a_peak_is_named_only_where_the_system_names_it(request):
    if ran_in_a_fresh_process(request):  # a launcher's own peak hides smaller ones where the command is forked off it
        return
    child = "os.spawnl(os.P_WAIT, sys.executable, 'child', '-S', '-c', 'b = bytearray(400 << 20)')"
    usage = run(sys.executable, "-S", "-c", f"import os, sys; {child}").usage()
    assert (usage.peak_resident_bytes or 0) >= 400 << 20
    assert usage.peak_pid is None  # its own or its child's: rusage does not say
    own = platform().attach(os.getpid())
    assert own.usage().peak_pid == os.getpid()
    own.close()


def test_a_target_that_lives_until_the_interpreters_end_raises_nothing_there():
    """A struct_rusage that it kept did: "SystemError ... tp_clear", as structseq's dealloc asks its emptied type."""
    program = """
import sys
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux.backend import PageFaults
def trace():
    target = platform().launch(["true"])
    source = PageFaults(stacks="none")
    source.start(Context(targets=(target,)))
    target.resume()
    target.wait(60)
    list(source.stop())
    target.close()
    raise ValueError
try:
    trace()
except ValueError as error:
    sys.last_value, sys.last_traceback = error, error.__traceback__
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_target_is_waited_for_longer_than_poll_can():
    with subprocess.Popen(["sleep", "0.3"]) as process:
        target = platform().attach(process.pid)
        assert target.wait(1e12) is not None
        target.close()
