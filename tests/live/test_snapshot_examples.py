"""The examples of working set and write watch, the README's too, run as they stand and say what is so."""

import mmap
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux here: the Windows suite runs it in Wine")
def test_a_checkpoint_saves_what_changed_and_restores_it():
    text = run("checkpoint.py")
    sizes = [float(n) for n in re.findall(r"save \d: +([\d.]+) MiB", text)]
    assert sizes[0] >= 64
    # 10 rows of one page each; 50 rows, every eighth
    assert (sizes[1], sizes[2]) == (pytest.approx(10 / 256, abs=0.01), pytest.approx(50 / 256, abs=0.02))
    assert text.endswith("restored: the same\n")


@pytest.mark.skipif(sys.platform != "linux" or mmap.PAGESIZE != 4096, reason="only on Linux with pages of 4 KiB")
def test_the_readme_s_write_watch_prints_what_stands_beside_it():
    readme = (EXAMPLES.parent / "README.md").read_text("utf-8")
    code = re.search(r"    import numpy, wstrace\n(.*?)\n\n## ", readme, re.DOTALL)[0].removesuffix("## ")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert re.search(r"# (\[\[.*\]\]): ", code)[1] == done.stdout.strip(), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: pagemap")
def test_what_an_import_brings_in():
    text = run("import_numpy.py", "sqlite3")
    assert "libsqlite3" in text
    assert re.search(r"import sqlite3: [\d.]+ MiB in memory, [\d.]+ MiB more", text)


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: fork")
def test_what_a_forked_worker_un_shares():
    alone = [float(n) for n in re.findall(r"([\d.]+) MiB un-shared", run("fork_unshare.py"))]
    idle, strings, array, written = alone
    assert idle < 2
    assert strings > 20, "each look at an object writes its count"
    assert array < 3
    assert 3 <= written < 7
