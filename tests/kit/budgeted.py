"""Runs of pytest with the plugin, and what they printed."""

import os
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest import mock

import pytest

GROW = """
import pytest
kept = []
def grow(): kept.append([bytearray(100_000) for _ in range(100)])
"""


def run(pytester: pytest.Pytester, *words: object, looked: bool = False, **files: str) -> pytest.RunResult:
    """Runs pytest with the plugin, found by its entry point, and of the other installed ones only what it needs.

    Loading all of them took a third of such a run.

    Args:
        pytester: of the test. words: arguments. looked: whether to see who brings memory, which most tests need not.
        files: name -> text of modules; what comes first is GROW.
    """
    if files:
        pytester.makepyfile(**{name: GROW + text for name, text in files.items()})
    plugins = ["wstrace", *(["xdist"] if any(str(word).startswith("-n") for word in words) else []),
               *([] if looked else ["kit.nobody_looks"])]  # fmt: skip
    loaded = [word for name in plugins for word in ("-p", name)]
    here = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    with mock.patch.dict(os.environ, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": here}):
        return pytester.runpytest_subprocess(*loaded, "-p", "no:cacheprovider", *words, timeout=100)


def text_of(result: pytest.RunResult) -> str:
    return result.stdout.str() + result.stderr.str()


def properties(junit: Path) -> dict[str, int]:
    found = ET.parse(junit).iter("property")
    return {str(one.get("name")): int(str(one.get("value"))) for one in found}
