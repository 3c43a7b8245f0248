"""Area under the ROC curve, in bounded memory: exact for 16 million examples, and within a known bound for more.

An example is one sortable 64-bit key: 32 bits of score (mapped so that integers sort like the floats), 1 bit of label,
31 bits of weight (a non-negative float32 needs no sign bit). Sorting the keys gives one fixed order of the examples,
including ties, whatever the order of arrival. Terms are summed one by one in that order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.area import NEGATIVE, NUM_SUMS, POSITIVE, TWICE, add_sorted, end_tie
from pipeline.metrics.score_bins import BINS_BYTES, ScoreBins
from pipeline.records import F32, U64

SIGN = np.uint32(1 << 31)
LABEL = np.uint64(1 << 31)
WEIGHT = np.uint64((1 << 31) - 1)
EXACT_SCORES = 1 << 24
"""Maximum number of examples whose AUC is exact."""
BINNED = 1 << 20
"""Minimum number of further examples that are added to the bins together."""
PIECE = 1 << 18
"""Number of entries in a piece, as workers send them."""


class Entries:
    """Table of entries of C words each, in order of arrival. Takes 8 C bytes per entry."""

    def __init__(self, num_words: int = 1) -> None:
        self._words_CN: U64 = np.empty((num_words, 0), np.uint64)
        self.count = 0

    def add(self, words_CB: U64) -> None:
        """Add copies of entries."""
        count = self.count + words_CB.shape[1]
        if count > (room := self._words_CN.shape[1]):
            # Pages of the table that no entry has reached take no memory yet.
            grown = np.empty((len(self._words_CN), max(count, 2 * room)), np.uint64)
            grown[:, : self.count] = self._words_CN[:, : self.count]
            self._words_CN = grown
        self._words_CN[:, self.count : count] = words_CB
        self.count = count

    def take(self) -> U64:
        """Return all entries [C, N] since the last call, and forget them."""
        taken_CN = self._words_CN[:, : self.count]
        self._words_CN, self.count = np.empty((len(self._words_CN), 0), np.uint64), 0
        return taken_CN


def pieces_of(words_CN: U64) -> Iterator[U64]:
    """Yield entries [C, n], at most `PIECE` at a time."""
    for begin in range(0, words_CN.shape[1], PIECE):
        yield words_CN[:, begin : begin + PIECE]


def check_scores(scores_B: F32) -> None:
    """Raise ValueError if a score is NaN."""
    if num_nan := int(np.isnan(scores_B).sum()):
        raise ValueError(f"{num_nan} of {len(scores_B)} scores are NaN: training diverged; try a lower learning rate")


def check_weights(weights_B: F32) -> None:
    """Raise ValueError if a weight is negative or not finite."""
    if not ((weights_B >= 0) & (weights_B < np.inf)).all():
        wrong = weights_B[~((weights_B >= 0) & (weights_B < np.inf))]
        raise ValueError(
            f"sample weights must be finite and not negative, and {len(wrong)} of {len(weights_B)} are not, such as "
            f"{wrong[0]:g}; correct the column of data.weight"
        )


def pack_scores(scores_B: F32, labels_B: F32, weights_B: F32 | None) -> U64:
    """[B] sortable keys; an absent weight is 1. Scores may be infinite.

    Raises ValueError if a score is NaN, a label is neither 0 nor 1, or a weight is negative or not finite.
    """
    check_scores(scores_B)
    if not ((labels_B == 0) | (labels_B == 1)).all():
        wrong = labels_B[(labels_B != 0) & (labels_B != 1)]
        raise ValueError(
            f"AUC needs labels that are 0 or 1, but {len(wrong)} of {len(labels_B)} are not, such as {wrong[0]:g}; "
            "correct the column of data.labels"
        )
    # Adding zero turns -0.0, which equals 0.0 but has different bits, into 0.0.
    bits_B = (scores_B + np.float32(0)).view(np.uint32)
    ordered_B = np.where(bits_B >= SIGN, ~bits_B, bits_B | SIGN)
    label_B = np.where(labels_B == 1, LABEL, np.uint64(0))
    return (ordered_B.astype(np.uint64) << np.uint64(32)) | label_B | _weight_bits(weights_B)


def unpack_scores(keys_N: U64) -> tuple[U64, NDArray[np.bool_], F32]:
    """[N] integers that sort like the scores, [N] booleans (label is 1), [N] weights."""
    weights_N = (keys_N & WEIGHT).astype(np.uint32).view(np.float32)
    return keys_N >> np.uint64(32), (keys_N & LABEL) != 0, weights_N


def _weight_bits(weights_B: F32 | None) -> U64 | np.uint64:
    if weights_B is None:
        return np.uint64(np.float32(1).view(np.uint32))
    check_weights(weights_B)
    return (weights_B + np.float32(0)).view(np.uint32).astype(np.uint64)


class AUC:
    """AUC with ties (half credit) and weights: exact for up to `EXACT_SCORES` examples, and from `ScoreBins` for more.

    Memory: see `score_bytes`. The bits follow from the examples; beyond `EXACT_SCORES`, if weights are no whole
    numbers, also from the batches in which they are added."""

    def __init__(self) -> None:
        self._entries = Entries()
        self._bins: ScoreBins | None = None

    def add(self, scores_B: F32, labels_B: F32, weights_B: F32 | None = None) -> None:
        """Add a copy of a batch: scores of any scale, labels 0 or 1. Raises ValueError like `pack_scores`, without
        adding anything."""
        self.join(pack_scores(scores_B, labels_B, weights_B)[np.newaxis])

    def join(self, words_CN: U64) -> None:
        """Add a piece of what `take` yielded: entries [1, N], or bins [3, N]."""
        if len(words_CN) > 1 or self._entries.count + words_CN.shape[1] > EXACT_SCORES:
            self._bins = self._bins or ScoreBins()
        if self._bins and len(words_CN) > 1:
            self._bins.add_words(words_CN)
            return
        self._entries.add(words_CN)
        if self._bins and self._entries.count >= BINNED:
            self._fill(self._bins)

    def take(self) -> Iterator[U64]:
        """Return an iterator over all examples since the last call, in pieces for the `join` of another AUC."""
        if self._bins is None:
            return pieces_of(self._entries.take())
        self._fill(self._bins)
        words_3K, self._bins = self._bins.words(), None
        return pieces_of(words_3K)

    def result(self) -> tuple[float, float]:
        """Return the AUC of all examples since the last call, nan if a class is absent or has no weight; and a bound of
        its error, 0 if it is exact."""
        if self._bins is None:
            (keys_N,) = self._entries.take()
            keys_N.sort()
            return _area(keys_N), 0.0
        self._fill(self._bins)
        bins, self._bins = self._bins, None
        return bins.result()

    def _fill(self, bins: ScoreBins) -> None:
        (keys_N,) = self._entries.take()
        for begin in range(0, len(keys_N), BINNED):
            scores_N, is_positive_N, weights_N = unpack_scores(np.sort(keys_N[begin : begin + BINNED]))
            weight_N = weights_N.astype(np.float64)
            positives_N, negatives_N = weight_N * is_positive_N, weight_N * ~is_positive_N
            bins.add(scores_N.astype(np.uint32), positives_N, negatives_N)


def _area(keys_N: U64) -> float:
    """Area of sorted keys; nan if a class has no weight. Unweighted sums are integers, exact while
    2 * positives * negatives < 2**53 (67 million examples of each class)."""
    last, sums = np.zeros(1, np.uint64), np.zeros(NUM_SUMS)
    for piece in pieces_of(keys_N[np.newaxis]):
        add_sorted(*unpack_scores(piece[0]), last, sums)
    end_tie(sums)
    negative, positive, twice = sums[[NEGATIVE, POSITIVE, TWICE]].tolist()
    if negative == 0 or positive == 0:
        return float("nan")
    return min(1.0, twice / (2 * positive * negative))


def score_bytes(num_examples: int) -> int:
    """Maximum bytes of memory that the AUC of this many examples takes."""
    return 8 * min(num_examples, EXACT_SCORES) + (BINS_BYTES if num_examples > EXACT_SCORES else 0)
