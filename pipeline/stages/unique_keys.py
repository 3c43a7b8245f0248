"""Unique keys of blocks, read from the categorical columns alone. Used where keys are needed long before their rows, or
without them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.data.identity import Begun
from pipeline.data.source import Source
from pipeline.kernels.dedup import drop_repeats
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.machine.threads import Threads
from pipeline.records import I64, RESERVED, U64, Block
from pipeline.workflow import Data

RECENT_KEYS = 1 << 13
"""Number of keys per column that are remembered to drop repeats: 64 KiB, which fits in a fast cache. Of 3.4 M values
with 0.34 M unique keys, 0.61 M remain with 2^12, 0.51 M with 2^13, 0.44 M with 2^14."""


class KeyReader:
    """Reader of the unique keys of any block, cheapest if blocks are read in order. Only one thread at a time may use
    it."""

    def __init__(self, data: Data, seed: int, num_threads: int = 1, begun: Begun | None = None) -> None:
        """Read every file's metadata. `begun`: see `files_of_splits`. Raises ValueError if a pattern or a column does
        not fit the files."""
        self.source = Source(data, seed, num_threads, keys_only=True, begun=begun)
        self._threads = Threads(num_threads, "keys")
        self._block = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self.num_values = 0
        """Number of key values that were read, including repeats."""

    def distinct_keys(self, block: Block) -> U64:
        """Unique keys [U] of the whole block, in an order that is a function of the block. It does not order the
        examples, and it drops recently seen keys before looking up the others."""
        self._block.clear()
        for window, at_N in self.source.places(block):
            columns, bags = list(window.decoded_keys()), list(window.bag_keys(at_N))
            self.num_values += len(at_N) * len(columns) + sum(map(len, bags))
            for keys_V in [*self._without_repeats(columns, at_N), *bags]:
                self._block.add(keys_V, np.empty(len(keys_V), np.int32))
        return self._block.keys_U.copy()

    def _without_repeats(self, columns: Sequence[U64], at_N: I64) -> list[U64]:
        """Keys at these places of each column, without most duplicates."""
        kept: list[U64] = [np.empty(0, np.uint64)] * len(columns)

        def some(begin: int, end: int) -> None:
            kept_N = np.empty(len(at_N) + 1, np.uint64)
            for column in range(begin, end):
                recent = np.full(RECENT_KEYS, RESERVED, np.uint64)
                kept[column] = kept_N[: drop_repeats(columns[column], at_N, recent, kept_N)].copy()

        self._threads.split(len(columns), some, minimum=1)
        return kept

    def close(self) -> None:
        """Stop the threads and close the files. May be called twice."""
        self._threads.close()
        self.source.close()
