"""The look-ahead and block size of a run: at first what fits the caps; smaller after `plan` refuses a block."""

from __future__ import annotations

from pipeline.preflight.first_window import reductions
from pipeline.preflight.larger_caps import raise_to
from pipeline.preflight.setup import Setup
from pipeline.records import Refusal


class Pace:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.look_ahead, self.block_batches = setup.fit.look_ahead, setup.fit.block_batches

    def reduce(self, refusal: Refusal) -> str | None:
        """Reduce the look-ahead or, if it is 0, the block size. Returns a remark for the user, or None if both are
        already at their minimum."""
        batches = self.block_batches if self.look_ahead else min(self.block_batches, refusal.block.num_batches)
        smaller = reductions(self.look_ahead, batches)[1:]
        if not smaller:
            return None
        why = f"{refusal.message}{raise_to(refusal, self._setup, self.look_ahead)}"
        self.look_ahead, self.block_batches = smaller[0]
        return f"look-ahead {self.look_ahead}, blocks of {self.block_batches} batches from here: {why}"
