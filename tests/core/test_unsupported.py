"""On a system that wstrace does not capture on (macOS), the rest works and capture says what would."""

import subprocess
import sys

import pytest
from kit.command_line import answer

AS_DARWIN = "import sys; sys.platform = 'darwin'\nimport wstrace\n"


def python(code, *words):
    return subprocess.run(
        [sys.executable, "-c", AS_DARWIN + code, *map(str, words)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "x.wst"
    answer("run", "-q", "-o", path, "-c", "pass", cwd=tmp_path)
    return path


def test_capture_says_what_would_work():
    done = python(
        "try:\n    wstrace.Session().start()\n"
        "except wstrace.Unavailable as why:\n    print(why); raise SystemExit(why.exit_code)"
    )
    assert done.returncode == 122, done.stderr
    assert "not on darwin" in done.stdout
    assert "report, info, replay" in done.stdout


@pytest.mark.parametrize("words", [["run", "--", "true"], ["attach", "1"], ["run", "-s", "page_faults", "--", "true"]])
def test_the_command_line_too(words):
    done = python("from wstrace.cli import main; raise SystemExit(main(sys.argv[1:]))", *words)
    assert done.returncode == 122, done.stderr
    assert "not on darwin" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("word", ["info", "report"])
def test_files_are_read(word, trace):
    done = python("from wstrace.cli import main; raise SystemExit(main(sys.argv[1:]))", word, trace)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_doctor_and_plugins_tell_it():
    for word in ("doctor", "plugins"):
        done = python("from wstrace.cli import main; raise SystemExit(main(sys.argv[1:]))", word)
        assert done.returncode == 0, done.stderr
        assert "not on darwin" in done.stdout


def test_a_python_of_32_bits_is_refused():
    code = "sys.platform, sys.maxsize = 'linux', 2**31 - 1\nfrom wstrace_plugins.os import system\nsystem()"
    assert "wstrace captures with a 64-bit Python" in python(code).stderr.splitlines()[-1]
