"""The checklist of docs/compatibility.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_in_the_checklist_exists():
    checklist = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z0-9_]{12,})`", checklist))
    assert len(named) > 50
    files = [*ROOT.glob("tests/plugins/test_windows_*.py"), *ROOT.glob("tests/wine/test_*.py"),
             ROOT / "tests" / "live" / "test_windows_live.py"]  # fmt: skip
    exist = {name for file in files for name in re.findall(r"def test_(\w+)", file.read_text("utf-8"))}
    assert not named - exist
