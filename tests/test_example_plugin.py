"""The documents' example plugin, installed as an outsider does, found and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import wstrace

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            folder,
            ROOT / "examples" / "wstrace_example_source",
            ROOT / "examples" / "wstrace_example_format",
        ],
        check=True,
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_it_is_listed(environment, tmp_path):
    found = {
        p["name"]: p for p in json.loads(wstrace("plugins", "--json", environment=environment, cwd=tmp_path).stdout)
    }
    assert found["example"] == {
        "name": "example",
        "distribution": "wstrace-example-source",
        "version": "1.0.0",
        "state": "loaded",
        "hooks": ["wstrace_sources"],
        "error": "",
    }


def test_its_entry_point_imports_nothing_heavy(environment, tmp_path):
    code = "import sys, wstrace_example_source; print({'numpy', 'psutil', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_its_rows_are_in_the_file(environment, tmp_path):
    code = "import time\nx = []\nfor i in range(20):\n    x.append(bytearray(1 << 20)); time.sleep(0.01)"
    done = wstrace(
        "run",
        "-q",
        "-s",
        "resident_size:interval_ms=5",
        "-o",
        "x.wst",
        "-c",
        code,
        environment=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    info = json.loads(wstrace("info", "x.wst", "--json", environment=environment, cwd=tmp_path).stdout)
    assert "resident_size" in json.dumps(info["rows"])
    # and without the plugin installed the file is read all the same: its schema stands in it
    import wstrace as api

    with api.open_trace(tmp_path / "x.wst") as trace:
        sizes = [int(n) for batch in trace.batches("resident_size") for n in batch["bytes"]]
    assert len(sizes) >= 5
    assert max(sizes) - min(sizes) > 10 << 20, "it saw the target grow by 20 MiB"


def test_it_can_be_left_out(environment, tmp_path):
    for switch, state in ((["-P", "no:example"], "disabled"), (["--no-plugins"], "disabled")):
        found = json.loads(wstrace("plugins", "--json", *switch, environment=environment, cwd=tmp_path).stdout)
        assert {p["name"]: p["state"] for p in found}["example"] == state


def test_its_options_are_checked(environment, tmp_path):
    done = wstrace("run", "-s", "resident_size:interval=5", "true", environment=environment, cwd=tmp_path)
    assert done.returncode == 125
    assert "did you mean 'interval_ms'" in done.stderr


def test_an_outsiders_format_is_written(environment, tmp_path):
    assert wstrace("run", "-q", "-o", "x.wst", "true", environment=environment, cwd=tmp_path).returncode == 0
    done = wstrace("convert", "x.wst", "-o", "x.md", environment=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    table = (tmp_path / "x.md").read_text().splitlines()
    assert table[0] == "| faults | from disk | file |"
    assert len(table) > 3
    assert done.stderr == f"x.md: {len(table) - 2} rows\n"
    done = wstrace("convert", "-f", "x.wst", "-o", "x.md", "--option", "top=1", environment=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "x.md: 1 rows\n")
