"""Hits and traffic of a replay: per worker, in total, and per block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipeline.metrics.totals import DiskTotals, TierTotals
from pipeline.records import Block, Moves, Refusal


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Row counts of one block's plans."""

    block: Block
    moves: tuple[Moves | None, ...]
    """Counts of each worker; None for a worker that did not plan the block."""


Snapshot = tuple[int, DiskTotals]
"""Number of blocks and disk totals that a run may be reset to."""


@dataclass(slots=True)
class Totals:
    """All planned blocks. As in a run, a block that is planned twice because of a refusal counts twice."""

    series: list[BlockMoves] = field(default_factory=list)
    disk: DiskTotals = field(default_factory=DiskTotals)
    """Commit counts; seconds and bytes are 0."""
    chunks: int = 0
    """Chunks on disk after the last commit."""
    stopped: Refusal | None = None
    """The refusal that ended the run."""

    def snapshot(self) -> Snapshot:
        """Copy the current totals."""
        return len(self.series), replace(self.disk)

    def restore(self, snapshot: Snapshot | None) -> None:
        """Reset to these totals; None: to the start."""
        num_blocks, disk = snapshot or (0, DiskTotals())
        self.disk = replace(disk)
        del self.series[num_blocks:]

    def tiers(self, rank: int | None = None) -> TierTotals:
        """Sums over all workers, or of one."""
        total = TierTotals()
        for of_block in self.series:
            for worker, moves in enumerate(of_block.moves):
                if moves and rank in (None, worker):
                    total.add(moves)
        return total

    def counts(self) -> dict[str, dict[str, int]]:
        """Sums of all `Moves`, separately for training and evaluation, in the form of `TierTotals.counts`."""
        return self.tiers().counts()
