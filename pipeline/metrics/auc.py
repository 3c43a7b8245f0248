"""Area under the ROC curve, in bounded memory: exact for 16 million examples, and within a known bound for more.

An example is one sortable 64-bit key: 32 bits of score (mapped so that integers sort like the floats), 1 bit of label,
31 bits of weight (a non-negative float32 needs no sign bit). Sorting the keys gives one fixed order of the examples,
including ties, whatever the order of arrival. Terms are summed one by one in that order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.area import NEGATIVE, NUM_SUMS, POSITIVE, TWICE, add_sorted, end_tie, merge_bins
from pipeline.records import F32, F64, U32, U64

MOST_BINS = 1 << 22
"""Maximum number of bins. With it the bound is below 1e-6 for up to a billion normally distributed logits with any
deviation from 0.01 to 1 and base rate from 1e-4 to 0.2."""
BINS_BYTES = 2 * 20 * MOST_BINS
"""Bytes of the bins: those before and after examples are added."""
SHIFT = np.uint64(63)
"""Bits of a bin's first word that hold the number of lower bits of scores that its list leaves out."""


class ScoreBins:
    """Weights of positives and negatives by bins of the upper bits of scores. K bins.

    Bins are only as wide as they must be: all 32 bits of a score count until the examples fill more than `MOST_BINS`
    bins; then bins that differ only in the lowest bit are combined, and so on. So the bins follow from the examples
    alone, whatever their order and the workers that had them. Sums of whole weights are exact, and others are added in
    a fixed order.
    """

    def __init__(self) -> None:
        self._shift = 0
        """Number of lower bits of scores that are left out."""
        self._scores_K: U32 = np.empty(0, np.uint32)
        self._weights_2K: tuple[F64, F64] = (np.empty(0), np.empty(0))

    def add(self, scores_N: U32, positives_N: F64, negatives_N: F64, shift: int = 0) -> None:
        """Add examples or bins, sorted by score. `scores_N`: integers that sort like the scores, without their lower
        `shift` bits; `positives_N` and `negatives_N`: the weight of each as a positive and as a negative."""
        self._shift = max(self._shift, shift)
        room = min(MOST_BINS, len(self._scores_K) + len(scores_N))
        found: tuple[U32, F64, F64] = np.empty(room, np.uint32), np.empty(room), np.empty(room)
        before, more = (self._scores_K, *self._weights_2K), (scores_N, positives_N, negatives_N)
        while (num := merge_bins(*before, *more, self._shift, *found)) < 0:
            self._shift += 1
        scores, positives, negatives = found
        self._scores_K, self._weights_2K = scores[:num], (positives[:num], negatives[:num])

    def words(self) -> U64:
        """The bins as entries [3, K] for `add_words`: scores with `SHIFT`, weights of positives, weights of
        negatives."""
        scores_K = self._scores_K.astype(np.uint64) << np.uint64(32) | np.uint64(self._shift)
        return np.stack([scores_K, *(weights_K.view(np.uint64) for weights_K in self._weights_2K)])

    def add_words(self, words_3K: U64) -> None:
        """Add what `words` returned, or a part of it."""
        scores_K, positives_K, negatives_K = words_3K
        shift = int((scores_K & SHIFT).max(initial=0))
        scores = (scores_K >> np.uint64(32)).astype(np.uint32)
        self.add(scores, positives_K.view(np.float64), negatives_K.view(np.float64), shift)

    def result(self) -> tuple[float, float]:
        """Return the AUC, with half credit for pairs in one bin, and the maximum of its difference from the AUC of the
        scores themselves; nan if a class has no weight."""
        positives_K, negatives_K = self._weights_2K
        positive, negative = _total(positives_K), _total(negatives_K)
        if positive == 0 or negative == 0:
            return float("nan"), float("nan")
        # A positive ranks above each negative in a lower bin; each negative in its bin counts half.
        twice_K = positives_K * (2 * np.cumsum(negatives_K) - negatives_K)
        tied = _total(positives_K * negatives_K) if self._shift else 0.0
        pairs = 2 * positive * negative
        return min(1.0, _total(twice_K) / pairs), tied / pairs


def _total(terms_K: F64) -> float:
    """Sum of the terms, added one by one."""
    return float(np.cumsum(terms_K)[-1]) if len(terms_K) else 0.0


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
