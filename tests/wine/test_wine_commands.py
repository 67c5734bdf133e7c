"""The words of the command line on Windows: snapshot, empty, delta, report, replay, info ...; and their bad input."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.command_line import until, wstrace
from test_wine_events import whole

HERE = os.path.dirname(os.path.abspath(__file__))
KNOWN = os.path.join(HERE, "known_faults.py")

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def test_ps_runs(command):
    code, printed, said = command("ps")
    assert code == 0, said
    assert printed.split()[0] == "pid"
    assert re.search(rf"^ *{os.getpid()} .* MiB .*python\.exe$", printed, re.MULTILINE), printed


TOUCH = """
import ctypes, sys
k = ctypes.WinDLL("kernel32")
k.VirtualAlloc.restype = ctypes.c_void_p
k.VirtualAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32]
at = k.VirtualAlloc(None, 4096 * 4096, 0x3000, 4)
print(f"{at:x}", flush=True)
for line in sys.stdin:
    for page in map(int, line.split()):
        ctypes.c_char.from_address(at + page * 4096).value = b"x"
    print("done", flush=True)
"""


@pytest.fixture
def other(tmp_path):
    """Another process: its pid, the address of 4,096 pages, and what touches some of these."""
    script = tmp_path / "touch.py"
    script.write_text(TOUCH)
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    at = int(process.stdout.readline(), 16)

    def touch(*pages):
        print(*pages, file=process.stdin, flush=True)
        assert process.stdout.readline() == "done\n"

    yield process.pid, at, touch
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def test_a_snapshot_of_another_process_has_the_pages_that_it_touched(command, other, tmp_path):
    pid, at, touch = other
    touch(0, 1, 2, 10, 63)
    code, printed, said = command("snapshot", pid, "--json", "--shares", "--sections")
    assert code == 0, said
    runs = json.loads(printed)["runs"]
    ours = [((run["address"] - at) // 4096, run["pages"]) for run in runs if at <= run["address"] < at + 4096 * 4096]
    assert ours == [(0, 3), (10, 1), (63, 1)], "whatever the NUMA node of each page"
    of_ntdll = [run for run in runs if run["owner"].lower().startswith("ntdll.dll!")]
    assert {run["owner"].partition("!")[2] for run in of_ntdll} >= {".text(1)"}
    assert {run["shares"] for run in of_ntdll} == {2, 3, 4, 5, 6, 7}
    owners = json.loads(command("snapshot", pid, "--json", "--by", "module")[1])["owners"]
    assert "ntdll.dll" in {os.path.basename(owner["name"]).lower() for owner in owners}
    saved = tmp_path / "s.wst"
    assert [command(*words)[0] for words in (["snapshot", pid, "-o", saved], ["diff", saved, saved])] == [0, 0]
    lines = command("snapshot", pid, "--sections")[1].splitlines()
    assert any(line.split()[0] == f"{at:x}" and line.split()[1:4] == ["12", "P", "RW"] for line in lines)


def test_delta_of_another_process_has_what_it_touched_meanwhile(command, other):
    pid, _, touch = other
    done, touched = threading.Event(), []

    def go_on():
        while not done.wait(0.2):
            touched.append(touch(len(touched)))

    thread = threading.Thread(target=go_on)
    thread.start()
    code, printed, said = command("delta", pid, "--duration", "3s", "--json")
    done.set()
    thread.join()
    assert code == 0, said
    assert 4096 <= json.loads(printed)["new_bytes"] <= 4096 * (len(touched) + 64)  # and what its Python needs for it


def test_empty_and_wss_of_another_process(command, other):
    pid, _, touch = other
    touch(*range(64))
    code, printed, said = command("wss", pid, "--for", "100ms", "--by-emptying", "--yes", "--json")
    assert code == 0, said
    assert json.loads(printed)["method"] == "emptying"
    code, printed, said = command("empty", pid, "--yes", "--json")
    assert code == 0, said
    found = json.loads(printed)
    assert found["before"] - found["after"] >= 64 * 4096
    assert sum(found["stayed"].values()) == found["after"]
    code, _, said = command("wss", pid, "--for", "100ms")
    assert (code, "--by-emptying" in said) == (122, True)


def test_attach_by_name(command, target, tmp_path):
    name = shutil.copy(sys.executable, os.path.join(os.path.dirname(sys.executable), "by-name.exe"))
    process = subprocess.Popen([name, os.path.join(HERE, "fault_on_request.py")], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    print("wait 40", file=process.stdin, flush=True)
    code, _, said = command("attach", "--name", "BY-NAME*", "--duration", "4s", "-o", tmp_path / "x.wst")
    process.stdin.close()
    process.wait(10)
    process.stdout.close()
    Path(name).unlink()
    assert code == 0, said
    assert whole(tmp_path / "x.wst") == 40


def test_delta_of_the_calling_process():
    import wstrace

    with wstrace.delta() as changed:
        buffer = bytearray(8 << 20)
        buffer[::4096] = b"x" * 2048
    assert changed.new_bytes >= 8 << 20
    assert changed.written_bytes is None  # not watched: absent, not zero
    assert "MEM_WRITE_WATCH" in changed.not_written
    del buffer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace of 200 faults."""
    path = tmp_path_factory.mktemp("recorded") / "x.wst"
    assert wstrace("run", "-q", "-o", path, "--", sys.executable, KNOWN, 2, 100).returncode == 3
    return path


def test_files_recorded_here_are_reported_and_replayed_here(command, recorded, tmp_path):
    assert json.loads(command("report", recorded, "--json")[1])
    assert json.loads(command("info", recorded, "--json")[1])["rows"]["page_fault"] == 200
    code, _, said = command("convert", recorded, "-e", f"msgpack:path={tmp_path / 'y.wst'}")
    assert code == 0, said
    assert "200" in command("report", tmp_path / "y.wst")[1]
    assert "ntdll.dll" in command("report", recorded, "--format", "lines")[1]


def test_an_output_that_another_program_has_open_is_named_as_such(command, recorded, tmp_path):
    held = tmp_path / "held.csv"
    held.write_text("older")
    convert = "convert", recorded, "-o", held, "-f"
    with held.open():  # a spreadsheet: nobody else may replace it
        code, _, said = command(*convert)
    assert (code, "held.csv: another program has it open" in said) == (123, True), said
    assert held.read_text() == "older"
    assert not list(tmp_path.glob("*.part"))
    with ThreadPoolExecutor() as pool, held.open() as file:  # a scanner: it lets go
        done = pool.submit(command, *convert)
        until(lambda: list(tmp_path.glob("*.part")))
        time.sleep(0.2)
        file.close()
        assert done.result()[0] == 0, done.result()


@pytest.mark.parametrize(("words", "code", "cause"), [
    (["run", "--", r".\tool.cmd"], 126, "cmd /c"), (["run", "--", "no-such-command-anywhere"], 127, "no command"),
    (["run", "--", "tool.exe"], 127, "not started by its name in an elevated terminal; write .\\tool.exe"),
    (["run", "--", "tool.cmd"], 126, "cmd /c tool.cmd"), (["run", "--", "tool.py"], 126, "run -- python tool.py"),
    (["attach", "999999"], 122, "no process has the id 999999"), (["attach", "--name", "no-such*"], 122, "no-such"),
])  # fmt: skip
def test_bad_input_is_one_line_with_its_exit_code(command, tmp_path, monkeypatch, words, code, cause):
    """Wine is an elevated terminal: nothing is started, and no configuration read, that anyone may have put here."""
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("no TOML")
    for name in ("tool.cmd", "tool.exe", "tool.py"):
        Path(name).write_text("exit /b 3\n")
    found, printed, said = command(*words)
    assert (found, printed, said.count("\n")) == (code, "", 1), said
    assert cause in said
