"""The command line: words, exit codes, one clear line for whatever goes wrong."""

import ctypes
import errno
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from kit.command_line import WSTRACE, begun, wstrace

from wstrace.cli import main
from wstrace.cli.run import command_of
from wstrace.errors import Unavailable
from wstrace.plugins import default_plugins


def test_help_needs_neither_numpy_nor_an_exporter_nor_opentelemetry():
    code = (
        "import sys; sys.argv = ['wstrace', '--help']\n"
        "from wstrace.cli import main\nassert main(['--help']) == 0\n"
        "heavy = {'numpy', 'opentelemetry', 'rich', 'msgpack', 'logging', 'wstrace.interfaces'}\n"
        "if sys.platform != 'win32':\n"  # there Python's own start imports them
        "    heavy |= {'importlib.metadata', 'email', 'zipfile', 'pathlib'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("run", "attach", "report", "convert", "info", "plugins", "doctor", "snapshot"):
        assert f"\n  {word} " in done.stdout


@pytest.mark.parametrize("before", [True, False], ids=("before ours", "after ours"))
def test_what_others_registered_for_the_exit_is_called_and_output_is_flushed(before):
    """We end the process before the interpreter takes itself apart, but not before it has called and written all."""
    code = (
        "import atexit, sys, wstrace.cli\nfrom wstrace.__main__ import main\n"
        "def run(words):\n    atexit.register(print, 'at exit')\n    print('said')\n    return 7\n"
        f"wstrace.cli.main = run\n{'atexit.register(print, 1)' if before else ''}\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")) == (7, ["said", "at exit", *["1"] * before, ""]), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_an_error_of_the_exit_is_still_the_interpreters():
    """Output that cannot be written at exit: the interpreter's exit code 120, not the command's."""
    code = (
        "import os, sys, wstrace.cli\nfrom wstrace.__main__ import main\n"
        "def run(words):\n    os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n    print('said')\n    return 7\n"
        "wstrace.cli.main = run\nmain()"
    )
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=buffered)
    assert (done.returncode, "No space left" in done.stderr) == (120, True)


@pytest.mark.skipif(sys.platform != "linux", reason="the faults of this process are counted by resource")
def test_at_no_depth_does_every_call_map_memory():
    """CPython unmaps the chunk of a frame that just did not fit into the one before it; the next call maps another."""
    code = (
        "import resource\nfrom wstrace.__main__ import _roomy\ntaken = []\n"
        f"def large({', '.join(f'a{n}=0' for n in range(100))}):\n    pass\n"
        "def fault_count():\n    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def at(depth):\n    before = fault_count()\n    for _ in range(500):\n        large()\n"
        "    taken.append(fault_count() - before)\n    return at(depth - 1) if depth else 0\n"
        "_roomy(lambda words: at(300), [])\nassert max(taken) < 500, taken"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("wstrace ")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["rnu"], 125, "did you mean 'run'"),
        (["run", "--"], 125, "no command to trace"),
        (["run"], 125, "no command to trace"),
        (["run", "-m"], 125, "-m needs a value"),
        (["run", "--durration", "3s", "true"], 125, "--duration"),
        (["run", "--duration", "soon", "true"], 125, "not a duration"),
        (["run", "-s", "page_fault", sys.executable], 125, "did you mean 'page_faults'"),
        (["run", "-s", "page_faults:poll_m=3", sys.executable], 125, "did you mean 'poll_ms'"),
        (["run", "-e", "consol", sys.executable], 125, "did you mean 'console'"),
        (["run", "-P", "no:nothing", sys.executable], 125, "no such plugin"),
        (["run", "-P", "console", "true"], 125, "write -P no:NAME"),
        (["run", "--config", "/nowhere.toml", "true"], 125, "No such file"),
        (["run", "/nowhere/at/all"], 127, "/nowhere/at/all"),
        (["run", "--", __file__], 126, "test_cli.py"),
        (["attach"], 125, "no process given"),
        (["attach", "999999999"], 122, "999999999"),
        (["attach", "one"], 125, "not a valid integer"),
        (["attach", "--name", "no such name*"], 122, "no process is named"),
        (["run", "nosuch.py"], 127, "there is no file nosuch.py"),
        (["report", "/nowhere.wst"], 125, "/nowhere.wst"),
    ],
)
def test_one_clear_line_and_the_exit_code(words, code, text, tmp_path):
    done = wstrace(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert done.stderr.startswith("wstrace: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words", [["run"], ["attach"], ["snapshot"], ["empty", "--yes"], ["delta", "--duration", "1s"]]
)
def test_the_debug_privilege_is_requested_before_a_process_is_opened(words, monkeypatch, capsys):
    def refuse(self):
        raise Unavailable("no such right", "ask for it")

    monkeypatch.setattr(type(default_plugins().platform), "debug_privilege", refuse)
    assert main([*words, "--debug-privilege", "999999999"]) == 122
    assert capsys.readouterr().err == "wstrace: no such right; ask for it\n"


def test_a_traceback_is_shown_only_for_debugging(tmp_path):
    assert "Traceback" in wstrace("attach", cwd=tmp_path, environment={"WSTRACE_DEBUG": "1"}).stderr


@pytest.mark.parametrize(
    ("words", "literal", "command"),
    [
        (("x", "-m", "y"), False, ["x", "-m", "y"]),
        (("app.py", "--flag"), False, [sys.executable, "app.py", "--flag"]),
        (("app.py",), True, ["app.py"]),
        (("-m", "mod", "-o", "its"), False, [sys.executable, "-m", "mod", "-o", "its"]),
        (("-c", "pass"), False, [sys.executable, "-c", "pass"]),
    ],
)
def test_what_is_run(words, literal, command):
    assert list(command_of(words, literal=literal)) == command


def test_help_shows_sentences_by_section_and_what_most_people_want_first():
    lines = wstrace("--help").stdout.splitlines()
    assert [line for line in lines if line in ("Record:", "Inspect:", "Files:", "Set-up:")] == [
        "Record:", "Inspect:", "Files:", "Set-up:"]  # fmt: skip
    helps = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[lines.index("Record:") :] if "  " in line}
    assert list(helps)[:5] == ["run", "attach", "daemon", "report", "snapshot"]
    assert all(about[0].isupper() and about.endswith(".") for about in helps.values())


def test_all_after_the_target_belongs_to_it(tmp_path):
    show = "import sys; print(sys.argv[1:])"
    for words in (
        ["-q", "-c", show, "-o", "its", "--", "-q"],
        ["-q", "--duration", "60s", "--", sys.executable, "-c", show, "-o", "its", "--", "-q"],
    ):
        done = wstrace("run", *words, cwd=tmp_path)
        assert done.stdout == "['-o', 'its', '--', '-q']\n", done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes a descriptor")
@pytest.mark.parametrize(("stderr", "printed"), [("", 9999), (" 2>&-", 0)], ids=["open", "closed"])
def test_what_the_target_prints_does_not_damage_a_trace_on_stdout(tmp_path, stderr, printed):
    words = [*WSTRACE, "run", "-q", "-o", "-", "-c", "print('printed\\n' * 9999)"]
    ran = subprocess.run(["sh", "-c", f'exec "$@"{stderr}', "sh", *words], capture_output=True)
    assert (ran.stderr.count(b"printed"), ran.stdout.count(b"printed\n")) == (printed, 0)
    (tmp_path / "x.wst").write_bytes(ran.stdout)
    reported = wstrace("info", "--json", "x.wst", cwd=tmp_path)
    reported_of = json.loads(reported.stdout)
    assert (reported_of["state"], reported_of["damage"]["lost_bytes"]) == ("clean", 0)


def test_plugins_and_doctor_as_json():
    plugins = json.loads(wstrace("plugins", "--json").stdout)
    assert {"name", "distribution", "version", "state", "hooks", "error"} == set(plugins[0])
    assert re.match("Every source is at its full level here|Not in full: ", wstrace("doctor").stdout)
    findings = json.loads(wstrace("doctor", "--json", environment={"WSTRACE_PAGE_FAULTS__POLL_MS": "7"}).stdout)
    assert findings["sources"]["page_faults"]["level"] in ("full", "user", "counters", "none")
    assert findings["options"]["page_faults.poll_ms"] == {"value": "7", "origin": "environment"}


def test_the_working_directory_is_not_imported_from(tmp_path):
    for name in ("typing", "click", "numpy", "pluggy", "wstrace_evil", "__future__"):
        (tmp_path / f"{name}.py").write_text("print('hijacked')\n")
    done = wstrace("plugins", cwd=tmp_path)
    assert "hijacked" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", ["plugins", "--version", "query --schema --format csv", "query --schema --format json"]
)
def test_head_ends_quietly(words):
    """A reader that has what it wanted: `wstrace plugins | head`; click ends with 1 of its own for what it writes."""
    shown = begun(*words.split(), stdout=subprocess.PIPE)
    shown.stdout.close()
    said = shown.stderr.read()
    shown.stderr.close()
    assert (shown.wait(60), said) == (0, "")


@pytest.mark.parametrize("words", [["-fo", "x.wst"], ["-qfo", "x.wst"], ["-qfox.wst"], ["-f", "-q", "--output=x.wst"]])
def test_short_options_may_stand_together(tmp_path, words):
    done = wstrace("run", *words, "-c", "import sys; print(sys.argv[1:])", "-o", "its", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['-o', 'its']\n"), done.stderr
    assert (tmp_path / "x.wst").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives up a right of root's")
def test_another_user_is_refused_in_one_line_to_who_has_not_the_right(tmp_path):
    libc = ctypes.CDLL(None)

    def no_setuid():
        for capability in (6, 7):  # CAP_SETGID, CAP_SETUID
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: gone after execve()

    done = wstrace("run", "--user", "nobody", "--", "true", cwd=tmp_path, preexec_fn=no_setuid)
    assert done.returncode == 122
    assert done.stderr == (
        "wstrace: cannot become the user nobody to run true: Operation not permitted;"
        " run wstrace as root, or leave --user out\n"
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no process ends by a signal on this system")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
def test_the_signal_that_ended_the_target_is_in_the_report_and_in_the_file(tmp_path, name):
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    ran = wstrace("run", "-o", "x.wst", "-c", code, cwd=tmp_path)
    assert ran.returncode == 128 + getattr(signal, name)
    assert ran.stderr.splitlines()[0].endswith(f"; killed by {name}")
    assert wstrace("report", "x.wst", cwd=tmp_path).stdout.splitlines()[0] == ran.stderr.splitlines()[0]
    report = json.loads(wstrace("report", "x.wst", "--json", cwd=tmp_path).stdout)
    assert report["facts"]["exit_signal"] == name
    same = wstrace("run", "-c", f"raise SystemExit({ran.returncode})", cwd=tmp_path)
    assert same.returncode == ran.returncode
    assert "killed" not in same.stderr, "a program may end with this code by itself"


def test_a_plugin_s_classes_are_shown_with_their_options():
    shown = wstrace("plugins", "working_set")
    assert shown.returncode == 0, shown.stderr
    assert "source working_set: " in shown.stdout
    assert re.search(r"^  interval +\S+ +\S.*$", shown.stdout, re.MULTILINE)
    refused = wstrace("plugins", "working_sat")
    assert refused.returncode == 125
    assert "did you mean 'working_set'?" in refused.stderr


@pytest.mark.parametrize(("number", "limit"), [(errno.EMFILE, "ulimit -n"), (errno.ENOMEM, "ulimit -v")])
def test_a_limit_that_is_met_before_anything_begins_is_no_internal_error(number, limit, monkeypatch, capsys):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("wstrace.cli.entry_points", refused)
    assert main(["report", "x.wst"]) == Unavailable.exit_code == 122
    said = capsys.readouterr().err
    assert os.strerror(number) in said
    assert limit in said
    assert "internal" not in said
    assert said.count("\n") == 1
