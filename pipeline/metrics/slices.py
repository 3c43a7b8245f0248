"""Metrics of each value of a column, such as a site's category, and the values with the worst predictions.

The worst value is the one whose calibration most certainly differs from 1: its 95 % interval is farthest from 1 on a
logarithmic scale or, if it contains 1, extends least beyond 1. Calibration is the expected number of positives divided
by the observed number. If the latter is Poisson distributed, its mean is between Byar's limits (Breslow and Day,
Statistical Methods in Cancer Research II, IARC 1987, chapter 2). Values with fewer than `LEAST` positives, both
expected and observed, come after all others, by number of examples: among many rare values, some differ by chance. If
examples have weights, counts are effective sample sizes (squared sum of the weights divided by the sum of their
squares; Kish, Survey Sampling, 1965).

N examples
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.metrics.auc import Area, pack_scores, running, scores_of, unpack_scores
from pipeline.metrics.rates import cross_entropy, probability, rates
from pipeline.metrics.spill import SortedSpill
from pipeline.records import F32, U64, SliceFigures

NUM_WORST = 10
LEAST = 10
"""Minimum number of positives, expected or observed, for a value to be judged."""
Z = 1.96
"""Half-width of the interval in standard deviations."""
Rank = tuple[float, int]
"""Distance of the interval from 1, and number of examples; the larger, the worse."""


class SliceMetrics:
    """Exact metrics of each value of a column, for one label that is 0 or 1. Memory: as for `GroupMetrics`. Time: about
    100 microseconds per value. The result has the same bits for every `bound` and every order of the examples."""

    def __init__(self, spill_dir: Path, bound: int, column: str, label: str) -> None:
        self._column, self._label = column, label
        self.entries = SortedSpill(spill_dir, bound, num_words=2)

    def add(self, scores_B: F32, labels_B: F32, values_B: U64, weights_B: F32 | None = None) -> None:
        """Add a copy of a batch. Examples with equal `values_B` form one slice. Raises ValueError like `pack_scores`,
        without adding anything."""
        self.entries.add(values_B, pack_scores(scores_B, labels_B, weights_B))

    def worst(self) -> list[SliceFigures]:
        """Return the `NUM_WORST` worst slices of all examples since the last call, the worst first."""
        num_slices, kept = 0, list[tuple[Rank, int, SliceFigures]]()
        for num_slices, (rank, figures) in enumerate(self._slices(), 1):
            # Of equally bad slices, keep the one with the lower key.
            heapq.heappush(kept, (rank, -num_slices, figures))
            if len(kept) > NUM_WORST:
                heapq.heappop(kept)
        return [replace(figures, num_slices=num_slices) for _, _, figures in sorted(kept, reverse=True)]

    def _slices(self) -> Iterator[tuple[Rank, SliceFigures]]:
        """Yield the rank and the figures of each slice, in key order."""
        opened: _Slice | None = None
        for keys_N, packed_N in self.entries.take():
            scores_N, (_, is_positive_N, weights_N) = scores_of(packed_N), unpack_scores(packed_N)
            label_N, weight_N = is_positive_N.astype(np.float32), weights_N.astype(np.float64)
            terms_6N = np.stack([
                weight_N * cross_entropy(scores_N, label_N), weight_N * probability(scores_N), weight_N * label_N,
                weight_N, weight_N**2, label_N,
            ])  # fmt: skip
            bounds = [0, *(np.flatnonzero(np.diff(keys_N)) + 1).tolist(), len(keys_N)]
            for begin, end in pairwise(bounds):
                if opened is None or opened.key != keys_N[begin]:
                    if opened:
                        yield opened.figures(self._column, self._label)
                    opened = _Slice(int(keys_N[begin]))
                opened.add(packed_N[begin:end], terms_6N[:, begin:end])
        if opened:
            yield opened.figures(self._column, self._label)


class _Slice:
    """Sums of one slice, added term by term in the order of its sorted entries."""

    def __init__(self, key: int) -> None:
        self.key = key
        self._area, self._count, self._sums_6 = Area(), 0, [0.0] * 6

    def add(self, packed_N: U64, terms_6N: np.ndarray) -> None:
        self._area.add(packed_N)
        self._count += len(packed_N)
        self._sums_6 = [running(start, of_N)[-1] for start, of_N in zip(self._sums_6, terms_6N, strict=True)]

    def figures(self, column: str, label: str) -> tuple[Rank, SliceFigures]:
        loss, predicted, clicked, weight, squares, positives = map(float, self._sums_6)
        found, equal = rates(loss, predicted, clicked, weight), weight / squares if squares else 0.0
        low, high = interval(predicted * equal, clicked * equal)
        figures = SliceFigures(
            column, label, self.key, self._count, int(positives), self._area.result(), found["ne"],
            found["calibration"], low, high,
        )  # fmt: skip
        is_judged = max(predicted, clicked) * equal >= LEAST
        return (_distance(low, high) if is_judged else -math.inf, self._count), figures


def interval(expected: float, observed: float) -> tuple[float, float]:
    """Interval of the ratio of the expected to the observed number of positives. (nan, nan) if both are 0; no upper end
    (nan) if so few were observed that their mean may be 0."""
    if not expected and not observed:
        return math.nan, math.nan
    more = observed + 1
    most = more * (1 - 1 / (9 * more) + Z / (3 * math.sqrt(more))) ** 3
    root = 1 - 1 / (9 * observed) - Z / (3 * math.sqrt(observed)) if observed else 0.0
    return expected / most, expected / (observed * root**3) if root > 0 else math.nan


def _distance(low: float, high: float) -> float:
    """Distance of an interval from 1 on a logarithmic scale; negative if it contains 1. An interval without an upper
    end is unbounded above."""
    below = -math.log(high) if high > 0 else -math.inf if math.isnan(high) else math.inf
    return max(math.log(low) if low > 0 else -math.inf, below)
