"""AUC of any number of examples, from their weights in bins of the upper bits of their scores.

Bins are only as wide as they must be: all 32 bits of a score count until the examples fill more than `MOST_BINS` bins;
then bins that differ only in the lowest bit are combined, and so on. So the bins follow from the examples alone,
whatever their order and the workers that had them. Sums of whole weights are exact, and others are added in a fixed
order.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels.merge_bins import merge_bins
from pipeline.records import F64, U32, U64

MOST_BINS = 1 << 22
"""Maximum number of bins. With it the bound is below 1e-6 for up to a billion normally distributed logits with any
deviation from 0.01 to 1 and base rate from 1e-4 to 0.2."""
BINS_BYTES = 2 * 20 * MOST_BINS
"""Bytes of the bins: those before and after examples are added."""
SHIFT = np.uint64(63)
"""Bits of a bin's first word that hold the number of lower bits of scores that its list leaves out."""


class ScoreBins:
    """Weights of positives and negatives by bins of scores. K bins."""

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
