"""`wstrace check`: a command is compared with its baseline and with limits; its own failure is passed on."""

import json
import sys
from pathlib import Path

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: the real kernel")

PROGRAM = """
import sys
print("printed")
kept = bytes(int(sys.argv[1]) << 20)
kept = bytearray(len(kept)); kept[::4096] = b"x" * len(kept[::4096])
"""


def check(folder: Path, mib: int, *options: str, code: int = 0) -> tuple[str, str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    baseline = str(folder / "b" / "baseline.json")
    words = ["check", "--baseline", baseline, "--name", "it", "--runs", "2", *options, str(program), str(mib)]
    done = wstrace(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_command_that_takes_more_than_its_baseline(tmp_path):
    said, warned = check(tmp_path, 8)
    assert "record one: wstrace check --update" in warned
    assert said.count("printed") == 1, "of the first run only"
    said, reported = check(tmp_path, 8, "--require-baseline", code=120)
    assert said.splitlines()[-3].startswith("peak "), "bytes before faults"
    assert reported.splitlines()[-1].startswith("wstrace: there is no baseline (")
    assert reported.splitlines()[-1].endswith("; record a baseline: wstrace check --update")
    _, reported = check(tmp_path, 8, "--update")
    assert "it is in " in reported
    (environment,) = json.loads((tmp_path / "b" / "baseline.json").read_text())["environments"].values()
    entry = environment["tests"]["it"]
    assert entry["runs"] == 2
    assert 2048 < entry["faults"] < 40_000
    check(tmp_path, 8, "--require-baseline")
    said, reported = check(tmp_path, 24, code=120)
    assert "wstrace: over its budget: " in reported
    assert " over the baseline of " in reported
    assert "more than in the baseline:" in said
    said, reported = check(tmp_path, 24, "--json", code=120)
    found = json.loads(said)
    assert not found["ok"]
    assert (found["schema"], f"wstrace: {found['answer']}") == (2, reported.splitlines()[-1])
    assert found["total"]["faults"] > found["limit"]["faults"] > entry["faults"]
    assert found["rows"][0]["second"] - found["rows"][0]["first"] == found["rows"][0]["change"] > 14 << 20
    assert "printed" in reported


def test_a_file_that_is_no_baseline_is_recorded_anew(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "baseline.json").write_text("<<<<<<< ours\n")
    _, reported = check(tmp_path, 1, code=125)
    assert "has a merge conflict in it" in reported
    assert "or record it anew: " in reported
    _, reported = check(tmp_path, 1, "--update")
    assert "the baseline is recorded anew: " in reported
    check(tmp_path, 1, "--require-baseline")


def test_limits_and_the_failure_of_the_command(tmp_path):
    found = json.loads(check(tmp_path, 8, "--peak", "1GiB", "--faults", "1000000", "--json")[0])
    assert found["ok"]
    assert found["answer"].startswith("within its budget: peak ")
    assert found["limit"] == {"peak": 1 << 30, "faults": 1_000_000}
    _, reported = check(tmp_path, 8, "--peak", "4MiB", "--faults", "10", code=120)
    assert "limit 4.0 MiB" in reported
    assert "limit 10" in reported
    assert wstrace("check", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert wstrace("check", "--", "/nowhere/there").returncode == 127
