"""The command line with an installed plugin that hangs, exits or runs out of memory."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from kit import evil_plugin
from kit.command_line import begun, until, wstrace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sends signals to a command line: on Linux")


@pytest.fixture(scope="module")
def plug(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plug")
    evil_plugin.install(folder)
    return folder


def evil(plug: Path, what: str) -> dict[str, str]:
    return {"EVIL": what, "PYTHONPATH": str(plug)}


def run(plug: Path, what: str, *words: object) -> tuple[int, str, str]:
    done = wstrace(*words, environment=evil(plug, what))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["exporter:start", "enricher:start", "source:start", "source:open"])
def test_a_start_that_hangs_can_be_interrupted(plug, where, number, tmp_path):
    role = {"exporter": ("-e", "bad"), "source": ("-s", "bad"), "enricher": ()}[where.partition(":")[0]]
    environment = {**os.environ, **evil(plug, f"{where}:hang")}
    process = begun("run", *role, "--", "touch", tmp_path / "ran", env=environment)
    # it waits in the plugin's sleep: nothing of it can be seen from outside but that
    until(lambda: "nanosleep" in Path(f"/proc/{process.pid}/wchan").read_text("ascii"))
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert f"{where.partition(':')[0]} bad" in err
    assert not (tmp_path / "ran").exists(), "it was never let run"


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("exporter:export:exit", "exporter bad: SystemExit: 3"),
        ("exporter:close:hang", "exporter bad: did not finish in 5 s"),
        ("exporter:flush:hang", "exporter bad: did not finish in 5 s"),
        ("exporter:export:hang", "exporter bad: did not finish in 5 s"),
    ],
)
def test_an_exporter_that_failed_is_seen_by_the_exit_code(plug, what, shown):
    code, _, err = run(plug, what, "run", "-q", "-e", "bad", "--fail-on-loss", "--", "true")
    assert code == 123
    assert shown in err


def test_a_plugin_of_which_a_hook_fails_is_named_once_by_each_trace(plug, tmp_path):
    code, _, err = run(plug, "hook:wstrace_enrichers:raise", "run", "-q", "-o", tmp_path / "x.wst", "--", "true")
    assert (code, err) == (0, "wstrace: plugin 'evil' failed: wstrace_enrichers: RuntimeError: boom\n")
    assert "plugin 'evil' failed: wstrace_enrichers: " in run(plug, "", "report", tmp_path / "x.wst")[1]


@pytest.mark.long
@pytest.mark.parametrize("method", ["drain", "stop"])
def test_a_source_that_hangs_is_left_behind_and_named(plug, method, tmp_path):
    code, _, err = run(plug, f"source:{method}:hang", "run", "-q", "-s", "bad", "-o", tmp_path / "x.wst", "--", "true")
    assert code in (0, 123), err
    assert "wstrace: source bad did not finish in 10 s\n" in err
    assert run(plug, "", "info", tmp_path / "x.wst")[1].splitlines()[0].endswith("frames")


@pytest.mark.parametrize("how", ["memory", "exit", "garbage"])
def test_a_source_that_dies_leaves_the_targets_exit_code(plug, how, tmp_path):
    path = tmp_path / "x.wst"
    command = (sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(7)")
    code, _, err = run(plug, f"source:drain:{how}", "run", "-s", "bad", "-o", path, "--", *command)
    assert code == 7
    assert "wstrace: source bad failed: " in err.splitlines()[-1]
    assert "source bad failed: " in err.splitlines()[1], "line 2 says what is missing"
    code, out, _ = run(plug, "", "report", path)
    assert code == 0
    assert "source bad failed: " in out.splitlines()[1], "and so does the file"


def test_a_source_that_dies_leaves_a_commands_exit_code_of_0_unless_loss_is_to_fail(plug):
    for extra, expected in (((), 0), (("--fail-on-loss",), 121)):
        code, _, err = run(plug, "source:drain:raise", "run", "-q", *extra, "-s", "bad", "--", "sleep", "0.5")
        assert code == expected
        assert "wstrace: source bad failed: RuntimeError: boom" in err


def test_a_command_that_outlives_its_trace_is_waited_for_and_named(tmp_path):
    words = ("run", "-q", "--duration", "0.3s", "--", "sh", "-c", "sleep 2; exit 5")
    code, _, err = run(tmp_path, "", *words)
    assert code == 5
    assert "wstrace: trace ended; sh (" in err
    assert "goes on, waiting for it; Ctrl-C stops it" in err


@pytest.mark.parametrize("words", [("plugins",), ("ps",), ("--help",)])
def test_a_full_standard_output_is_one_line(plug, words):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = begun(*words, stdout=full)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 123
    assert said == "wstrace: cannot write to stdout: No space left on device\n"
