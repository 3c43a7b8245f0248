"""Trained blocks whose result has not been fetched yet: on a GPU a result is available some blocks later."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from pipeline.records import BlockResult, StageResult, Trained


class Unreported(deque[Trained]):
    def __init__(self, stage: str, later: int) -> None:
        """The result of a block is available after this stage of the block that comes `later` blocks later."""
        super().__init__()
        self._stage, self._later = stage, later

    def after(self, stage: str, number: int) -> BlockResult | None:
        """Take the result of the next block if it is available after this stage of block `number`, else None."""
        if stage != self._stage or not self or self[0].block.number > number - self._later:
            return None
        return _found(self.popleft())

    def take_all(self) -> list[StageResult]:
        """Take all results; call it once the device has finished."""
        results = [StageResult("train", trained.block.number, trained=_found(trained)) for trained in self]
        self.clear()
        return results


def _found(trained: Trained) -> BlockResult:
    assert trained.found
    return replace(trained.found(), block=trained.block)
