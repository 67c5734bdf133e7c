"""Where an interpreter's loop keeps its next instruction, learned from samples that a test makes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace_plugins.stacks.linux import learned_places
from wstrace_plugins.stacks.linux.learned_places import LEAST, LEAST_LINES, MOST, MOST_ADDRESSES, UNKNOWN, LearnedPlaces

TRUE, STALE, OTHER, PLACES = 2, 5, 6, 9
#: instructions of the bytecode
CALL, STORE, LOAD = 171, 60, 25


def samples(n: int, moves: int = 12, at: int = TRUE) -> np.ndarray:
    """n samples in which one place moves over so many lines."""
    shown = np.zeros((n, PLACES), "<u8")
    shown[:, at] = 1000 + np.arange(n) % moves
    return shown


def place(learned: LearnedPlaces, address: int = 7) -> int:
    return int(learned.places(np.array([address], "<u8"))[0])


def learn(learned: LearnedPlaces, shown: np.ndarray, address: int = 7, instruction: int = CALL) -> None:
    learned.learn(np.full(len(shown), address, "<u8"), np.full(len(shown), instruction, "u1"), shown)


@pytest.fixture
def learned() -> LearnedPlaces:
    """One that has seen another instruction of the bytecode, too."""
    places = LearnedPlaces()
    learn(places, samples(1), 99, STORE)
    return places


def test_the_place_that_always_points_into_bytecode_is_learned(learned: LearnedPlaces) -> None:
    assert place(learned) == UNKNOWN
    learn(learned, samples(LEAST - 1))
    assert place(learned) == UNKNOWN, "too few samples"
    learn(learned, samples(1))
    assert place(learned) == TRUE
    assert place(learned, 8) == UNKNOWN, "another instruction of the loop"


def test_what_is_left_of_an_earlier_call_is_there_in_a_part_of_the_samples(learned: LearnedPlaces) -> None:
    shown = samples(100)
    shown[::3, STALE] = 2000 + np.arange(34) % 20
    learn(learned, shown)
    assert place(learned) == TRUE


def test_a_place_that_never_moves_is_no_instruction_pointer(learned: LearnedPlaces) -> None:
    learn(learned, samples(100, moves=LEAST_LINES - 1))
    assert place(learned) == UNKNOWN


def test_lines_at_rare_instructions_prove_that_a_place_moves(learned: LearnedPlaces) -> None:
    """A loop at one line, after a start of which each instruction was sampled once."""
    learn(learned, samples(100, moves=1))
    assert place(learned) == UNKNOWN
    for address in range(10, 10 + LEAST_LINES):
        learn(learned, samples(1) + address * (samples(1) > 0), address)
    assert place(learned) == TRUE
    assert place(learned, 10) == UNKNOWN, "of that one there are too few samples"


def test_the_callers_place_is_not_taken_for_the_right_one_whose_code_is_gone(learned: LearnedPlaces) -> None:
    """At the start of a program: the code of modules that were imported is freed before it is read, their caller's not.

    The caller's instruction is a call, too. At no other instruction of the loop does it stand before the pointer.
    """
    imported = samples(10, at=STALE)
    learn(learned, imported)
    both = samples(10)
    both[:, STALE] = 2000 + np.arange(10)
    learn(learned, both)
    assert place(learned) == UNKNOWN
    learn(learned, samples(200))
    assert place(learned) == TRUE


def test_one_kind_of_instruction_proves_no_place() -> None:
    learned = LearnedPlaces()
    learn(learned, samples(100), 7, CALL)
    learn(learned, samples(100), 8, CALL)
    assert place(learned) == UNKNOWN
    learn(learned, samples(1), 9, LOAD)
    assert place(learned) == TRUE


def test_of_two_that_contradict_each_other_none_is_believed(learned: LearnedPlaces) -> None:
    shown = samples(100)
    shown[:, OTHER] = 3000 + np.arange(100) % 15
    learn(learned, shown, 7)
    learn(learned, shown, 8, STORE)
    assert place(learned) == UNKNOWN


def test_of_two_that_say_the_same_either_is_right(learned: LearnedPlaces) -> None:
    shown = samples(100)
    shown[:, OTHER] = shown[:, TRUE]
    learn(learned, shown)
    assert place(learned) in (TRUE, OTHER)


def test_a_contradiction_is_decided_by_the_place_that_fits_many_more_instructions(learned: LearnedPlaces) -> None:
    shown = samples(50)
    shown[:, OTHER] = 3000 + np.arange(50) % 15
    learn(learned, shown, 7)
    for address in range(8, 11):
        learn(learned, samples(50), address, STORE)
    assert place(learned, 7) == TRUE


def test_a_place_that_fits_few_samples_is_not_believed(learned: LearnedPlaces) -> None:
    learn(learned, samples(200), 1)
    learn(learned, samples(200), 2)
    learn(learned, samples(200), 3)
    learn(learned, samples(LEAST, at=STALE), 4)
    assert place(learned, 1) == TRUE
    assert place(learned, 4) == UNKNOWN


def test_what_is_kept_is_bounded() -> None:
    learned = LearnedPlaces()
    for address in range(MOST_ADDRESSES + 9):
        learn(learned, samples(2), address)
    learn(learned, samples(3 * MOST), 0)
    assert len(learned._seen) == MOST_ADDRESSES
    assert len(learned._seen[0].shown) == MOST


def test_words_that_tell_nothing_new_are_not_read(monkeypatch: pytest.MonkeyPatch, learned: LearnedPlaces) -> None:
    monkeypatch.setattr(learned_places, "MOST", 32)
    words = np.arange(2 * PLACES, dtype="<u8").reshape(2, PLACES)
    learn(learned, samples(40), 7)
    worth = learned.worth_reading(np.array([7, 8], "<u8"), words)
    assert sorted(worth.tolist()) == sorted([int(words[0, TRUE]), *words[1].tolist()])
