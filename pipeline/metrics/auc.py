"""Exact area under the ROC curve of any number of examples, in bounded memory.

An example is one sortable 64-bit key: 32 bits of score (mapped so that integers sort like the floats), 1 bit of label,
31 bits of weight (a non-negative float32 needs no sign bit). Sorting the keys gives one fixed order of the examples,
including ties, whatever the order of arrival and the spilled runs. Terms are summed one by one in that order, so the
result has the same bits for every `bound`, weighted or not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.area import NEGATIVE, NUM_SUMS, POSITIVE, TWICE, add_sorted, end_tie
from pipeline.metrics.spill import SortedSpill
from pipeline.records import F32, U64

F64 = NDArray[np.float64]

SIGN = np.uint32(1 << 31)
LABEL = np.uint64(1 << 31)
WEIGHT = np.uint64((1 << 31) - 1)
SPILL_BOUND = 1 << 24
"""Maximum number of examples in memory per label. More are spilled to disk as sorted runs."""
SCORE_BYTES = 8
"""Bytes in memory per example."""


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


def scores_of(keys_N: U64) -> F32:
    """[N] scores of keys; -0.0 has become 0.0."""
    ordered_N = (keys_N >> np.uint64(32)).astype(np.uint32)
    return np.where(ordered_N >= SIGN, ordered_N ^ SIGN, ~ordered_N).view(np.float32)


def _weight_bits(weights_B: F32 | None) -> U64 | np.uint64:
    if weights_B is None:
        return np.uint64(np.float32(1).view(np.uint32))
    check_weights(weights_B)
    return (weights_B + np.float32(0)).view(np.uint32).astype(np.uint64)


def running(start: float, terms_N: F64) -> F64:
    """[N + 1] `start` plus the first 0 .. N terms. Uses `cumsum`, which adds one by one; `sum` adds in pairs, so its
    result would depend on where a chunk ends."""
    return np.cumsum(np.concatenate(([start], terms_N)))


class Area:
    """Sums over sorted keys that arrive in chunks. A tie may span chunks. The bits of the result do not depend on the
    division into chunks.

    Unweighted sums are integers, exact while 2 * positives * negatives < 2**53 (67 million examples of each class).
    """

    def __init__(self) -> None:
        self._last, self._sums = np.zeros(1, np.uint64), np.zeros(NUM_SUMS)

    def add(self, keys_N: U64) -> None:
        """Add the next keys: sorted, and none lower than earlier keys."""
        add_sorted(*unpack_scores(keys_N), self._last, self._sums)

    def result(self) -> float:
        """Return the area, or nan if a class has no weight. Nothing can be added afterwards."""
        end_tie(self._sums)
        negative, positive, twice = self._sums[[NEGATIVE, POSITIVE, TWICE]].tolist()
        if negative == 0 or positive == 0:
            return float("nan")
        return min(1.0, twice / (2 * positive * negative))


class ExactAUC:
    """Exact AUC with ties (half credit) and weights. Takes 8 bytes of memory per example for up to `bound` examples.

    Examples beyond `bound` are sorted and spilled to files in `spill_dir`.
    """

    def __init__(self, spill_dir: Path, bound: int = SPILL_BOUND) -> None:
        self.entries = SortedSpill(spill_dir, bound)

    def add(self, scores_B: F32, labels_B: F32, weights_B: F32 | None = None) -> None:
        """Add a copy of a batch: scores of any scale, labels 0 or 1. Raises ValueError like `pack_scores`, without
        adding anything."""
        self.entries.add(pack_scores(scores_B, labels_B, weights_B))

    def result(self) -> float:
        """Return the AUC of all examples since the last call; nan if a class is absent or has no weight."""
        area = Area()
        for (keys_N,) in self.entries.take():
            area.add(keys_N)
        return area.result()
