"""Latest occurrence of each key in a sequence of blocks. The earliest blocks are forgotten in order."""

from __future__ import annotations

import numpy as np

from pipeline.kernels.link_keys import ENTRY_BYTES, NO_EARLIER, enter_live, link_keys
from pipeline.records import I64, U64

MIN_ENTRIES = 1 << 10
ENTRIES_PER_KEY = 3
"""Number of table entries per distinct key when the table is built. It is rebuilt when half full."""


class Newest:
    """Table of keys. Occurrences are numbered from 0 in the order in which they are added."""

    def __init__(self) -> None:
        self.first = self.end = 0
        """Number of the first occurrence that counts, set by the owner, and number of the next occurrence."""
        self._table_E2: I64 = np.full((MIN_ENTRIES, 2), NO_EARLIER, np.int64)
        self._num_entries = 0

    def add(self, keys_U: U64) -> I64:
        """Assign the next numbers to the keys. Returns the numbers [U] of their latest earlier occurrences; a number
        below `first` means that none counts."""
        if self._is_full(len(keys_U)):
            made_E2: I64 = np.full((self._entries_for(len(keys_U)), 2), NO_EARLIER, np.int64)
            self._num_entries = enter_live(self._table_E2, self.first, made_E2)
            self._table_E2 = made_E2
        earlier_U = np.empty(len(keys_U), np.int64)
        self._num_entries += link_keys(keys_U, self.end, self._table_E2, earlier_U)
        self.end += len(keys_U)
        return earlier_U

    def bytes_with(self, num_keys: int) -> int:
        """Size of the table in bytes after `num_keys` more keys are added."""
        return ENTRY_BYTES * self._entries_for(num_keys)

    def _is_full(self, num_new: int) -> bool:
        return 2 * (self._num_entries + num_new) > len(self._table_E2)

    def _entries_for(self, num_new: int) -> int:
        """Number of table entries with `num_new` more keys. If the table is full, keys without an occurrence that
        counts are left out."""
        if not self._is_full(num_new):
            return len(self._table_E2)
        live = np.count_nonzero(self._table_E2[:, 1] >= self.first)
        return max(MIN_ENTRIES, 1 << int(ENTRIES_PER_KEY * (live + num_new)).bit_length())
