"""The device and the host tier: one array of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.memory import aligned_empty
from pipeline.records import F32, I32, I64, U32
from pipeline.threads import Threads


class Slab:
    """`num_rows` slots for rows of `num_words`. Has one writer: `train` for the device, `write_back` for the host."""

    def __init__(self, num_rows: int, num_words: int, threads: Threads | None = None, name: str = "device") -> None:
        """`threads`: those of the one stage that uses the slab, if it may move rows with all of them."""
        self._name = name
        self._threads = threads
        self.words_SW: U32 = aligned_empty((num_rows, num_words), np.uint32)

    @property
    def floats_SW(self) -> F32:
        return self.words_SW.view(np.float32)

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        self._split(len(at_U), lambda a, b: gather_rows(self.words_SW, at_U[a:b], out_UW[a:b]))

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        self._split(len(at_U), lambda a, b: scatter_rows(self.words_SW, at_U[a:b], rows_UW[a:b]))

    def _split(self, num_rows: int, work: Callable[[int, int], None]) -> None:
        if self._threads:
            self._threads.split(num_rows, work)
        else:
            work(0, num_rows)

    def where(self, at: int) -> str:
        return f"{self._name} slot {at}"

    def close(self) -> None:
        self.words_SW = self.words_SW[:0]
