"""Says loudly that the proof of this folder does not run here."""

import sys

import pytest


def test_the_windows_suite_runs_under_wine():
    if sys.platform != "win32":
        pytest.skip("only on Windows and under Wine: tests/wine/run runs this folder there and fails when nothing ran")
