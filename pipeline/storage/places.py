"""Metadata on which `plan` bases its decisions: the place of every row, the free slots, the stale rows of the log. It
contains no bytes of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.key_table import num_words, pass_keys, put_keys
from pipeline.kernels.slots import NO_COPY, fill_slots, mark_held, pin_rows, use_rows
from pipeline.records import I32, I64, RESERVED, U64
from pipeline.storage.chunks import Chunks
from pipeline.storage.key_map import DEVICE, MIN_BYTES, KeyMap, tier_of
from pipeline.storage.next_uses import NextUses
from pipeline.storage.plan_threads import ALONE, PlanThreads
from pipeline.storage.policies import POLICIES, Uses


@dataclass(slots=True)
class _Entered:
    """A block of the window."""

    keys_U: U64
    places_U: I64
    """Places of its keys."""
    away_N: I64
    """Positions of its keys that are not on the device."""


class Window:
    """Places of the keys of the window's blocks, which enter and leave in order.

    While a block is in the window, the place of one of its keys changes only if an earlier block brings the row to the
    device, since `plan` never evicts a row that a block of the window needs. So a key is looked up when its block
    enters the window, and once more if an earlier block brings its row.
    """

    def __init__(self, key_map: KeyMap) -> None:
        self._map = key_map
        self._blocks: list[_Entered] = []

    def forget(self) -> None:
        """Forget all places, because rows were moved by something other than `plan`."""
        self._blocks.clear()

    def find(self, keys_U: U64) -> I64:
        """[U] places of the keys of a block; -1 for unknown keys."""
        for block in self._blocks:
            if block.keys_U is keys_U:
                return block.places_U
        return self._map.find(keys_U)

    def enter(self, window: Sequence[U64], first_U: I64) -> list[I64]:
        """Add the blocks of the window with these keys, and return the places of the keys of each. `first_U`: places of
        the first block's keys, as returned by `find`."""
        while self._blocks and self._blocks[0].keys_U is not window[0]:
            self._blocks.pop(0)
        same = [block.keys_U is keys_U for block, keys_U in zip(self._blocks, window, strict=False)]
        # A window with fewer blocks than before follows a smaller look-ahead: the other blocks must not count.
        if len(self._blocks) > len(window) or not all(same):
            self.forget()
        for n in range(len(self._blocks), len(window)):
            places_U = self._map.find(window[n]) if n else first_U
            self._blocks.append(_Entered(window[n], places_U, np.flatnonzero(tier_of(places_U) != DEVICE)))
        return [block.places_U for block in self._blocks]

    def leave(self, keys_U: U64, arrived_A: U64) -> None:
        """Forget the block with these keys, which is planned and brought the rows of `arrived_A` to the device. Also
        forget earlier blocks, which evaluated or were refused and skipped."""
        while self._blocks and self._blocks[0].keys_U is not keys_U:
            self._blocks.pop(0)
        del self._blocks[:1]
        if self._blocks:
            bits_W = np.zeros(num_words(len(arrived_A)), np.uint64)
            put_keys(arrived_A, bits_W)
            for block in self._blocks:
                self._follow(block, bits_W)

    def _follow(self, block: _Entered, bits_W: U64) -> None:
        """Look up again the keys of a block that arrived on the device. `bits_W`: filter that passes them."""
        away_N, arrived_N = block.away_N, np.empty(len(block.away_N), np.bool_)
        self._map.threads.split(len(away_N), lambda a, b: pass_keys(block.keys_U, away_N[a:b], bits_W, arrived_N[a:b]))
        at = away_N[arrived_N]
        places = block.places_U[at] = self._map.find(block.keys_U[at])
        arrived_N[arrived_N] = tier_of(places) == DEVICE
        block.away_N = away_N[~arrived_N]


NO_COPIES: I64 = np.empty(0, np.int64)
SCANNED = 1 << 16
"""Number of slots that `Slots.changed` scans in one pass; also the minimum number per additional thread."""


class Slots:
    """Slots of a slab: the key in each slot, and the free slots."""

    def __init__(self, num_slots: int, policy: str, threads: PlanThreads = ALONE) -> None:
        self.keys_S: U64 = np.full(num_slots, RESERVED, np.uint64)
        self.copies_S: I64 = np.full(num_slots, NO_COPY, np.int64)
        """[S] log position of an identical copy of the slot's row, written by a commit; NO_COPY if the row has since
        changed."""
        self.uses = Uses.none(num_slots, threads)
        self.policy = POLICIES[policy](self.uses)
        self._free: I32 = np.arange(num_slots - 1, -1, -1, dtype=np.int32)
        self.num_free = num_slots

    def occupied(self) -> NDArray[np.uint8]:
        """[S] 1 for each slot that holds a row, else 0, as a new array."""
        held_S = np.empty(len(self.keys_S), np.uint8)
        self.uses.threads.split(len(held_S), lambda a, b: mark_held(self.keys_S[a:b], held_S[a:b]), SCANNED)
        return held_S

    def changed(self) -> Iterator[I32]:
        """Iterate over the slots whose row has no identical copy in the log. Each item covers SCANNED slots, to limit
        memory use."""
        for first in range(0, len(self.keys_S), SCANNED):
            part = slice(first, first + SCANNED)
            changed = (self.keys_S[part] != RESERVED) & (self.copies_S[part] == NO_COPY)
            yield (first + np.flatnonzero(changed)).astype(np.int32)

    def take(self, keys_U: U64, uses: Uses, copies_U: I64 = NO_COPIES) -> I32:
        """Assign a free slot to each key; there must be enough free slots. `uses`: uses of these rows so far.
        `copies_U`: log positions of their copies (default: none)."""
        assert len(keys_U) <= self.num_free
        slots_U = self._free[self.num_free - len(keys_U) : self.num_free].copy()
        self.num_free -= len(keys_U)
        rows, mine = (keys_U, copies_U, *uses.arrays), (self.keys_S, self.copies_S, *self.uses.arrays)
        self.uses.threads.split(
            len(slots_U), lambda a, b: fill_slots(slots_U[a:b], *(array[a:b] for array in rows), *mine)
        )
        self.policy.touch(slots_U)
        return slots_U

    def release(self, slots_U: I32) -> None:
        """Free these slots, which hold rows."""
        self._free[self.num_free : self.num_free + len(slots_U)] = slots_U
        self.num_free += len(slots_U)
        self.keys_S[slots_U] = RESERVED


@dataclass(frozen=True, slots=True)
class Caps:
    """Hard limits that `plan` enforces."""

    disk_chunks: int
    """Maximum number of chunks on disk at any time, including those that the next commit writes."""
    map_bytes: int


def max_rows(num_slots: int, map_bytes: int) -> int:
    """Maximum number of rows in slabs of `num_slots` slots, with a map of at most `map_bytes`."""
    return min(num_slots, map_bytes // MIN_BYTES)


class Places:
    """All metadata of `plan`: key map, slots, policies, the log's tail. It runs ahead of the bytes of the rows and
    agrees with them when the pipeline is drained."""

    def __init__(
        self, device_rows: int, host_rows: int, policies: tuple[str, str], caps: Caps, chunks: Chunks,
        num_threads: int = 1,
    ) -> None:  # fmt: skip
        """`policies`: names of the policies of device and host. `num_threads`: number of threads that share the work of
        a call; it does not affect results."""
        self.threads = PlanThreads(num_threads)
        self.map = KeyMap(self.threads)
        self.device = Slots(device_rows, policies[0], self.threads)
        self.host = Slots(host_rows, policies[1], self.threads)
        self.window = Window(self.map)
        self.next_uses = NextUses(self.map, self.device.uses, self.host.uses)
        self.trained = 0
        """Number of training blocks planned."""
        self.caps = caps
        self.chunks = chunks
        self.begin_growth()

    def evictable(self, window: Sequence[U64], block_U: I64) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Masks [S] of the slots of device and host whose row no block of the window needs, so that it may leave.
        `window`: keys of its blocks. `block_U`: places of the keys of the first block, the one being planned."""
        device_S, host_S = self.device.occupied(), self.host.occupied()
        for places_U in self.window.enter(window, block_U):
            self.threads.split(len(places_U), lambda a, b: pin_rows(places_U[a:b], device_S, host_S))  # noqa: B023
        return device_S, host_S

    def use(self, slots_U: I32) -> None:
        """Record that the next training block uses the rows in these device slots. The rows change, so their copies
        become stale."""
        device = self.device
        slots = device.uses.last_N, device.uses.count_N, device.copies_S
        self.threads.split(len(slots_U), lambda a, b: use_rows(slots_U[a:b], self.trained, *slots))
        self.trained += 1
        device.policy.touch(slots_U)

    @property
    def _slab_chunks(self) -> int:
        return self.chunks.maximum(max_rows(len(self.device.keys_S) + len(self.host.keys_S), self.caps.map_bytes))

    @property
    def commit_chunks(self) -> int:
        """Maximum number of chunks that the next commit writes: all rows of device and host, plus merged chunks."""
        return self._slab_chunks + self.chunks.allowance

    def begin_growth(self, at_least: int = 0) -> None:
        """After a commit, set the number of chunks that may be written before the next one."""
        self.window.forget()
        room = self.caps.disk_chunks - self.chunks.present - self._slab_chunks
        self.chunks.begin_growth(len(self.map), room, at_least)
