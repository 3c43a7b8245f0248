"""AUC within each group of examples (a user's, say), averaged over the groups: how well it ranks what one group saw.

Zhu et al., Optimized Cost per Click in Taobao Display Advertising, KDD 2017; weighted by the examples of each group, as
in FuxiCTR's `gAUC`, and here by their sample weights where there are some.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.kernels.group_areas import AREA, COUNTED, NUM_SUMS, WEIGHT, add_groups, end_group
from pipeline.monitor.auc import SPILL_BOUND, pack_scores, unpack_scores
from pipeline.monitor.spill import SortedSpill
from pipeline.records import F32, U64

GROUP_BOUND = SPILL_BOUND // 4
"""Examples held in memory for a label; what is more goes to disk as sorted runs."""
GROUP_BYTES = 32
"""Of one example: 16 to hold, and 16 while they are sorted."""


class GroupAUC:
    """Exact, with ties (half credit) and weights; in memory 16 bytes an example for up to `bound` examples, and 16 more
    while they are sorted. What exceeds `bound` is sorted and spilled to files in `spill_dir`, 16 bytes an example.

    The result has the same bits for every `bound` and every order of the examples.
    """

    def __init__(self, spill_dir: Path, bound: int = GROUP_BOUND) -> None:
        self.entries = SortedSpill(spill_dir, bound, num_words=2)

    def add(self, scores_B: F32, labels_B: F32, groups_B: U64, weights_B: F32 | None = None) -> None:
        """Take a batch, copied; equal `groups_B` are one group. ValueError as of `pack_scores`, nothing taken."""
        self.entries.add(groups_B, pack_scores(scores_B, labels_B, weights_B))

    def result(self) -> tuple[float, float]:
        """The mean of the groups' AUCs, each weighted by the number of the group's examples (by their weight, if they
        have one), of all examples since the last result; and the share of the examples (of their weight) that counted.

        A group in which a class is absent, or has no weight, does not count. nan where nothing counts.
        """
        last, sums = np.zeros(2, np.uint64), np.zeros(NUM_SUMS)
        for groups_N, keys_N in self.entries.take():
            add_groups(groups_N, *unpack_scores(keys_N), last, sums)
        end_group(sums)
        area, counted, weight = sums[[AREA, COUNTED, WEIGHT]].tolist()
        return area / counted if counted else float("nan"), counted / weight if weight else float("nan")
