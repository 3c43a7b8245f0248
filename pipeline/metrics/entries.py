"""Growing tables of 64-bit entries in memory, and the pieces in which workers send them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.records import U64

PIECE = 1 << 18
"""Number of entries in a piece."""


class Entries:
    """Table of entries of C words each, in order of arrival. Takes 8 C bytes per entry."""

    def __init__(self, num_words: int = 1) -> None:
        self._words_CN: U64 = np.empty((num_words, 0), np.uint64)
        self.count = 0

    def add(self, words_CB: U64) -> None:
        """Add copies of entries."""
        count = self.count + words_CB.shape[1]
        if count > (room := self._words_CN.shape[1]):
            # Pages of the table that no entry has reached take no memory yet.
            grown = np.empty((len(self._words_CN), max(count, 2 * room)), np.uint64)
            grown[:, : self.count] = self._words_CN[:, : self.count]
            self._words_CN = grown
        self._words_CN[:, self.count : count] = words_CB
        self.count = count

    def take(self) -> U64:
        """Return all entries [C, N] since the last call, and forget them."""
        taken_CN = self._words_CN[:, : self.count]
        self._words_CN, self.count = np.empty((len(self._words_CN), 0), np.uint64), 0
        return taken_CN


def pieces_of(words_CN: U64) -> Iterator[U64]:
    """Yield entries [C, n], at most `PIECE` at a time."""
    for begin in range(0, words_CN.shape[1], PIECE):
        yield words_CN[:, begin : begin + PIECE]
