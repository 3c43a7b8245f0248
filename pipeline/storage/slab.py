"""The device and the host tier: one array of rows."""

from __future__ import annotations

import numpy as np

from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.memory import aligned_empty
from pipeline.records import F32, I32, I64, U32


class Slab:
    """`num_rows` slots for rows of `num_words`. Has one writer: `train` for the device, `write_back` for the host."""

    def __init__(self, num_rows: int, num_words: int) -> None:
        self.words_SW: U32 = aligned_empty((num_rows, num_words), np.uint32)

    @property
    def floats_SW(self) -> F32:
        return self.words_SW.view(np.float32)

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        gather_rows(self.words_SW, at_U, out_UW)

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        scatter_rows(self.words_SW, at_U, rows_UW)

    def close(self) -> None:
        self.words_SW = self.words_SW[:0]
