"""Real programs, traced and reported: line 1 names the user's own line, and every view holds all recorded faults."""

import json
import os
import sys
from pathlib import Path

import pytest
from kit.command_line import answer, wstrace

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives stacks"),
    pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="eBPF needs root"),
]

LEAK = """\
import json

KEPT = []


def parse_record(text):
    return json.loads(text) | {"pad": bytearray(5000)}


def load(n):
    for i in range(n):
        KEPT.append(parse_record('{"id": %d}' % i))


load(5000)
"""


def traced(folder: Path, *command: str) -> tuple[Path, str]:
    """The trace of a command, and what `run` printed."""
    path = folder / "x.wst"
    done = wstrace("run", "-o", path, "--", *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    if "[level" in done.stderr.splitlines()[0]:
        pytest.skip(done.stderr)
    return path, done.stderr


def totals(path: Path) -> dict[str, int]:
    """view -> the faults that it holds."""
    found = {}
    for by in ("line", "function", "stack", "package"):
        report = json.loads(answer("report", path, "--by", by, "--json", "--top", 100_000))
        found[by] = sum(row["faults"] for row in report["rows"])
        found["recorded"] = report["total"]["faults"]
    folded = answer("report", path, "--format", "folded").splitlines()
    found["folded"] = sum(int(line.rpartition(" ")[2]) for line in folded)
    found["jsonl"] = len(answer("report", path, "--format", "jsonl").splitlines())
    return found


def test_a_python_program_is_reported_by_the_users_own_line(tmp_path):
    (tmp_path / "leak.py").write_text(LEAK)
    path, shown = traced(tmp_path, sys.executable, "leak.py")
    assert " parse_record leak.py:7" in shown.splitlines()[0], shown
    assert "own line" in shown.splitlines()[3]
    found = totals(path)
    assert found == dict.fromkeys(found, found["recorded"])
    package = json.loads(answer("report", path, "--by", "package", "--json"))["rows"]
    assert package[0]["label"] == "(own code)"
    stacks = [json.loads(line).get("stack") for line in answer("report", path, "--format", "jsonl").splitlines()]
    own = [frames for frames in stacks if frames and frames[0]["function"] == "parse_record"]
    assert len(own) > 3000
    assert [(frame["function"], frame["line"]) for frame in own[-1]] == [
        ("parse_record", 7), ("load", 12), ("<module>", 15),
    ]  # fmt: skip
    assert all(frame["own"] and frame["how"] == "exact" for frame in own[-1])


def test_a_test_run_is_reported_by_the_line_of_the_test(tmp_path):
    (tmp_path / "test_big.py").write_text("def test_big():\n    kept = bytearray(60 << 20)\n    assert kept\n")
    plugins = ("-p", "no:cacheprovider", "-p", "no:wstrace")  # ours is below a folder of its own where it is developed
    _, shown = traced(tmp_path, sys.executable, "-m", "pytest", "-q", *plugins, "test_big.py")
    assert " test_big test_big.py:2" in shown, shown
