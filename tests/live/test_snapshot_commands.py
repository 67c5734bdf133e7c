"""The commands snapshot, ps, empty and diff on real processes; the examples of working set and write watch."""

import contextlib
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.command_line import WSTRACE
from kit.held_memory import holding

import wstrace
from wstrace.cli import main
from wstrace.errors import Unavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")
PAGE = mmap.PAGESIZE


@pytest.fixture
def cli(capsys):
    """Runs a command line in this process: (standard output, standard error)."""

    def call(*words: object, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        got = main([str(word) for word in words])
        text, complaint = capsys.readouterr()
        assert got == code, complaint
        return text, complaint

    return call


def test_snapshot_command_prints_lines_and_totals(cli):
    with holding(2 << 20, 2 * PAGE) as target:
        os.kill(target.pid, signal.SIGSTOP)
        lines = cli("snapshot", target.pid)[0].splitlines()
        facts = json.loads(cli("snapshot", target.pid, "--json")[0])
        kernel = Path(f"/proc/{target.pid}/statm").read_text().split()
    body = [line.split() for line in lines[1 : lines.index("")]]
    assert lines[0].split() == ["address", "KiB", "S/P", "prot", "E", "owner"]
    assert [int(row[0], 16) for row in body] == sorted(int(row[0], 16) for row in body)
    assert {row[2] for row in body} == {"S", "P"}
    assert {row[3] for row in body} == {"RO", "RW", "CW"}
    resident = [row for row in body if "zero" not in row]
    assert sum(int(row[1].replace(",", "")) for row in resident) * 1024 == int(kernel[1]) * PAGE == facts["total"]
    assert facts["private"] + facts["shared"] == facts["total"]
    assert lines[-1].startswith(f"process {target.pid} ")
    for word in ("Total", "Private", "Shared", "Page tables"):
        assert word in lines[-1]
    assert sum(int(row[1].replace(",", "")) for row in body) * 1024 == sum(run["pages"] for run in facts["runs"]) * PAGE


@pytest.mark.parametrize("by", ["module", "mapping", "kind"])
def test_snapshot_by(by, cli):
    with holding(2 << 20) as target:
        os.kill(target.pid, signal.SIGSTOP)
        text = cli("snapshot", target.pid, "--by", by)[0]
        facts = json.loads(cli("snapshot", target.pid, "--by", by, "--json")[0])
    assert sum(owner["resident"] for owner in facts["owners"]) == facts["total"]
    assert "[anon]" in text or by == "kind"
    assert ("█" in text) or ("#" in text)


@pytest.mark.parametrize("words", [["--by", "kind"], ["--sections"], ["--top", 3], ["--json"]])
def test_a_snapshot_to_a_file_refuses_what_only_a_table_has(words, tmp_path, cli):
    assert "leave the other options out" in cli("snapshot", os.getpid(), "-o", tmp_path / "s.wst", *words, code=125)[1]
    assert not (tmp_path / "s.wst").exists()


@pytest.mark.parametrize("words", [["--all"], ["--top", 3], ["--json"], ["-v"]])
def test_a_page_of_a_diff_refuses_what_only_a_table_has(words, tmp_path, cli):
    words = ["diff", "a.wst", "b.wst", "--html", tmp_path / "d.html", *words]
    assert "leave the other options out" in cli(*words, code=125)[1]


def test_snapshot_to_a_file_and_diff(tmp_path, cli):
    pytest.importorskip("wstrace_exporters.msgpack.read.trace")
    first, second = tmp_path / "a.wst", tmp_path / "b.wst"
    code = ("import mmap, sys\nfor n in (1, 9):\n m = mmap.mmap(-1, n << 20, flags=34)\n"
            " for i in range(0, n << 20, 4096): m[i] = 1\n print(flush=True); sys.stdin.readline()")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        cli("snapshot", target.pid, "-o", first)
        cli("snapshot", target.pid, "-o", first, code=123)
        cli("snapshot", target.pid, "-o", first, "--force")
        target.stdin.write(b"\n")
        target.stdin.flush()
        target.stdout.readline()
        cli("snapshot", target.pid, "-o", second)
        target.kill()
    facts = json.loads(cli("diff", first, second, "--json")[0])
    anonymous = next(row for row in facts["rows"] if row["label"] == "[anon]")
    assert 7.5 * (1 << 20) <= anonymous["change"] <= 9.5 * (1 << 20)
    total = facts["total"]
    assert total["change"] == total["second"] - total["first"]
    lines = cli("diff", first, second, "--by", "kind")[0].splitlines()
    assert re.match(r"\+[789]\.\d MiB resident at the last snapshot \(.*: \+\d\.\d anon", lines[0])
    assert next(line for line in lines if line.endswith("  anon")).lstrip().startswith("+")
    assert lines[-1].endswith("Total")
    assert "no whole snapshot" in cli("diff", first, _empty_trace(tmp_path), code=125)[1]


def _empty_trace(folder):
    path = folder / "none.wst"
    with wstrace.Session(sources=[], exporters=[f"msgpack:path={path}"], record=False):
        pass
    return path


def test_snapshot_of_nobody(cli):
    assert "no process" in cli("snapshot", 4_000_000, code=122)[1]


def test_empty_takes_out_a_file_and_no_data_is_lost(tmp_path, cli):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 << 20))
    os.sync()
    code = (f"import mmap, sys, hashlib\nf = open({str(path)!r}, 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=1)\n"
            "a = mmap.mmap(-1, 1 << 20, flags=34); a[:] = b'x' * len(a)\n"
            "print(hashlib.sha256(m).hexdigest(), flush=True); sys.stdin.readline()\n"
            "print(hashlib.sha256(m).hexdigest(), a[:] == b'x' * len(a), flush=True)")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as target:  # fmt: skip
        before = target.stdout.readline().strip()
        assert "add --yes" in cli("empty", target.pid, code=125)[1]
        if os.geteuid() != 0:
            pytest.skip("needs CAP_SYS_NICE: process_madvise on another process")
        done = json.loads(cli("empty", target.pid, "--yes", "--json")[0])
        assert done["before"] - done["after"] >= 7 << 20
        assert sum(done["stayed"].values()) == done["after"]
        assert any("anonymous" in why for why in done["stayed"])
        answer, _ = target.communicate("\n")
    assert answer.split() == [before, "True"]


def test_empty_refuses_another_users_process_unless_reported():
    if os.geteuid() != 0:
        pytest.skip("needs root, to start a process of someone else")
    with subprocess.Popen(["sleep", "60"], user=65534, group=65534) as target:
        try:
            time.sleep(0.1)
            with pytest.raises(Unavailable, match="another user"):
                wstrace.empty_working_set(target.pid)
            assert wstrace.empty_working_set(target.pid, others=True).before > 0
        finally:
            target.kill()


def on_a_terminal(*words: str, answer: bytes = b"", columns: int = 80) -> tuple[int, str]:
    """(exit code, what it showed) of a command that stands on a terminal of its own."""
    import fcntl
    import pty
    import struct
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns))
        os.execv(sys.executable, [*WSTRACE, *words])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    shown = b""
    with contextlib.suppress(OSError):  # EIO: it has ended
        while chunk := os.read(terminal, 65_536):
            shown += chunk
            if answer and b"?" in shown:
                os.write(terminal, answer)
                answer = b""
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_empty_asks_and_a_no_leaves_the_process_alone():
    with holding(1 << 20) as target:
        code, shown = on_a_terminal("empty", str(target.pid), answer=b"n\n")
        assert f"process {target.pid} (" in shown
        assert "left memory" not in shown
        assert code == 130


def test_tables_on_a_terminal_keep_their_numbers_and_its_width():
    with holding(1 << 20) as target:
        _, shown = on_a_terminal("snapshot", str(target.pid), "--by", "mapping", columns=80)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain != shown, "it has colours"
    lines = [line for line in plain.splitlines() if "[" in line]
    assert max(map(len, plain.splitlines()[:-1])) <= 80
    assert all(re.match(r" *[\d.]+ (B|[KMG]iB) +[\d.]+ (B|[KMG]iB) ", line) for line in lines)


EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_checkpoint_saves_what_changed_and_restores_it():
    text = run("checkpoint.py")
    sizes = [float(n) for n in re.findall(r"save \d: +([\d.]+) MiB", text)]
    assert sizes[0] >= 64
    # 10 rows of one page each; 50 rows, every eighth
    assert (sizes[1], sizes[2]) == (pytest.approx(10 / 256, abs=0.01), pytest.approx(50 / 256, abs=0.02))
    assert text.endswith("restored: the same\n")


def test_what_an_import_brings_in():
    text = run("import_numpy.py", "sqlite3")
    assert "libsqlite3" in text
    assert re.search(r"import sqlite3: [\d.]+ MiB in memory, [\d.]+ MiB more", text)


def test_what_a_forked_worker_un_shares():
    alone = [float(n) for n in re.findall(r"([\d.]+) MiB un-shared", run("fork_unshare.py"))]
    idle, strings, array, written = alone
    assert idle < 2
    assert strings > 20, "each look at an object writes its count"
    assert array < 3
    assert 3 <= written < 7
