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


def test_the_same_seed_makes_the_same_files_and_they_are_odd():
    one, two = fuzz_commands.Mutator(5), fuzz_commands.Mutator(5)
    files = [one.file() for _ in range(20)]
    assert files == [two.file() for _ in range(20)]
    assert len(set(files)) == 20


@pytest.mark.long
@pytest.mark.timeout(400)
def test_new_odd_files_for_two_minutes():
    wrong = [(words, why) for _, words, why in fuzz_commands.fuzz(random.randrange(1 << 30), seconds=120)]
    assert not wrong, wrong[:3]
