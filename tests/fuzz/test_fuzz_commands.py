"""The structure-aware fuzzer: a short slice that is the same every time, and with --long new files for two minutes."""

import random

import fuzz_commands
import pytest


@pytest.fixture(autouse=True)
def plain_streams(monkeypatch):
    monkeypatch.setattr("wstrace.cli._speak_utf8", lambda: None)


def test_sixty_odd_files_are_read_or_refused_by_every_command():
    wrong = [(words, why) for _, words, why in fuzz_commands.fuzz(1, files=60)]
    assert not wrong, wrong[:3]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_new_odd_files_for_two_minutes():
    wrong = [(words, why) for _, words, why in fuzz_commands.fuzz(random.randrange(1 << 30), seconds=120)]
    assert not wrong, wrong[:3]
