"""`wstrace diff` of real runs: lines whose sizes are known, totals as the kernel's, releases of a package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.recorded_run import record

from wstrace.cli import main

MIB = 1 << 20
#: prints the resident size by the kernel's own account, and stays so until the peak has been read
REST = """
import sys, time
held = load(int(sys.argv[1])), keep(int(sys.argv[2]))
with open("/proc/self/smaps_rollup") as file:
    rss = next(line for line in file if line.startswith("Rss"))
with open(sys.argv[3], "w") as file:
    file.write(rss.split()[1])
time.sleep(1.5)
"""
BEFORE = (
    "def load(n):\n    return bytearray(b'x') * (n << 20)\n\ndef keep(n):\n    return bytearray(b'y') * (n << 20)\n"
)
AFTER = f"# a comment that was not there\nimport csv\n\n{BEFORE}"

#: so often that the rest is seen on a busy machine too
LOOKS = ("-s", "peak_snapshot", "-s", "working_set:interval=0.1,max_cpu=1")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="lines of another process's faults need root on Linux"
)


def recorded(folder: Path, code: str, *sizes: int) -> tuple[Path, int]:
    """The trace of a program in a folder of its own, and the resident size by the kernel's account in bytes."""
    folder.mkdir()
    (folder / "app.py").write_text(code + REST)
    with record(folder, [sys.executable, "app.py", *map(str, sizes), "rss"], *LOOKS):
        return folder / "trace.wst", int((folder / "rss").read_text()) * 1024


def compared(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main(["diff", *map(str, words)]) == 0
    return capsys.readouterr()[0]


def test_lines_of_known_sizes_that_have_moved_to_another_folder_and_line(tmp_path, capsys):
    # On a busy machine Python's stacks may be read late, and more be evicted than is shown; the trace says so.
    doubts = re.compile("without their Python line")
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (first, rss), (second, more) = recorded(folder / "a", BEFORE, 20, 8), recorded(folder / "b", AFTER, 29, 5)
        report = json.loads(compared(capsys, first, second, "--by", "line", "--all", "--json"))
        if not doubts.search(report["completeness"]):
            break
    assert report["completeness"] == "complete"
    assert report["at"] == "at the peak"
    assert abs(report["total"]["change"] - (more - rss)) <= 0.02 * rss, "the kernel's own account of both"
    assert sum(row["change"] for row in report["rows"]) == report["total"]["change"]
    functions = {row["function"]: row for row in report["rows"] if row["function"] in ("load", "keep")}
    for function, line, change in (("load", 5, 9), ("keep", 8, -3)):
        row = functions[function]
        assert (row["line"], Path(row["was"]).parent.name) == (line, "a"), row
        assert abs(row["change"] - change * MIB) <= 0.1 * MIB
    lines = compared(capsys, first, second).splitlines()
    assert "+9.0 load app.py:5" in lines[0]
    assert "-3.0 keep app.py:8" in lines[0]


@pytest.mark.long
def test_two_releases_of_a_package_in_two_environments(tmp_path, capsys):
    """The package's release is the only difference; what it brought is as much as the whole difference."""
    paths, sizes = [], []
    code = "import yaml\nimport jinja2\n\ndef load(n):\n    return bytearray(b'x') * (n << 20)\n\nkeep = load\n"
    for name, packages in (("a", ["jinja2==2.11.3", "markupsafe==2.0.1", "pyyaml==6.0.1"]),
                           ("b", ["jinja2==3.1.4", "markupsafe==2.1.5", "pyyaml==6.0.1", "babel==2.14.0"]),
    ):  # fmt: skip
        subprocess.run([sys.executable, "-m", "venv", tmp_path / f"venv-{name}"], check=True)
        python = tmp_path / f"venv-{name}" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "app.py").write_text((code + "import babel.core\n" * (name == "b")) + REST)
        with record(folder, [python, "app.py", "1", "1", "rss"], *LOOKS):
            paths.append(folder / "trace.wst")
        sizes.append(int((folder / "rss").read_text()) * 1024)
    report = json.loads(compared(capsys, *paths, "--by", "package", "--all", "--json"))
    assert abs(report["total"]["change"] - (sizes[1] - sizes[0])) <= 0.02 * sizes[0]
    rows = {row["label"]: row for row in report["rows"]}
    assert rows["babel"]["first"] == 0 < rows["babel"]["second"]
    assert min(rows["jinja2"]["first"], rows["jinja2"]["second"]) > 0.2 * MIB
    assert not any(row["label"].startswith(("libpython", "_yaml")) and not row["first"] for row in report["rows"])
    functions = json.loads(compared(capsys, *paths, "--by", "function", "--all", "--json"))["rows"]
    both = [row for row in functions if "/jinja2/" in row["file"] and row["first"] and row["second"]]
    assert both, "functions of the package are paired across the environments"
    assert "import babel" in compared(capsys, *paths).splitlines()[0]
