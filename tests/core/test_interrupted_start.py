"""A signal while wstrace is being imported, or while a trace starts: nothing has begun, or the trace is whole."""

import csv
import inspect
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import pytest
from kit.blame_scripted import ANON, PAGE, Script, saved
from kit.command_line import WSTRACE

from wstrace import open_trace, output_file
from wstrace.cli import main
from wstrace.cli.tracing import Recording
from wstrace_plugins.os.linux.backend import LinuxPlatform
from wstrace_plugins.os.linux.launcher import Launcher

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
START = {"module": WSTRACE, "script": [sys.executable, "-c", "from wstrace.__main__ import main; main()"]}
NUMBERS = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
NOTHING = "wstrace: interrupted by {} before the trace began: nothing was recorded\n"
SLOW = "import os, time\nos.write(1, b'importing')\ntime.sleep(60)\n"


def interrupted(
    words: list[str], folder: Path, number: int = signal.SIGINT, **options: object
) -> subprocess.Popen[bytes]:
    """The process, which got a signal while it imported click."""
    (folder / "click.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [*words, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options
    )
    assert process.stdout.read(len("importing")) == b"importing"
    process.send_signal(number)
    return process


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("how", START)
def test_an_import_is_interrupted_in_one_line(how, number, tmp_path):
    process = interrupted(START[how], tmp_path, number)
    assert process.communicate(timeout=30) == (b"", f"wstrace: interrupted by {number.name} before it began\n".encode())
    assert process.returncode == -number, "the parent sees that the signal ended it"


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_is_ignored_stays_ignored(number, tmp_path):
    process = interrupted(START["module"], tmp_path, number, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("how", START)
def test_a_signal_at_any_moment_shows_no_line_of_ours(how):
    """Python's own start, before our first line, is Python's: its traceback names no file of this package."""
    chosen = random.Random(27)
    for _ in range(200):
        process = subprocess.Popen([*START[how], "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(chosen.uniform(0, 0.2))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert b"/wstrace/" not in said, said.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="launches /bin/sh")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_before_the_command_runs_leaves_nothing_and_says_so(number, tmp_path, monkeypatch, capfd):
    """The signal arrives when the file has just been created, and no line has noted it yet."""
    create, path = os.open, tmp_path / "x.wst"

    def interrupted_open(name, flags, *given, **options):
        descriptor = create(name, flags, *given, **options)
        if str(name) in (str(path), path.name) and flags & os.O_EXCL:
            signal.raise_signal(number)
        return descriptor

    monkeypatch.setattr(os, "open", interrupted_open)
    assert main(["run", "-q", "-o", str(path), "--", "touch", str(tmp_path / "ran")]) == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err.lstrip() == NOTHING.format(number.name)


@pytest.mark.skipif(sys.platform != "linux", reason="launches sleep")
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("where", ["its launch", "its session", "its report"])
def test_a_signal_at_any_other_moment_is_reported_too(where, number, tmp_path, monkeypatch, capfd):
    owner, name = {"its launch": (LinuxPlatform, "launch"), "its session": (Recording, "_session"),
                   "its report": (Recording, "_exit_code")}[where]  # fmt: skip
    call = getattr(owner, name)

    def then_interrupted(*given, **options):
        signal.raise_signal(number)
        return call(*given, **options)

    monkeypatch.setattr(owner, name, then_interrupted)
    assert main(["run", "-q", "-o", str(tmp_path / "x.wst"), "--", "true"]) == 128 + number
    shown, recorded = f"wstrace: interrupted by {number.name}\n", where == "its report"
    assert capfd.readouterr().err.lstrip() == (shown if recorded else NOTHING.format(number.name))
    assert [path.name for path in tmp_path.iterdir()] == ["x.wst"] * recorded


@pytest.mark.skipif(sys.platform != "linux", reason="launches sleep")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_when_the_command_has_begun_ends_it_and_its_trace(number, tmp_path, monkeypatch):
    """The signal arrives when the command was let go, and the start has not returned yet."""
    go, path, launched = Launcher.go, tmp_path / "x.wst", []

    def interrupted_go(launcher):
        usage = go(launcher)
        launched.append(launcher)
        signal.raise_signal(number)
        return usage

    monkeypatch.setattr(Launcher, "go", interrupted_go)
    # Without a terminal of its own, wstrace passes Ctrl-C on to the command.
    monkeypatch.setattr("wstrace.cli.tracing._from_terminal", lambda: False)
    assert main(["run", "-q", "-o", str(path), "--", "sleep", "30"]) == 128 + number
    assert len(launched) == 1
    with open_trace(path) as trace:
        assert trace.info.exit_signal == signal.Signals(number).name


WATCHED = {inspect.unwrap(one).__code__ for one in vars(output_file).values() if inspect.isfunction(one)}


class Signals:
    """A profile function: raises a signal at the n-th call, or return from one, in wstrace.output_file.

    These are the instants at which CPython looks for signals; a line is none.
    """

    def __init__(self, number: int, at: int) -> None:
        self.number, self.left, self.where = number, at, ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code in WATCHED:
            self.left -= 1
            if self.left == 0:
                self.where = f"{event} {frame.f_code.co_name}:{frame.f_lineno}"
                signal.raise_signal(self.number)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    script = Script()
    for page in range(50):
        script.fault(10 + page, ANON + page * PAGE)
    path = tmp_path_factory.mktemp("trace") / "x.wst"
    saved(script.trace(), str(path))
    return path


@pytest.mark.parametrize(("number", "force"), [(signal.SIGTERM, False), (signal.SIGHUP, True)])
def test_convert_is_whole_or_leaves_nothing(number, force, trace, tmp_path):
    path, at, before = tmp_path / "x.csv", 0, "as it was"
    while True:
        at += 1
        path.unlink(missing_ok=True)
        if force:
            path.write_text(before)
        signals = Signals(number, at)
        sys.setprofile(signals)
        try:
            code = main(["convert", str(trace), "-o", str(path), *["-f"] * force])
        finally:
            sys.setprofile(None)
        left = [name for name in tmp_path.iterdir() if name != path]
        assert not left, signals.where
        if path.exists() and not (force and path.read_text() == before):
            with path.open(newline="") as file:
                assert len(list(csv.reader(file))) == 51, signals.where
        if signals.left > 0:
            break
        assert code == 128 + number, signals.where
    assert code == 0
    assert at > 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_only_the_first_signal_breaks_off(number, monkeypatch):
    """A second one would break off what undoes the command."""
    seen = []

    def command(*_, **__):
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)
            seen.append("undone")

    monkeypatch.setattr("wstrace.cli.wstrace.main", command)
    assert main(["plugins"]) == 128 + number
    assert seen == ["undone"]
    assert signal.getsignal(number) is signal.SIG_DFL
