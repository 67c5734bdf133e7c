"""Estimates from samples of stacks, made to agree with what is counted: the faults of each instruction.

A sample stands for the faults of its thread since the one before. Threads that end before their first sample have
none, and in a short thread the samples come late: what a program does first is then missed, by far more than chance
explains. But each fault tells its instruction. So the faults of an instruction are divided among its own samples, and
where the instruction alone tells the label they count in full, whether it has a sample or not. Who called it samples
tell of threads that have some only, so the margins of callers hold what the others may have.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: With so many samples, an instruction's faults are divided among these alone. With fewer, where they stand for more
#: faults than the instruction has, they stand for those of instructions without a sample, too.
_ENOUGH = 5
#: half-width of an interval that holds the true number in 19 of 20 traces, in standard errors; and the one trace
_ERRORS, _MISSED = 1.96, 0.05


class Totals(NamedTuple):
    """Of each label, i64.

    faults: the estimates; margins: the half-widths of their 95 % confidence intervals, in faults; certain: the faults
    that the label has at the least, as their instructions alone tell it.
    """

    faults: NDArray[np.int64]
    margins: NDArray[np.int64]
    certain: NDArray[np.int64]


class Calibration:
    """Samples of stacks, and the faults of their instructions.

    Args:
        instruction: of each row, shape (n,); a row is the faults of an instruction with the same stack.
        file: of each row, that of its instruction.
        sure: of each row, whether its instruction alone tells its label; those without a sample count in full.
        faults, samples: of each row; weights: the faults for which its samples stand; squares: of those weights.
    """

    def __init__(
        self,
        instruction: NDArray[Any],
        file: NDArray[Any],
        sure: NDArray[np.bool_],
        faults: NDArray[np.int64],
        samples: NDArray[np.int64],
        weights: NDArray[np.int64],
        squares: NDArray[np.int64],
    ) -> None:
        numbers, first, of = np.unique(instruction, return_index=True, return_inverse=True)
        n = len(numbers)
        counted, made, stood = (np.bincount(of, column, n) for column in (faults, samples, weights))
        named = (np.bincount(of, sure, n) > 0) & (np.bincount(of, (samples > 0) & ~sure, n) == 0)
        alone = named | (made > 0) & ((made >= _ENOUGH) | (stood <= counted))
        lacking, rest, theirs = max(counted.sum() - stood.sum(), 0), counted[~alone].sum(), stood[~alone].sum()
        weights = np.where((named & (made == 0))[of], faults, weights)
        # The rows of the other instructions are one stratum, number 0, which the faults without any sample are not of.
        self._stratum = np.where(alone, np.arange(1, n + 1), 0)[of]
        self._faults = np.append(min(rest, max(theirs, rest - lacking)) if theirs else 0.0, np.where(alone, counted, 0))
        self._of_all = np.append(rest, counted)
        self._samples, self._weights, self._squares = (
            np.bincount(self._stratum, column, n + 1) for column in (samples, weights, squares)
        )
        # The faults of each that are of threads without a sample: as many as of all faults, or what they are more
        # than its samples stand for, beyond chance. Samples that come late stand for the faults of others, too.
        beyond = counted - stood - _ERRORS * np.sqrt(np.bincount(of, squares, n))
        beyond = np.maximum(beyond, counted * (lacking / max(counted.sum(), 1)))
        self._untold = np.append(0.0, np.where(alone & (made > 0), np.maximum(beyond, 0), 0))
        self._of_row = weights, squares, samples
        # The faults of instructions without a sample, by file; and how many of one label these are at the most in 19
        # of 20 traces, with samples as far from each other as these are from where a fault is.
        file = np.unique(file[first], return_inverse=True)[1]
        self._unseen = np.bincount(file, counted * ((made == 0) & ~named))
        self._file = file[of]
        self._gap = -math.log(_MISSED) * squares.sum() / max(stood.sum(), 1)

    def totals(self, label: NDArray[np.intp], rows: NDArray[np.bool_], innermost: NDArray[np.bool_], n: int) -> Totals:
        """The estimates of n labels.

        Args:
            label: of each of the rows, 0..n-1.
            rows: which rows they are, a mask.
            innermost: which of them have a label that the instruction tells, whatever called it.
        """
        strata = len(self._faults)
        cells, cell = np.unique(label * strata + self._stratum[rows], return_inverse=True)
        weights, squares = (np.bincount(cell, column[rows], len(cells)) for column in self._of_row[:2])
        labels, stratum = np.divmod(cells, strata)
        share = weights / np.maximum(self._weights[stratum], 1)
        sums = np.bincount(labels, share * self._faults[stratum], n)
        called = (np.bincount(cell, ~innermost, len(cells)) > 0) | (share < 1)
        variances = np.where(called | (stratum == 0), self._variances(stratum, share, squares), 0)
        variance = np.bincount(labels, variances, n)
        untold = np.bincount(labels, called * np.maximum(share, 1 - share) * self._untold[stratum], n)
        ends = np.rint(np.append(0, np.cumsum(sums)))  # so that the rows have the sum of all
        # A label has the faults that were sampled at the least, and all of its instructions' at the most.
        all_ = np.bincount(labels, np.where(stratum == 0, np.inf, self._faults[stratum]), n)
        most = np.maximum(all_ - sums, sums - np.bincount(label, self._of_row[2][rows], n))
        margins = np.minimum(_ERRORS * np.sqrt(variance) + untold, most)
        if innermost.any():
            told = np.bincount(labels, share * self._faults[stratum] * (stratum == 0), n)
            margins = np.maximum(margins, self._unseen_of(label[innermost], self._file[rows][innermost], told))
        certain = np.bincount(labels, np.where(called | (stratum == 0), 0, self._faults[stratum]), n)
        return Totals(*(np.rint(of).astype(np.int64) for of in (np.diff(ends), margins, certain)))

    def _unseen_of(self, label: NDArray[np.intp], file: NDArray[np.intp], told: NDArray[Any]) -> NDArray[np.float64]:
        """The most faults of each label that are of instructions without a sample, beyond those told of it already.

        A function has more instructions than those with a sample: `memmove` of a postgres had 197 faults beside 3 that
        were told of it. They are in the same file, and of more than 3 times what a sample stands for one has a sample.
        """
        labels, files = np.divmod(np.unique(label * len(self._unseen) + file), len(self._unseen))
        most = np.bincount(labels, self._unseen[files], len(told)) - told
        unseen: NDArray[np.float64] = np.clip(most, 0, self._gap)
        return unseen

    def _variances(
        self, stratum: NDArray[np.intp], share: NDArray[np.float64], squares: NDArray[Any]
    ) -> NDArray[np.float64]:
        """The variance of each label's part of a stratum.

        Of few samples of an instruction none may have another label, and yet some of its faults have it: hence the
        interval of Agresti and Coull, and for a label that all n samples have the share that n samples may miss.
        The other stratum's is that of a ratio of two weighted sums.
        """
        all_, all_squares, faults = (of[stratum] for of in (self._weights, self._squares, self._faults))
        samples = np.maximum(all_ * all_ / np.maximum(all_squares, 1), 1)  # as many of one weight are as sure
        near = (share * samples + 2) / (samples + 4)
        missed = (1 - _MISSED ** (1 / samples)) / _ERRORS
        each = np.maximum(near * (1 - near) / (samples + 4), np.where(share == 1, missed * missed, 0))
        each *= 1 - np.minimum(self._samples[stratum] / np.maximum(self._of_all[stratum], 1), 1)
        ratio = np.maximum((1 - 2 * share) * squares + share * share * all_squares, 0) / np.maximum(all_, 1) ** 2
        found: NDArray[np.float64] = faults * faults * np.where(stratum == 0, ratio, each)
        return found


def margin(weights: int, squares: int, all_weights: int, all_squares: int) -> int:
    """The margin of a row of samples with these sums of weights and of their squares; all_: the sums of all rows.

    Each sample has its own weight w. With p the row's share of all weights, the variance of the row's sum is the
    sum of (w (1 - p))² over its samples and of (w p)² over the others: that of a ratio of two weighted sums.
    """
    share = weights / max(all_weights, 1)
    variance = max((1 - 2 * share) * squares + share * share * all_squares, 0.0)
    return round(_ERRORS * math.sqrt(variance))
