"""Merging the results of several workers, for the tasks of a stretch, into those that one worker would report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pipeline.comm.group import OTHER_WORKERS
from pipeline.metrics.evaluation import Evaluation
from pipeline.records import F32, U64, Block, BlockResult, Moves, Rank, Refusal, SplitSums, StageCall, StageResult
from pipeline.workflow import Workflow

Scores = Callable[[int, int, int], Iterator[U64]]
"""Function of (rank, number of the block that closed a split, table) that yields the scores of a worker in pieces."""


class Merge:
    """Merges the results of all workers in one stretch, and passes the merged results to `watch`."""

    def __init__(self, workflow: Workflow, scores: Scores, watch: Callable[[StageResult], None]) -> None:
        self._workflow, self._scores, self._watch = workflow, scores, watch
        self._parts: dict[int, Sequence[SplitSums]] = {}
        """Metric sums of each worker for a finished split, by the number of the block that closed it."""
        self._closed: list[BlockResult] = []

    def together(self, dones: Sequence[StageResult]) -> StageResult:
        """Merge the results of all workers for one task, in rank order."""
        moves = [done.moves for done in dones if done.moves]
        trained = [done.trained for done in dones if done.trained]
        if any(part.closed for part in trained):
            # On a GPU, the result of a block arrives with a later task, so use the number of the block itself.
            self._parts[trained[0].block.number] = [part.closed or SplitSums() for part in trained]
        return replace(
            dones[0], refusal=first_refusal(dones), moves=sum_of(moves) if moves else None,
            trained=mean_of(trained) if trained else None, call=with_longest_wait([done.call for done in dones]),
        )  # fmt: skip

    def report(self, done: StageResult) -> None:
        """Pass a merged result to `watch`. The result of a block that closes a split is held back until `end`, where
        its metrics can be computed."""
        if done.trained and done.trained.block.number in self._parts:
            self._closed.append(done.trained)
            done = replace(done, trained=None)
        self._watch(done)

    def end(self, of_each: Sequence[Sequence[StageResult]]) -> None:
        """Finish the stretch. `of_each`: results of `Worker.drain` by worker. Passes on the GPU calls of the first
        worker, then the remaining block results merged over all workers, then the closed splits with their metrics."""
        for done in of_each[0]:
            if not done.trained:
                self.report(done)
        for dones in zip(*([done for done in dones if done.trained] for dones in of_each), strict=True):
            self.report(self.together(dones))
        for trained in self._closed:
            number = trained.block.number
            whole = self._with_metrics(trained, self._parts.pop(number))
            self._watch(StageResult("train", number, trained=whole))

    def _with_metrics(self, trained: BlockResult, parts: Sequence[SplitSums]) -> BlockResult:
        """Add the metrics of a split, from the sums and scores of all workers."""
        if any(part.sums is not None for part in parts):
            evaluation = Evaluation.of(self._workflow)
            for rank, part in enumerate(parts):
                if part.sums is not None:
                    evaluation.join(part.sums, partial(self._scores, rank, trained.block.number))
            metrics = evaluation.result()
            trained = replace(trained, metrics=metrics)
        clippable = sum(part.clippable for part in parts)
        clipped = {"clipped": sum(part.clipped for part in parts) / clippable} if clippable else {}
        return replace(trained, metrics=trained.metrics | clipped)


def first_refusal(dones: Sequence[StageResult]) -> Refusal | None:
    """Return the refusal of the earliest block, with the rank of the worker in its message."""
    refusals = [
        replace(done.refusal, message=f"worker {rank}: {done.refusal.message}")
        for rank, done in enumerate(dones)
        if done.refusal
    ]
    # For the same block, a worker's own reason takes precedence over a pause caused by another worker's refusal.
    return min(refusals, key=lambda r: (r.block.number, r.what == "pause"), default=None)


def with_longest_wait(calls: Sequence[StageCall | None]) -> StageCall | None:
    """The first worker's call of a task, with the longest wait of any worker for the others: the worker that all others
    wait for does not wait itself."""
    if not calls[0]:
        return None
    parts = [dict(call.parts) for call in calls if call]
    longest = max(of_worker.get(OTHER_WORKERS, 0.0) for of_worker in parts)
    of_first = parts[0] | ({OTHER_WORKERS: min(longest, calls[0].stop - calls[0].start)} if longest else {})
    return replace(calls[0], parts=tuple(of_first.items()))


def sum_of(moves: Sequence[Moves]) -> Moves:
    names = [name for name in Moves.__slots__ if name != "arrives"]
    return replace(moves[0], **{name: sum(getattr(m, name) for m in moves) for name in names})


def mean_of(trained: Sequence[BlockResult]) -> BlockResult:
    """Merge the results of the parts of a block: the mean loss, weighted by the total example weight of each part."""
    weight = sum(part.weight for part in trained)
    loss = sum(part.loss * part.weight for part in trained) / max(weight, 1e-300)
    scores = [part.scores_NT for part in trained if part.scores_NT is not None]
    joined = join_scores(trained[0].block, scores) if scores else None
    return replace(trained[0], loss=loss, weight=weight, closed=None, scores_NT=joined)


def join_scores(block: Block, scores: Sequence[F32]) -> F32:
    """[N, T] scores of a block, from those of its parts in rank order. A part contains a piece of each batch."""
    pieces: list[F32] = []
    for batch in range(block.num_batches):
        for rank, scores_NT in enumerate(scores):
            begin, end = Rank(rank, len(scores)).part_of(block).batch_bounds(batch)
            pieces.append(scores_NT[begin:end])
    joined_NT: F32 = np.concatenate(pieces)
    return joined_NT
