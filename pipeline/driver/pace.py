"""How far ahead is planned, and in how large blocks: as much as fits, and less where `plan` says that it does not."""

from __future__ import annotations

from pipeline.preflight.first_window import reductions
from pipeline.preflight.sizes import Fit
from pipeline.records import Refusal


class Pace:
    def __init__(self, fit: Fit) -> None:
        self.look_ahead, self.block_batches = fit.look_ahead, fit.block_batches

    def reduce(self, refusal: Refusal) -> str | None:
        """Take a smaller look-ahead, then smaller blocks; what a user should read of it, or None if both are at their
        least."""
        batches = self.block_batches if self.look_ahead else min(self.block_batches, refusal.block.num_batches)
        smaller = reductions(self.look_ahead, batches)[1:]
        if not smaller:
            return None
        self.look_ahead, self.block_batches = smaller[0]
        return f"look-ahead {self.look_ahead}, blocks of {self.block_batches} batches from here: {refusal.message}"
