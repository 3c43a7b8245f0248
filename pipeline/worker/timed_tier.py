"""A tier that times its row moves as a part of the calling stage."""

from __future__ import annotations

from pipeline.machine.stopwatch import part
from pipeline.records import I32, I64, U32
from pipeline.storage.tier import Tier


class TimedTier:
    """Wrapper of a tier that times it under a name."""

    def __init__(self, tier: Tier, name: str) -> None:
        self._tier, self._name = tier, name
        self.where = tier.where

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        with part(self._name):
            self._tier.gather(at_U, out_UW)

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        with part(self._name):
            self._tier.scatter(at_U, rows_UW)

    def close(self) -> None:
        self._tier.close()
