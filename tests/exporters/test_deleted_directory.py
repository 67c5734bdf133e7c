"""Commands on files in a working directory that was deleted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from blame_scripted import ANON, APP, Script, saved

from wstrace.schema import PAGE_EXCLUSIVE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not delete a directory that is in use")


def said(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    """What `wstrace` does with these words: exit code, stdout, stderr."""
    (gone := tmp_path / "gone").mkdir()
    script = 'cd "$1"; rmdir "$1"; shift; exec "$@"'
    command = ["sh", "-c", script, "sh", str(gone), sys.executable, "-P", "-m", "wstrace", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def trace(tmp_path: Path) -> str:
    script = Script()
    script.fault(10, ANON, APP)
    script.snapshot(40, (ANON, 1, PAGE_EXCLUSIVE))
    saved(script.trace(), path := str(tmp_path / "x.wst"))
    return path


@pytest.mark.parametrize("words", [["query", "?", "select count(*) as n from page_fault", "--format", "csv"],
                                   ["report", "?"]])  # fmt: skip
def test_a_file_with_an_absolute_name_is_read(tmp_path, trace, words):
    code, out, err = said(tmp_path, *(trace if word == "?" else word for word in words))
    assert (code, err) == (0, "")
    assert out.split() == ["n", "1"] or "load_frame" in out


@pytest.mark.parametrize("words", [["query", "x.wst", "select 1"], ["report", "x.wst"]])
def test_a_name_that_leads_nowhere_is_one_line(tmp_path, trace, words):
    code, out, err = said(tmp_path, *words)
    assert (code, out, len(err.splitlines())) == (125, "", 1)
    assert err.startswith("wstrace: cannot read x.wst: ")
