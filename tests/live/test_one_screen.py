"""What each command shows at first fits a terminal of 80 columns and 24 lines: the answer, one table, one next step."""

import os
import re
import subprocess
import sys
import time

import pytest
from kit.command_line import WSTRACE, wstrace

if sys.platform != "linux":
    pytest.skip("terminals are those of Linux", allow_module_level=True)

import fcntl
import pty
import struct
import termios

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="lines need root")

#: Parts of the standard library of which each line keeps something; with an argument it forks as well.
PROGRAM = """
import asyncio, decimal, email.message, sys, unittest.mock
kept = []
def first(): kept.append(bytearray(b"x") * (8 << 20))
def second(): kept.append([str(n) for n in range(60_000)])
def third(): kept.append({n: [n] for n in range(60_000)})
first(), second(), third()
if len(sys.argv) > 1:
    import os
    for _ in range(2):
        if not os.fork():
            for at in range(0, 4 << 20, 4096): kept[0][at] = 1
            os._exit(0)
    for _ in range(2): os.wait()
"""
GROWS = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(b'x') * (1 << 19))\n    time.sleep(0.05)\n"
#: A heading has its columns two blanks apart.
_APART = re.compile(" {2,}")


def screen(*words: object, columns: int = 80, rows: int = 24) -> list[str]:
    """The lines of a terminal of 80x24 (or wider) after `wstrace WORDS`, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    seen = b""
    with subprocess.Popen([*WSTRACE, *map(str, words)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                          env={**environment, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}) as done:  # fmt: skip
        os.close(theirs)
        try:
            while chunk := os.read(ours, 1 << 16):
                seen += chunk
        except OSError:  # EIO: nobody has the other end any more
            pass
    os.close(ours)
    assert done.returncode == 0, seen.decode()
    lines = re.sub(r"\x1b\[\d+m", "", seen.decode()).replace("\r", "").removesuffix("\n").split("\n")
    return [line[at : at + columns] for line in lines for at in range(0, max(len(line), 1), columns)]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The paths of the program, of a trace of it, and of one of it with children."""
    folder = tmp_path_factory.mktemp("traces")
    (program := folder / "program.py").write_text(PROGRAM)
    for name, more in (("alone.wst", ()), ("forks.wst", ("forks",))):
        done = wstrace("run", "-o", folder / name, "--", sys.executable, program, *more)
        assert done.returncode == 0, done.stderr
    return program, folder / "alone.wst", folder / "forks.wst"


@pytest.fixture
def grows():
    with subprocess.Popen([sys.executable, "-c", GROWS]) as target:
        time.sleep(0.3)
        yield target.pid
        target.kill()


def assert_one_screen(lines: list[str], *, heads: int = 3) -> None:
    """line 1, line 2, a table of so many columns and at most ten rows and the sum, a next step; none scrolls away."""
    assert len(lines) <= 23, "\n".join(lines)  # the shell's prompt takes one
    empty = [at for at, line in enumerate(lines) if not line]
    table = lines[empty[0] + 1 : empty[1]]
    assert len(_APART.split(table[0].strip())) == heads, table[0]
    assert 2 <= len(table) <= 12
    assert len(empty) == 2
    step = "".join(lines[empty[1] + 1 :])  # a long name goes over the end of the line
    assert "next:" in step or "add -o" in step
    for word in ("rss_sum", "distinct", "level", "own line", "stack cut"):
        assert word not in " ".join(lines[: empty[0]])


@pytest.mark.parametrize("words", [(), ("-o",)])
def test_run(traces, tmp_path, words):
    saved = [*words, *[tmp_path / "x.wst"] * len(words)]
    lines = screen("run", *saved, "--", sys.executable, traces[0])
    assert_one_screen(lines)
    assert "MiB at the peak: " in lines[0]


@pytest.mark.parametrize(("words", "forks"), [
    (("report",), False), (("report",), True), (("report", "--kind", "heap"), False),
    (("report", "--sort", "faults"), False), (("imports",), False), (("unshared",), True),
])  # fmt: skip
def test_of_a_trace_file(traces, words, forks):
    assert_one_screen(screen(*words, traces[1 + bool(forks)]))


@pytest.mark.parametrize("command", ["report", "imports"])
def test_on_a_smaller_terminal_the_table_has_fewer_rows(traces, command):
    lines = screen(command, traces[1], rows=16)
    assert len(lines) <= 15
    assert "Total (of" in " ".join(lines)


def test_diff(traces):
    lines = screen("diff", traces[1], traces[2])
    assert_one_screen(lines)
    assert re.search(r"[+-]\d+\.\d \w+ resident at", lines[0])


@pytest.mark.parametrize("words", [("attach",), ("report",), ("attach", "--over-time", "0.2s"),
                                   ("report", "--over-time", "0.2s")])  # fmt: skip
def test_of_a_process(grows, words):
    lines = screen(words[0], grows, "--duration", "2s", *words[1:])
    assert_one_screen(lines)
    assert re.match(r"\+\d+\.\d MiB in \d+\.\d s", lines[0])
    assert "<module> <string>:4" in " ".join(lines[:2])


def test_all_else_is_there_on_request(traces):
    for words in (("report", "-v"), ("report", "--by", "line"), ("imports", "-v"), ("diff", traces[2], "-v")):
        heads = next(line for line in screen(*words, traces[1], columns=160) if "private" in line)
        assert len(_APART.split(heads.strip())) > 3
