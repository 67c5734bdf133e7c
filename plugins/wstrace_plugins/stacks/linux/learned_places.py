"""Learns where an interpreter's loop keeps the address of its next instruction, from the samples themselves.

Compiled code has a variable at one place whenever it stands at one address: in a register, or in one word of its
frame. Other words point into bytecode, too: what an earlier instruction or the caller left there, in a part of the
samples or in all of them. So only words before which the instruction stands that the loop was executing are taken for
what is looked for. A word that was left by another instruction of that kind is among them now and then. So a place is
believed for an address of the loop if it showed the right instruction in nearly all samples of that address, if it did
so for instructions of several kinds and on several lines, and if no other such place says something else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct

#: samples of an address of the loop from which its place is learned, and those that are kept
LEAST, MOST = 16, 256
#: addresses of the loop of which samples are kept
MOST_ADDRESSES = 256
#: the part of the samples in which a place must show the right instruction; from which on it may contradict another;
#: in which two places must agree
FULL, SOME, AGREEING = 0.95, 0.1, 0.99
#: kinds of instructions that a place must have shown over the trace, and lines
LEAST_KINDS, LEAST_LINES = 2, 4
#: what place() says where none is known
UNKNOWN = -1


class _Seen(NamedTuple):
    """The samples of one address: the instruction that the loop executes there, and what each place showed."""

    instruction: int
    shown: NDArray[np.uint64]

    def share(self) -> NDArray[np.float64]:
        """The part of the samples in which each place showed something."""
        share: NDArray[np.float64] = (self.shown > 0).mean(axis=0)
        return share


class LearnedPlaces:
    """The places of one build of an interpreter."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._places: dict[int, int] = {}
        self._stale = False

    def learn(self, addresses: NDArray[np.uint64], instructions: NDArray[np.uint8], shown: NDArray[np.uint64]) -> None:
        """Takes samples.

        Args:
            addresses: in the loop, shape (n,).
            instructions: of the bytecode, which the loop executes there, shape (n,).
            shown: what each place points to, as a number of its line and code object, where the instruction before
                that is the executed one; shape (n, places), 0 = nothing, or another instruction.
        """
        useful = shown.any(axis=1)
        for address in distinct(addresses[useful]).tolist():
            seen = self._seen.get(address)
            if seen is None and len(self._seen) >= MOST_ADDRESSES:
                continue
            own = useful & (addresses == address)
            rows = shown[own]
            if seen is not None:
                if len(seen.shown) >= MOST:
                    continue
                rows = np.concatenate((seen.shown, rows))
            self._seen[address] = _Seen(int(instructions[own][0]), rows[:MOST])
            self._stale = True

    def places(self, addresses: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The place at each of these addresses of the loop; UNKNOWN where it is not learned."""
        if self._stale:
            self._places, self._stale = self._decided(), False
        distinct, which = np.unique(addresses, return_inverse=True)
        return np.array([self._places.get(one, UNKNOWN) for one in distinct.tolist()], np.intp)[which]

    def worth_reading(self, addresses: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Of the words of samples, shape (n, places), those that tell something, shape (m,)."""
        place = self.places(addresses)
        settled = np.array([one for one, seen in self._seen.items() if len(seen.shown) >= MOST], "<u8")
        known = np.isin(addresses, settled) & (place != UNKNOWN)
        return np.concatenate((words[~known].ravel(), words[known, place[known]]))

    def _decided(self) -> dict[int, int]:
        """The places by address, by what was seen so far."""
        share = {one: seen.share() for one, seen in self._seen.items()}
        places = len(next(iter(share.values())))
        kinds: list[set[int]] = [set() for _ in range(places)]
        lines: list[set[int]] = [set() for _ in range(places)]
        score = np.zeros(places)
        for one, seen in self._seen.items():
            fits = share[one] >= FULL
            score += fits * len(seen.shown)
            for place in np.flatnonzero(fits).tolist():
                kinds[place].add(seen.instruction)
                lines[place].update(seen.shown[:, place].tolist())
        proven = np.array([len(kinds[one]) >= LEAST_KINDS and len(lines[one] - {0}) >= LEAST_LINES
                           for one in range(places)])  # fmt: skip
        return {one: _best(seen.shown, share[one], score * proven)
                for one, seen in self._seen.items() if len(seen.shown) >= LEAST}  # fmt: skip


def _best(shown: NDArray[np.uint64], share: NDArray[np.float64], score: NDArray[np.float64]) -> int:
    """The place with the greatest score of those that fit, if no other that has a score contradicts it."""
    best = int(np.argmax(score * (share >= FULL)))
    if share[best] < FULL or not score[best]:
        return UNKNOWN
    for rival in np.flatnonzero((share >= SOME) & (score > 0)).tolist():
        both = (shown[:, best] > 0) & (shown[:, rival] > 0)
        if both.any() and (shown[both, best] == shown[both, rival]).mean() < AGREEING:
            return UNKNOWN
    return best
