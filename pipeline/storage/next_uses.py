"""Latest and next uses of keys, as far as the keys of coming blocks are known. `scan` adds blocks, `plan` consumes
them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.key_table import (
    ENTRIES_PER_KEY_OF_A_BLOCK,
    ENTRY_BYTES,
    NO_EARLIER,
    KeyTable,
    enter_live,
    link_keys,
)
from pipeline.records import I32, I64, U64, Block
from pipeline.storage.key_map import DEVICE, HOST, KeyMap, row_of, tier_of
from pipeline.storage.policies import UNKNOWN_USE, Uses

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


@dataclass(frozen=True, slots=True)
class _Known:
    """A known block: batches `begin` to `end` of the agenda, and the occurrence number of its first key."""

    begin: int
    end: int
    first: int
    keys_U: U64


class NextUses:
    """Known blocks, starting with the next one to plan, and for each of their keys the next known block that uses it.
    Only `scan` and `plan` use it; they never run at the same time."""

    def __init__(self, key_map: KeyMap, device: Uses, host: Uses) -> None:
        """`device`, `host`: uses of the slots. Their next uses are kept up to date here."""
        self._map, self._slabs = key_map, ((DEVICE, device), (HOST, host))
        self._known: deque[_Known] = deque()
        self._newest, self._of_block = Newest(), KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self._base = 0
        """Number of the first occurrence in `_next_N`."""
        self._next_N: I32 = np.empty(0, np.int32)

    @property
    def end_of_first(self) -> int | None:
        """Batch of the agenda at which the first known block ends; None if no block is known."""
        return self._known[0].end if self._known else None

    @property
    def end(self) -> int:
        """Batch of the agenda up to which blocks are known; 0 if no block is known."""
        return self._known[-1].end if self._known else 0

    def bytes_with(self, num_keys: int) -> int:
        """Total size in bytes after a block of `num_keys` unique keys is added."""
        num = self._newest.end - self._newest.first + num_keys
        return 8 * num + 4 * self._room_for(num_keys) + self._newest.bytes_with(num_keys)

    def add(self, block: Block, keys_U: U64) -> None:
        """Add a block and its unique keys after the known blocks."""
        self._make_room(len(keys_U))
        begin, newest, earlier_U = block.agenda_batch, self._newest, self._newest.add(keys_U)
        first = newest.end - len(keys_U)
        self._next_N[first - self._base : newest.end - self._base] = UNKNOWN_USE
        is_known_U = earlier_U >= newest.first
        self._next_N[earlier_U[is_known_U] - self._base] = begin
        fresh_N = keys_U[~is_known_U]
        self._set(fresh_N, np.full(len(fresh_N), begin, np.int32))
        self._known.append(_Known(begin, begin + block.num_batches, first, keys_U))

    def use_up(self, block: Block, on_device: tuple[U64, I32] | None = None) -> None:
        """Forget the known blocks up to this one, which was planned. The next uses of their keys become those after it.
        `on_device`: the block's keys and their slots, if all are on the device."""
        if self._begin_with(block) and on_device:
            # Look up in a small table that stays in cache rather than in the map.
            keys_U, slots_U = on_device
            known_U, next_U = self._pop()
            self._slabs[0][1].next_N[slots_U[self._positions(known_U, keys_U)]] = next_U
        self.forget_before(block.agenda_batch + block.num_batches)

    def _begin_with(self, block: Block) -> bool:
        """True if the first known block is this one."""
        known = self._known[0] if self._known else None
        return known is not None and (known.begin, known.end) == (
            block.agenda_batch, block.agenda_batch + block.num_batches
        )  # fmt: skip

    def forget_before(self, batch: int) -> None:
        """Forget the known blocks that end at or before this batch of the agenda."""
        while self._known and self._known[0].end <= batch:
            self._set(*self._pop())

    def _pop(self) -> tuple[U64, I32]:
        """Forget the first known block. Returns its keys and their uses after it."""
        known = self._known.popleft()
        self._newest.first = end = known.first + len(known.keys_U)
        return known.keys_U, self._next_N[known.first - self._base : end - self._base]

    def _set(self, keys_N: U64, next_N: I32) -> None:
        """Set the next uses of those rows of these keys that are on device or host."""
        places_N = self._map.find(keys_N)
        tier_N = tier_of(places_N)
        for tier, uses in self._slabs:
            here_N = tier_N == tier
            uses.next_N[row_of(places_N[here_N])] = next_N[here_N]

    def _room_for(self, num: int) -> int:
        """Size of the array of next uses with `num` more entries."""
        first, end = self._newest.first, self._newest.end + num
        return len(self._next_N) if end - self._base <= len(self._next_N) else 5 * (end - first) // 4

    def _make_room(self, num: int) -> None:
        """Make room for `num` more next uses by reusing consumed entries."""
        first, end = self._newest.first, self._newest.end
        if end + num - self._base > len(self._next_N):
            grown_N = np.empty(self._room_for(num), np.int32)
            grown_N[: end - first] = self._next_N[first - self._base : end - self._base]
            self._next_N, self._base = grown_N, first

    def _positions(self, keys_N: U64, keys_U: U64) -> I32:
        """[N] position in `keys_U` of each key of `keys_N`, which are the same keys in another order."""
        numbers_U, position_N = np.empty(len(keys_U), np.int32), np.empty(len(keys_N), np.int32)
        self._of_block.clear()
        self._of_block.add(keys_U, numbers_U)
        self._of_block.add(keys_N, position_N)
        known = len(keys_N) == len(keys_U) == len(self._of_block.keys_U)
        assert known, "the keys of a block are not those that were known before"
        return position_N
