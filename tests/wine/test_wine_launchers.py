"""A python.exe that starts another one, as the Python Install Manager's."""

import os
import shutil
import sys

import pytest
from test_wine_children import KNOWN, PY

import wstrace

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


@pytest.fixture
def chooser(tmp_path, monkeypatch):
    """A python.exe like the Python Install Manager's, which starts this interpreter."""
    monkeypatch.setenv("LAUNCHED", sys.executable)
    (tmp_path / "manager").mkdir()
    return shutil.copy(PY, tmp_path / "manager" / "python.exe")


def test_a_python_that_starts_another_one_gives_way_to_it(command, chooser, tmp_path):
    path = tmp_path / "x.wst"
    # Wine forgets the peak of a process that has ended, so it stays long enough to be read
    lasting = f"import runpy, time\ntry: runpy.run_path({KNOWN!r})\nfinally: time.sleep(1)"
    code, _, err = command("run", "-o", path, "--", chooser, "-c", lasting, "2", "50")
    assert code == 3, err
    with wstrace.open_trace(str(path)) as trace:
        info, first = trace.info, next(iter(trace.batches("process")))
        assert info.targets == (int(first["pid"][0]),)
        assert trace.ledger.get("before_watch") == 0
        assert info.usage.peak_pid == info.targets[0]
        assert info.usage.peak_resident_bytes > 1 << 20
        assert sum(len(batch) for batch in trace.batches("page_fault")) == 100


def test_a_launcher_that_starts_nothing_is_traced_itself_and_says_why(command, chooser, monkeypatch):
    monkeypatch.delenv("LAUNCHED")
    code, _, err = command("run", "-q", "--", chooser, "-c", "pass")
    assert (code, err) == (3, "no Python is installed\n")
