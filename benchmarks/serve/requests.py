"""Requests of 200 candidates with about 2,000 different keys, a given share of which is in the server's cache.

16 columns describe the user and have one value per request; 10 describe the item and have 200. Keys of the given share
are from a few pages, which the cache holds. Each other key is from the next page of a walk through all other pages.
These are many times the cache, so when the walk returns to a page, the page was evicted long ago.
"""

from __future__ import annotations

import numpy as np

from benchmarks.serve.load import Body, body_of
from benchmarks.serve.servables import NUM_FIELDS, Table, values_of
from pipeline.records import U64

CANDIDATES = 200
USER_FIELDS = 16
NUM_KEYS = USER_FIELDS + (NUM_FIELDS - USER_FIELDS) * CANDIDATES
HOT_SHARE = 0.25
"""Pages of the keys that should be cached, as a share of the cache's slots."""


class Requests:
    """Makes requests one after the other. No key of the walk occurs in two of them."""

    def __init__(self, table: Table, memory_bytes: int, page_bytes: int) -> None:
        self._rng = np.random.default_rng(0)
        num_hot = min(int(HOT_SHARE * memory_bytes / page_bytes), len(table.fences_N) // 2)
        pages = self._rng.permutation(len(table.fences_N))
        firsts = np.append(table.first_keys, len(table.keys_N))
        self._hot_keys: U64 = np.concatenate(
            [table.keys_N[firsts[page] : firsts[page + 1]] for page in pages[:num_hot]]
        )
        self._walk_keys: U64 = table.keys_N[firsts[pages[num_hot:]]]
        self._at = 0

    def warming(self) -> list[Body]:
        """Requests that contain every key of the pages that should be cached."""
        count = -(-len(self._hot_keys) // NUM_KEYS)
        return [self._body(np.resize(np.roll(self._hot_keys, -NUM_KEYS * n), NUM_KEYS)) for n in range(count)]

    def bodies(self, count: int, hit_rate: float) -> list[Body]:
        return [self._body(self._keys(hit_rate)) for _ in range(count)]

    def _keys(self, hit_rate: float) -> U64:
        count = round((1 - hit_rate) * NUM_KEYS)
        cold = np.arange(self._at, self._at + count) % len(self._walk_keys)
        self._at += count
        keys: U64 = np.concatenate([self._walk_keys[cold], self._rng.choice(self._hot_keys, NUM_KEYS - len(cold))])
        return self._rng.permutation(keys)

    def _body(self, keys_K: U64) -> Body:
        keys_FB = np.empty((NUM_FIELDS, CANDIDATES), np.uint64)
        keys_FB[:USER_FIELDS] = keys_K[:USER_FIELDS, None]
        keys_FB[USER_FIELDS:] = keys_K[USER_FIELDS:].reshape(-1, CANDIDATES)
        return body_of(values_of(keys_FB))
