"""Update of narrow rows by one step on the CPU. A few rows at a time are widened, updated and narrowed again while they
are in the CPU caches. A GPU does the same with a buffer for all rows of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.narrow_rows import narrow_cpu, widen_cpu
from pipeline.kernels.room import need_cpu
from pipeline.kernels.update_rows import update_rows_cpu
from pipeline.records import F32, I32, U32

WIDE_TILE_WORDS = 1 << 12
"""Maximum number of words of the wide rows that are updated together; at least one row is."""


@cpu
def update_narrow_rows_cpu(
    words_SW: U32, parts_N4: I32, num_wide_words: int, stream: np.uint64, rule: int, weights_at: int, last_at: int,
    rows_P: I32, grads_PC: F32, starts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...],
    whole: bool,
) -> None:  # fmt: skip
    """Update the narrow rows `rows_P` of a slab. `weights_at` and `last_at` are places in the wide row; see
    `narrow_rows` and `update_rows` for the other arguments."""
    need_cpu(min(grads_PC.shape[0], starts_P.size - 1), rows_P.size)
    need_cpu(num_wide_words, last_at + 2)
    need_cpu(rates_T4.shape[0], step + 1)
    tile = max(1, WIDE_TILE_WORDS // num_wide_words)
    wide_TX, at_T = np.empty((tile, num_wide_words), np.uint32), np.arange(tile).astype(np.int32)
    floats_TX = wide_TX.view(np.float32)
    for begin in range(0, rows_P.size, tile):
        end = min(begin + tile, rows_P.size)
        widen_cpu(words_SW, words_SW, rows_P, begin, end, parts_N4, wide_TX)
        update_rows_cpu(
            rule, floats_TX, wide_TX, weights_at, last_at, at_T[: end - begin], grads_PC[begin:end],
            starts_P[begin : end + 1], dim, step, rates_T4, settings, whole,
        )  # fmt: skip
        narrow_cpu(wide_TX, rows_P, begin, end, parts_N4, stream, False, words_SW)
