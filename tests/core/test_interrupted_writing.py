"""A signal at any instant of a command that writes a file: it is whole or not there, and nothing is beside it."""

import csv
import inspect
import signal
import sys
from types import FrameType

import pytest
from kit.blame_scripted import ANON, PAGE, Script, saved

from wstrace import output_file
from wstrace.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
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
