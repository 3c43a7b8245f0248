"""Cache of a table's pages in RAM. Thread-safe: concurrent calls are serialized by a lock."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.page_rows import PRECISION_NUMBERS, take_rows
from pipeline.kernels.page_slots import NO_PAGE, WAYS, find_slots, insert_pages
from pipeline.machine.memory import aligned_empty
from pipeline.records import F32, I32, U64
from pipeline.serving.pages import U8, PageFormat


class PageCache:
    """Pages by number. `memory_bytes` covers the slots and their bookkeeping; there are at most `num_pages` slots,
    rounded up to a whole set. A new page replaces a page that was not used recently."""

    def __init__(self, memory_bytes: int, num_pages: int, format: PageFormat) -> None:
        num_sets = min(memory_bytes // set_bytes(format.page_bytes), -(-num_pages // WAYS))
        self._page_of_S: I32 = np.full(num_sets * WAYS, NO_PAGE, np.int32)
        self._marked_S: U8 = np.zeros(num_sets * WAYS, np.uint8)
        self._hands: U8 = np.zeros(num_sets, np.uint8)
        self._pages_SB: U8 = aligned_empty((num_sets * WAYS, format.page_bytes), np.uint8)
        self._format = PRECISION_NUMBERS[format.precision], format.max_rows, format.embedding_dim
        self._lock = threading.Lock()
        self._hits = self._misses = self._read = 0

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self._page_of_S, self._marked_S, self._hands, self._pages_SB))

    @property
    def counts(self) -> dict[str, int]:
        """Counts since the table was opened: keys whose page was in the cache, and other keys; pages read from files,
        and their bytes. Fewer pages are read than keys missed if keys of one call share a page."""
        num_bytes = self._read * self._pages_SB.shape[1]
        counts = {"keys_hit": self._hits, "keys_missed": self._misses, "pages_read": self._read}
        return counts | {"bytes_read": num_bytes}

    def take(self, keys_P: U64, pages_P: I32, weights_PC: F32, found_P: NDArray[np.bool_]) -> I32:
        """Write the weights of keys whose page is cached, and set `found_P`. Returns the positions [M] of the other
        keys."""
        members_P, slots_P = np.empty(len(keys_P), np.int32), np.empty(len(keys_P), np.int32)
        with self._lock:
            hits = find_slots(self._page_of_S, self._marked_S, len(self._hands), pages_P, members_P, slots_P)
            self._hits += hits
            self._misses += len(keys_P) - hits
            # Pages stay in their slots until the lock is released.
            take_rows(self._pages_SB, slots_P[:hits], members_P[:hits], keys_P, *self._format, weights_PC, found_P)
        return members_P[hits:]

    def insert(self, pages_R: I32, read_RB: U8) -> None:
        """Insert pages that were read, and count them. Another thread may already have inserted some of them."""
        with self._lock:
            insert_pages(self._page_of_S, self._marked_S, self._hands, self._pages_SB, pages_R, read_RB)
            self._read += len(pages_R)


def set_bytes(page_bytes: int) -> int:
    """Bytes of the smallest cache: the pages of one set, their numbers and marks, and the set's hand."""
    return WAYS * (page_bytes + 5) + 1
