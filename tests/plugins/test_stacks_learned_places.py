"""Where an interpreter's loop keeps its next instruction, learned from samples that a test makes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace_stacks.linux import learned_places
from wstrace_stacks.linux.learned_places import LEAST, LEAST_LINES, MOST, MOST_INSTRUCTIONS, UNKNOWN, LearnedPlaces

TRUE, STALE, OTHER, PLACES = 2, 5, 6, 9


def samples(n: int, moves: int = 12, at: int = TRUE) -> np.ndarray:
    """n samples in which one place moves over so many lines."""
    shown = np.zeros((n, PLACES), "<u8")
    shown[:, at] = 1000 + np.arange(n) % moves
    return shown


def place(learned: LearnedPlaces, instruction: int = 7) -> int:
    return int(learned.places(np.array([instruction], "<u8"))[0])


def learn(learned: LearnedPlaces, shown: np.ndarray, instruction: int = 7) -> None:
    learned.learn(np.full(len(shown), instruction, "<u8"), shown)


def test_the_place_that_always_points_into_bytecode_is_learned() -> None:
    learned = LearnedPlaces()
    assert place(learned) == UNKNOWN
    learn(learned, samples(LEAST - 1))
    assert place(learned) == UNKNOWN, "too few samples"
    learn(learned, samples(1))
    assert place(learned) == TRUE
    assert place(learned, 8) == UNKNOWN, "another instruction of the loop"


def test_what_is_left_of_an_earlier_call_is_there_in_a_part_of_the_samples() -> None:
    learned, shown = LearnedPlaces(), samples(100)
    shown[::3, STALE] = 2000 + np.arange(34) % 20
    learn(learned, shown)
    assert place(learned) == TRUE


def test_a_place_that_never_moves_is_no_instruction_pointer() -> None:
    learned = LearnedPlaces()
    learn(learned, samples(100, moves=LEAST_LINES - 1))
    assert place(learned) == UNKNOWN


def test_lines_at_rare_instructions_prove_that_a_place_moves() -> None:
    """A loop at one line, after a start of which each instruction was sampled once."""
    learned = LearnedPlaces()
    learn(learned, samples(100, moves=1))
    assert place(learned) == UNKNOWN
    for instruction in range(10, 10 + LEAST_LINES):
        learn(learned, samples(1) + instruction * (samples(1) > 0), instruction)
    assert place(learned) == TRUE
    assert place(learned, 10) == UNKNOWN, "of that one there are too few samples"


def test_of_two_that_contradict_each_other_none_is_believed() -> None:
    learned, shown = LearnedPlaces(), samples(100)
    shown[:, OTHER] = 3000 + np.arange(100) % 15
    learn(learned, shown)
    assert place(learned) == UNKNOWN


def test_of_two_that_say_the_same_either_is_right() -> None:
    learned, shown = LearnedPlaces(), samples(100)
    shown[:, OTHER] = shown[:, TRUE]
    learn(learned, shown)
    assert place(learned) in (TRUE, OTHER)


def test_a_contradiction_is_decided_by_the_place_that_fits_many_more_instructions() -> None:
    learned, shown = LearnedPlaces(), samples(50)
    shown[:, OTHER] = 3000 + np.arange(50) % 15
    learn(learned, shown, 7)
    for instruction in range(8, 11):
        learn(learned, samples(50), instruction)
    assert place(learned, 7) == TRUE


def test_a_place_that_fits_few_samples_is_not_believed() -> None:
    learned = LearnedPlaces()
    learn(learned, samples(200), 1)
    learn(learned, samples(200), 2)
    learn(learned, samples(200), 3)
    learn(learned, samples(LEAST, at=STALE), 4)
    assert place(learned, 1) == TRUE
    assert place(learned, 4) == UNKNOWN


def test_what_is_kept_is_bounded() -> None:
    learned = LearnedPlaces()
    for instruction in range(MOST_INSTRUCTIONS + 9):
        learn(learned, samples(2), instruction)
    learn(learned, samples(3 * MOST), 0)
    assert len(learned._seen) == MOST_INSTRUCTIONS
    assert len(learned._seen[0]) == MOST


def test_words_that_tell_nothing_new_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_places, "MOST", 32)
    learned, words = LearnedPlaces(), np.arange(2 * PLACES, dtype="<u8").reshape(2, PLACES)
    learn(learned, samples(40), 7)
    worth = learned.worth_reading(np.array([7, 8], "<u8"), words)
    assert sorted(worth.tolist()) == sorted([int(words[0, TRUE]), *words[1].tolist()])
