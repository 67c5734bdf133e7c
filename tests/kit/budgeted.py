"""Runs of pytest with the plugin, and what they told."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

GROW = """
import pytest
kept = []
def grow(): kept.append([bytearray(100_000) for _ in range(100)])
"""


def run(pytester: pytest.Pytester, *words: object, **files: str) -> pytest.RunResult:
    if files:
        pytester.makepyfile(**{name: GROW + text for name, text in files.items()})
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:randomly", *words, timeout=100)


def text_of(result: pytest.RunResult) -> str:
    return result.stdout.str() + result.stderr.str()


def properties(junit: Path) -> dict[str, int]:
    found = ET.parse(junit).iter("property")
    return {str(one.get("name")): int(str(one.get("value"))) for one in found}
