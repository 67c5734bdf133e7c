"""The checklist of docs/compatibility.md names tests that exist."""

import re
from pathlib import Path

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
    rows = re.findall(r"^\| (?!.*held by)(.*?) \| (.*) \| (.*?) \|$", text, re.MULTILINE)
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
