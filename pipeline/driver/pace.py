"""The look-ahead and block size of a run: at first what fits the caps; smaller after `plan` refuses a block."""

from __future__ import annotations

from pipeline.preflight.first_window import reductions
from pipeline.preflight.larger_caps import raise_to
from pipeline.preflight.setup import Setup
from pipeline.records import Refusal


class Pace:
    def __init__(self, look_ahead: int, block_batches: int) -> None:
        self.look_ahead, self.block_batches = look_ahead, block_batches

    def reduce(self, refusal: Refusal) -> bool:
        """Reduce the look-ahead or, if it is 0, the block size. Returns False if both are already at their minimum."""
        batches = self.block_batches if self.look_ahead else min(self.block_batches, refusal.block.num_batches)
        smaller = reductions(self.look_ahead, batches)[1:]
        if smaller:
            self.look_ahead, self.block_batches = smaller[0]
        return bool(smaller)


def reduce_pace(pace: Pace, refusal: Refusal, setup: Setup) -> str | None:
    """Reduce the pace. Returns a remark for the user, or None if the pace is already at its minimum."""
    why = f"{refusal.message}{raise_to(refusal, setup, pace.look_ahead)}"
    if not pace.reduce(refusal):
        return None
    return f"look-ahead {pace.look_ahead}, blocks of {pace.block_batches} batches from here: {why}"
