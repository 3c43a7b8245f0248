"""AUC within each group of examples (all of one user, say), averaged over the groups.

Zhu et al., Optimized Cost per Click in Taobao Display Advertising, KDD 2017. A group's weight is its number of
examples, as in FuxiCTR's `gAUC`, or the sum of their sample weights if examples have weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.kernels.group_areas import AREA, COUNTED, NUM_SUMS, WEIGHT, add_groups, end_group
from pipeline.metrics.auc import SPILL_BOUND, pack_scores, unpack_scores
from pipeline.metrics.spill import SortedSpill
from pipeline.records import F32, U64

GROUP_BOUND = SPILL_BOUND // 4
"""Examples held in memory per label; more are spilled to disk as sorted runs."""
GROUP_BYTES = 32
"""Bytes per example: 16 held, and 16 more during sorting."""


class GroupAUC:
    """Exact AUC within groups, with ties (half credit) and weights. Memory: 16 bytes per example for up to `bound`
    examples, and 16 more during sorting. Examples beyond `bound` are sorted and spilled to files in `spill_dir`, 16
    bytes per example.

    The result has the same bits for every `bound` and every order of the examples.
    """

    def __init__(self, spill_dir: Path, bound: int = GROUP_BOUND) -> None:
        self.entries = SortedSpill(spill_dir, bound, num_words=2)

    def add(self, scores_B: F32, labels_B: F32, groups_B: U64, weights_B: F32 | None = None) -> None:
        """Add a copy of a batch; examples with equal `groups_B` are one group. Raises ValueError as `pack_scores` does;
        then nothing is added."""
        self.entries.add(groups_B, pack_scores(scores_B, labels_B, weights_B))

    def result(self) -> tuple[float, float]:
        """Return the weighted mean of the groups' AUCs, over all examples since the last call, and the share of the
        total weight in groups that counted. A group's weight is its number of examples, or the sum of their weights.

        A group in which a class is absent or has no weight does not count. The mean is nan if no group counts, the
        share is nan if there is no weight.
        """
        last, sums = np.zeros(2, np.uint64), np.zeros(NUM_SUMS)
        for groups_N, keys_N in self.entries.take():
            add_groups(groups_N, *unpack_scores(keys_N), last, sums)
        end_group(sums)
        area, counted, weight = sums[[AREA, COUNTED, WEIGHT]].tolist()
        return area / counted if counted else float("nan"), counted / weight if weight else float("nan")
