"""The checklist of docs/compatibility.md names tests that exist; what Windows on ARM lacks is not required there."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def test_every_test_in_the_checklist_exists():
    checklist = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z0-9_]{12,})`", checklist))
    assert len(named) > 50
    files = [*ROOT.glob("tests/plugins/test_windows_*.py"), *ROOT.glob("tests/wine/test_*.py"),
             *ROOT.glob("tests/live/test_windows_*.py")]  # fmt: skip
    exist = {name for file in files for name in re.findall(r"def test_(\w+)", file.read_text("utf-8"))}
    assert not named - exist


def test_every_row_says_how_far_it_is_proven():
    text = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    rows = re.findall(r"^\| (?!.*\| test \| proof \|)(.*?) \| (.*) \| (.*?) \|$", text, re.MULTILINE)
    assert len(rows) > 80
    for statement, held, proof in rows:
        said = set(proof.split(", "))
        assert said <= {"golden bytes", "stand-in", "Wine", "runner"}, statement
        if held.startswith("the same"):
            continue
        files = set(re.findall(r"\b([a-z_*]+):", held))
        assert ("golden bytes" in said) == ("records" in files), statement
        assert ("runner" in said) == bool(files & {"live", "assumptions"}), statement
        assert ("Wine" in said) == any(file.startswith("wine") for file in files), statement


@pytest.mark.parametrize(("machine", "asked"), [("AMD64", {"pyarrow", "arro3-core"}), ("ARM64", {"arro3-core"})])
def test_what_has_no_wheel_for_windows_on_arm_is_not_asked_for_there(machine, asked):
    where = {"sys_platform": "win32", "os_name": "nt", "platform_system": "Windows", "platform_machine": machine}
    needed = [Requirement(text) for text in requires("wstrace") or ()]
    found = {need.name for need in needed if need.marker and need.marker.evaluate({**where, "extra": "convert"})}
    assert (
        found - {need.name for need in needed if need.marker and need.marker.evaluate({**where, "extra": ""})} == asked
    )
