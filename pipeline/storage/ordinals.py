"""Ordinals of the chunks on disk. Chunk numbers grow without bound. Ordinals are reused after their chunks are deleted,
so the key map needs few bits for the row of a chunk."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pipeline.records import I64

NONE = -1


class Ordinals:
    """Ordinal of each chunk on disk. `len` returns the number of chunks on disk."""

    def __init__(self) -> None:
        self._of_C: I64 = np.full(64, NONE, np.int64)
        """Ordinal of each chunk; NONE if the chunk is not on disk."""
        self._chunk_O: I64 = np.full(64, NONE, np.int64)
        self._free = list(range(63, -1, -1))

    def __len__(self) -> int:
        return len(self._chunk_O) - len(self._free)

    def add(self, chunks: I64) -> None:
        """Assign an ordinal to each of these chunks, which have none."""
        while len(self._free) < len(chunks):
            self._free += range(2 * len(self._chunk_O) - 1, len(self._chunk_O) - 1, -1)
            self._chunk_O = _doubled(self._chunk_O)
        while len(chunks) and chunks.max() >= len(self._of_C):
            self._of_C = _doubled(self._of_C)
        given = [self._free.pop() for _ in chunks]
        self._of_C[chunks] = given
        self._chunk_O[given] = chunks

    def keep(self, chunks: Collection[int]) -> None:
        """Free the ordinals of all other chunks."""
        held = np.flatnonzero(self._chunk_O != NONE)
        gone = held[~np.isin(self._chunk_O[held], np.fromiter(chunks, np.int64, len(chunks)))]
        self._of_C[self._chunk_O[gone]] = NONE
        self._chunk_O[gone] = NONE
        self._free += gone[::-1].tolist()

    def short(self, at_N: I64, chunk_rows: int) -> I64:
        """Log positions with the ordinals of their chunks in place of the chunks' numbers."""
        chunk_N = at_N // chunk_rows
        return at_N + (self._of_C[chunk_N] - chunk_N) * chunk_rows

    def long(self, short_N: I64, chunk_rows: int) -> I64:
        """The inverse of `short`."""
        ordinal_N = short_N // chunk_rows
        return short_N + (self._chunk_O[ordinal_N] - ordinal_N) * chunk_rows


def _doubled(array: I64) -> I64:
    return np.concatenate([array, np.full(len(array), NONE, np.int64)])
