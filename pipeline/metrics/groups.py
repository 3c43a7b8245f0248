"""Metrics within each group of examples (for example, all of one user), averaged over the groups.

gauc: AUC weighted by a group's number of examples, as in FuxiCTR's `gAUC`, or by the sum of their sample weights if
examples have weights (Zhu et al., Optimized Cost per Click in Taobao Display Advertising, KDD 2017). recall and ndcg:
those of the K highest scores (see `pipeline.kernels.group_ranks`). Every group with a positive has equal weight, and
sample weights are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pipeline.kernels.group_areas import AREA, COUNTED, NUM_SUMS, WEIGHT, add_groups, end_group
from pipeline.kernels.group_ranks import add_ranks, end_ranks
from pipeline.metrics.auc import Entries, pack_scores, pieces_of, unpack_scores
from pipeline.records import F32, U64

GROUP_BYTES = 32
"""Bytes of memory per example: 16, and 16 more during sorting."""


class GroupMetrics:
    """Exact metrics within groups. Ties get half credit in AUC and expected credit in ranks. Memory: `GROUP_BYTES` per
    example. The result has the same bits for every order of the examples."""

    def __init__(self, top: int = 0) -> None:
        """`top`: number of ranks K for recall and ndcg; 0 omits them."""
        self._top = top
        self._entries = Entries(num_words=2)

    def add(self, scores_B: F32, labels_B: F32, groups_B: U64, weights_B: F32 | None = None) -> None:
        """Add a copy of a batch. Examples with equal `groups_B` form one group. Raises ValueError like `pack_scores`,
        without adding anything."""
        self.join(np.stack([groups_B, pack_scores(scores_B, labels_B, weights_B)]))

    def join(self, words_2N: U64) -> None:
        """Add a piece of what `take` yielded."""
        self._entries.add(words_2N)

    def take(self) -> Iterator[U64]:
        """Return an iterator over all examples since the last call, in pieces for the `join` of another object."""
        return pieces_of(self._entries.take())

    def result(self) -> dict[str, float]:
        """Return the metrics of all examples since the last call. `gauc`: weighted mean of the groups' AUCs, nan if no
        group counts. `gauc_share`: share of the total weight in groups that count, nan if there is no weight. A group
        in which a class is absent or has no weight does not count. With `top` also `recall` and `ndcg`: means over the
        groups with a positive, nan if there are none."""
        last, sums = np.zeros(2, np.uint64), np.zeros(NUM_SUMS)
        open_4, ties_K2, ranks_3 = np.zeros(4, np.uint64), np.zeros((max(1, self._top), 2), np.int64), np.zeros(3)
        for groups_N, keys_N in pieces_of(_sorted(self._entries.take())):
            scores_N, is_positive_N, weights_N = unpack_scores(keys_N)
            add_groups(groups_N, scores_N, is_positive_N, weights_N, last, sums)
            if self._top:
                add_ranks(groups_N, scores_N, is_positive_N, open_4, ties_K2, ranks_3)
        end_group(sums)
        end_ranks(open_4, ties_K2, ranks_3)
        area, counted, weight = sums[[AREA, COUNTED, WEIGHT]].tolist()
        metrics = {"gauc": _mean(area, counted), "gauc_share": _mean(counted, weight)}
        if self._top:
            recall, ndcg, groups = ranks_3.tolist()
            metrics |= {"recall": _mean(recall, groups), "ndcg": _mean(ndcg, groups)}
        return metrics


def _sorted(words_2N: U64) -> U64:
    """Sort entries in place, by group, then by score."""
    order_N = np.lexsort(words_2N[::-1])
    for word_N in words_2N:
        word_N[:] = word_N[order_N]
    return words_2N


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan
