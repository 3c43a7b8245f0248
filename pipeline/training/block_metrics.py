"""Results of a block: its mean loss, and the metrics of its split after the split's last block."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import numpy as np

from pipeline.metrics.evaluation import Evaluation
from pipeline.records import F32, U64, Block, BlockResult, Examples, SplitSums
from pipeline.spans.passes import ARRIVAL

Truth = tuple[F32, F32 | None, U64 | None]
"""Labels [N, T], weights [N] or None, and groups [N] or None of a block."""


def truth_of(examples: Examples) -> Truth:
    """Labels, weights and groups of a block, for its metrics. They are copies because the read buffer may be
    overwritten before the metrics are computed."""
    return deepcopy((examples.labels_NT, examples.weights_N, examples.groups_N))


class BlockMetrics:
    """Computes the results of a run's blocks, in order."""

    def __init__(self, evaluation: Evaluation, alone: bool = True) -> None:
        """`alone`: True if this worker has all examples. Otherwise the driver computes metrics from the sums of all
        workers."""
        self.returns_scores = False
        """True to return the scores of evaluated blocks instead of computing metrics from them."""
        self._evaluation = evaluation
        self._alone = alone
        self._clipped = self._clippable = 0.0
        self._scores: dict[int, list[Iterator[U64]]] = {}

    def of(self, block: Block, results_K4: F32, scores_NT: F32 | None, truth: Truth | None) -> BlockResult:
        """Return the block's mean loss and, if it closes an evaluated split, the metrics of the split. Metrics of the
        training split cover the examples that this session trained on.

        Columns of `results_K4`: loss, its weight and, with CowClip, the numbers of clipped rows and of all rows. Raises
        FloatingPointError if a loss is not finite.
        """
        losses_K, weights_K, clipped_K, rows_K = results_K4.T.astype(np.float64)
        if block.split == ARRIVAL:
            # Labels may be null.
            losses_K[:] = 0.0
        for batch in np.flatnonzero(~np.isfinite(losses_K)).tolist():
            where = f"batch {block.first_batch + batch} of epoch {block.epoch + 1}"
            raise FloatingPointError(
                f"the loss of {where} is {losses_K[batch]}: lower optimizer.dense.lr or optimizer.rows.lr, or look for "
                "large values in data.weight and data.numbers, or a large model.init_std"
            )
        if self.returns_scores:
            return BlockResult(block, 0.0, {}, scores_NT=scores_NT)
        if truth and scores_NT is not None:
            self._score(block, scores_NT, *truth)
        if block.trains:
            self._clipped += float(clipped_K.sum())
            self._clippable += float(rows_K.sum())
        weight = float(weights_K.sum())
        loss = float((losses_K * weights_K).sum()) / max(weight, 1e-300)
        evaluated = scores_NT is not None
        metrics = self._metrics(block, evaluated) if block.closes_split and self._alone else {}
        closed = self._close(block, evaluated) if block.closes_split and not self._alone else None
        return BlockResult(block, loss, metrics, weight, closed)

    def _metrics(self, block: Block, evaluated: bool) -> dict[str, float]:
        metrics = self._evaluation.result() if evaluated else {}
        if block.trains and self._clippable:
            metrics["clipped"] = self._clipped / self._clippable
            self._clipped = self._clippable = 0.0
        return metrics

    def _close(self, block: Block, evaluated: bool) -> SplitSums | None:
        """Return this worker's metric sums of the split, and keep its scores for `scores`. Returns None if nothing was
        evaluated."""
        if not evaluated and not (block.trains and self._clippable):
            return None
        sums = None
        if evaluated:
            sums, self._scores[block.number] = self._evaluation.close()
        closed = SplitSums(sums)
        if block.trains:
            closed = replace(closed, clipped=self._clipped, clippable=self._clippable)
            self._clipped = self._clippable = 0.0
        return closed

    def scores(self, number: int, table: int) -> U64 | None:
        """Return the next piece of the entries of a table (see `Evaluation.close`) for the split that block `number`
        closed, or None after the last piece."""
        return next(self._scores[number][table], None)

    def _score(self, block: Block, scores_NT: F32, labels_NT: F32, weights_N: F32 | None, groups_N: U64 | None) -> None:
        for batch in range(block.num_batches):
            of = slice(*block.batch_bounds(batch))
            weights_B = None if weights_N is None else weights_N[of]
            groups_B = None if groups_N is None else groups_N[of]
            self._evaluation.add(scores_NT[of], labels_NT[of], weights_B, groups_B)
