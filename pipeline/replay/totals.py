"""Hits and traffic of a replay: of each worker, of all together, and block by block."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from pipeline.metrics.totals import DiskTotals, TierTotals
from pipeline.records import Block, Moves, Refusal


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Row counts of one block's plans."""

    block: Block
    moves: tuple[Moves | None, ...]
    """Counts of each worker; None for one that did not plan the block."""


Snapshot = tuple[list[TierTotals], DiskTotals, int]
"""Totals of each worker and of the disk, and the number of blocks, to which a run may go back."""


@dataclass(slots=True)
class Totals:
    """Sums over all blocks that were planned, those planned twice because of a refusal included, as in a run."""

    workers: list[TierTotals] = field(default_factory=list)
    disk: DiskTotals = field(default_factory=DiskTotals)
    """Counts of commits; seconds and bytes are 0."""
    series: list[BlockMoves] = field(default_factory=list)
    chunks: int = 0
    """Chunks on disk after the last commit."""
    stopped: Refusal | None = None
    """The refusal that ended the run."""

    def add(self, block: Block, moves: Sequence[Moves | None]) -> None:
        """Add the plans of a block; `moves` has one entry for each worker."""
        self.workers += [TierTotals() for _ in moves[len(self.workers) :]]
        self.series.append(BlockMoves(block, tuple(moves)))
        for totals, of_worker in zip(self.workers, moves, strict=False):
            if of_worker:
                totals.add(of_worker)

    def snapshot(self) -> Snapshot:
        """Copy the present totals."""
        return deepcopy(self.workers), replace(self.disk), len(self.series)

    def restore(self, snapshot: Snapshot | None) -> None:
        """Go back to these totals; None: to the beginning."""
        workers, disk, num_blocks = snapshot or ([], DiskTotals(), 0)
        self.workers, self.disk = deepcopy(workers), replace(disk)
        del self.series[num_blocks:]

    @property
    def tiers(self) -> TierTotals:
        """Sums of all workers."""
        return total_of(self.workers)

    def counts(self) -> dict[str, dict[str, int]]:
        """Sums of all `Moves`, separately for training and evaluation, in the form of `TierTotals.counts`."""
        return self.tiers.counts()


def total_of(parts: Sequence[TierTotals]) -> TierTotals:
    """Sum of the totals of several workers or samples."""
    total = TierTotals()
    counts = total.counts()
    for part in parts:
        for kind, of_kind in part.counts().items():
            for name, count in of_kind.items():
                counts[kind][name] += count
    return total
