"""Learns where an interpreter's loop keeps the address of its next instruction, from the samples themselves.

Compiled code has a variable at one place whenever it stands at one instruction: in a register, or in one word of its
frame. Other words may point into bytecode, too: what an earlier call left there, the begin of the function. Those are
there in a part of the samples only, or never move. So a place is believed for an instruction of the loop if it pointed
into bytecode in nearly all samples of that instruction, if it moved over the trace, and if no other such place, of as
many instructions, says something else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: samples of an instruction of the loop from which its place is learned, and those that are kept
LEAST, MOST = 16, 256
#: instructions of the loop of which samples are kept
MOST_INSTRUCTIONS = 256
#: the part of the samples in which the place must point into bytecode; that in which two places must agree
FULL, AGREEING = 0.95, 0.99
#: lines that the place must have shown over the trace; the part of all samples whose instructions it fits
LEAST_LINES, LEAST_SHARE = 4, 0.05
#: one place is preferred to another that contradicts it if it fits so many times as many samples
CLEARER = 1.5
#: what place() says where none is known
UNKNOWN = -1


class LearnedPlaces:
    """The places of one build of an interpreter."""

    def __init__(self) -> None:
        self._seen: dict[int, NDArray[np.uint64]] = {}
        self._places: dict[int, int] = {}
        self._stale = False

    def learn(self, instructions: NDArray[np.uint64], shown: NDArray[np.uint64]) -> None:
        """Takes samples.

        Args:
            instructions: of the loop, shape (n,).
            shown: what each place points to, as a number of its line and code object; shape (n, places), 0 = nothing.
        """
        useful = shown.any(axis=1)
        for instruction in np.unique(instructions[useful]).tolist():
            seen = self._seen.get(instruction)
            if seen is None and len(self._seen) >= MOST_INSTRUCTIONS:
                continue
            rows = shown[useful & (instructions == instruction)]
            if seen is not None:
                if len(seen) >= MOST:
                    continue
                rows = np.concatenate((seen, rows))
            self._seen[instruction] = rows[:MOST]
            self._stale = True

    def places(self, instructions: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The place at each of these instructions of the loop; UNKNOWN where it is not learned."""
        if self._stale:
            self._places, self._stale = self._decided(), False
        distinct, which = np.unique(instructions, return_inverse=True)
        return np.array([self._places.get(one, UNKNOWN) for one in distinct.tolist()], np.intp)[which]

    def worth_reading(self, instructions: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Of the words of samples, shape (n, places), those that tell something, shape (m,)."""
        place = self.places(instructions)
        settled = np.array([one for one, seen in self._seen.items() if len(seen) >= MOST], "<u8")
        known = np.isin(instructions, settled) & (place != UNKNOWN)
        return np.concatenate((words[~known].ravel(), words[known, place[known]]))

    def _decided(self) -> dict[int, int]:
        """The places by instruction, by what was seen so far."""
        fitting = {one: (seen > 0).mean(axis=0) >= FULL for one, seen in self._seen.items()}
        full = {one: fits for one, fits in fitting.items() if len(self._seen[one]) >= LEAST}
        if not full:
            return {}
        weight = {one: len(self._seen[one]) for one in full}
        score = np.sum([fits * weight[one] for one, fits in full.items()], axis=0)
        able = (self._lines_shown(fitting) >= LEAST_LINES) & (score >= LEAST_SHARE * sum(weight.values()))
        return {one: _clearest(self._seen[one], fits * score, able) for one, fits in full.items()}

    def _lines_shown(self, fitting: dict[int, NDArray[np.bool_]]) -> NDArray[np.intp]:
        """How many lines each place has shown at the instructions that it fits."""
        shown: list[set[int]] = [set() for _ in next(iter(fitting.values()))]
        for one, fits in fitting.items():
            for place in np.flatnonzero(fits).tolist():
                shown[place].update(self._seen[one][:, place].tolist())
        return np.array([len(lines - {0}) for lines in shown])


def _clearest(seen: NDArray[np.uint64], score: NDArray[np.float64], able: NDArray[np.bool_]) -> int:
    """The place with the greatest score, if it is able and those that contradict it have clearly less."""
    best = int(np.argmax(score * able))
    if not score[best] * able[best]:
        return UNKNOWN
    agreeing = (seen == seen[:, best : best + 1]).mean(axis=0) >= AGREEING
    return best if not (~agreeing & (score * CLEARER > score[best])).any() else UNKNOWN
