"""The look-ahead and block size of a run: at first what fits the caps; smaller after `plan` refuses a block."""

from __future__ import annotations

from pipeline.preflight.first_window import reductions
from pipeline.preflight.sizes import Fit
from pipeline.records import Refusal


class Pace:
    def __init__(self, fit: Fit) -> None:
        self.look_ahead, self.block_batches = fit.look_ahead, fit.block_batches

    def reduce(self, refusal: Refusal) -> str | None:
        """Reduce the look-ahead or, if it is 0, the block size. Returns a remark for the user, or None if both are
        already at their minimum."""
        batches = self.block_batches if self.look_ahead else min(self.block_batches, refusal.block.num_batches)
        smaller = reductions(self.look_ahead, batches)[1:]
        if not smaller:
            return None
        self.look_ahead, self.block_batches = smaller[0]
        return f"look-ahead {self.look_ahead}, blocks of {self.block_batches} batches from here: {refusal.message}"
