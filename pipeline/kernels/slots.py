"""Metadata of the slots of a slab, read and written for many rows at once. The slots of a call are distinct, so several
threads may process them. Places of a block's rows: sorting by tier, and marking of slots. And the scan of the clock
policy, with one hand and one mark per slot.

The two highest bits of a place (`TIER_SHIFT`) are the tier, the others the row within it; -1 means an unknown key.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu, need_cpu, need_index
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.kernels.key_map import PLACE_BITS
from pipeline.records import I32, I64, RESERVED, U64


def turn_hand_reference(marked_S: np.ndarray, evictable_S: np.ndarray, hand: int, num: int) -> tuple[list[int], int]:
    """Return `num` victims and the new position of the hand. A marked slot loses its mark and is skipped once."""
    taken: list[int] = []
    while len(taken) < num:
        if evictable_S[hand] and hand not in taken:
            if marked_S[hand]:
                marked_S[hand] = 0
            else:
                taken.append(hand)
        hand = (hand + 1) % len(marked_S)
    return taken, hand


@cpu
def turn_hand(marked_S: np.ndarray, evictable_S: np.ndarray, hand: int, victims_E: I32) -> int:
    """Fill `victims_E`, and clear each victim in `evictable_S`, which is 1 for evictable slots, else 0. At least as
    many slots as victims must be evictable. Returns the new position of the hand."""
    if victims_E.size:
        need_cpu(evictable_S.size, marked_S.size)
        need_cpu(marked_S.size, hand + 1)
    taken = np.int64(0)
    while taken < victims_E.size:
        # Branchless, since a branch would be unpredictable. The victim written here is kept only if `taken` grows.
        victims_E[taken] = hand
        evictable, marked = evictable_S[hand], marked_S[hand]
        takes = evictable & ~marked
        marked_S[hand] = marked & ~evictable
        evictable_S[hand] = evictable & ~takes
        taken += np.int64(takes)
        hand += 1
        if hand == marked_S.size:
            hand = 0
    return hand


@cpu
def mark_slots(slots_U: I32, marked_S: np.ndarray) -> None:
    """Mark these slots as used. Threads may share them."""
    for u in range(slots_U.size):
        need_index(slots_U[u], marked_S.size)
        marked_S[slots_U[u]] = 1


NO_COPY = -1


@cpu
def _prefetch_slot(slots_U: I32, u: int, words_S: int, longs_S: int, more_S: int) -> None:
    """Prefetch the slot of row `u`, if there is such a row, in three arrays that begin at these addresses: 4-byte items
    (`words_S`), 8-byte items (`longs_S`) and 4-byte items (`more_S`)."""
    if u < slots_U.size:
        slot = np.int64(slots_U[u])
        prefetch_line(words_S + 4 * slot)
        prefetch_line(longs_S + 8 * slot)
        prefetch_line(more_S + 4 * slot)


@cpu
def mark_held(keys_S: U64, held_S: np.ndarray) -> None:
    """Write 1 for each slot that holds a row, else 0."""
    need_cpu(held_S.size, keys_S.size)
    for slot in range(keys_S.size):
        held_S[slot] = keys_S[slot] != RESERVED


@cpu
def read_uses(slots_U: I32, last_S: I32, count_S: I32, next_S: I32, last_U: I32, count_U: I32, next_U: I32) -> None:
    """Copy the uses of the rows in these slots."""
    need_cpu(min(last_U.size, count_U.size, next_U.size), slots_U.size)
    room = min(last_S.size, count_S.size, next_S.size)
    for u in range(slots_U.size):
        slot = slots_U[u]
        need_index(slot, room)
        last_U[u], count_U[u], next_U[u] = last_S[slot], count_S[slot], next_S[slot]


@cpu
def fill_slots(
    slots_U: I32, keys_U: U64, copies_U: I64, last_U: I32, count_U: I32, next_U: I32, keys_S: U64, copies_S: I64,
    last_S: I32, count_S: I32, next_S: I32,
) -> None:  # fmt: skip
    """Write keys, copies and uses of rows into their slots. If `copies_U` is empty, the rows have no copies."""
    need_cpu(min(keys_U.size, last_U.size, count_U.size, next_U.size), slots_U.size)
    room = min(keys_S.size, copies_S.size, last_S.size, count_S.size, next_S.size)
    keys, copies = keys_S.ctypes.data, copies_S.ctypes.data
    last, count, next_ = last_S.ctypes.data, count_S.ctypes.data, next_S.ctypes.data
    for u in range(slots_U.size):
        _prefetch_slot(slots_U, u + AHEAD, last, keys, count)
        _prefetch_slot(slots_U, u + AHEAD, next_, copies, next_)
        slot = slots_U[u]
        need_index(slot, room)
        keys_S[slot], copies_S[slot] = keys_U[u], copies_U[u] if copies_U.size else NO_COPY
        last_S[slot], count_S[slot], next_S[slot] = last_U[u], count_U[u], next_U[u]


@cpu
def use_rows(slots_U: I32, block: int, last_S: I32, count_S: I32, copies_S: I64) -> None:
    """Record that a block uses the rows in these slots, whose copies become stale."""
    room = min(last_S.size, count_S.size, copies_S.size)
    last, count, copies = last_S.ctypes.data, count_S.ctypes.data, copies_S.ctypes.data
    for u in range(slots_U.size):
        _prefetch_slot(slots_U, u + AHEAD, last, copies, count)
        slot = slots_U[u]
        need_index(slot, room)
        last_S[slot], copies_S[slot] = block, NO_COPY
        count_S[slot] += 1


@cpu
def age_slots(slots_U: I32, count_S: I32, age: int, aged_S: I32) -> None:
    """Write the counts of these slots relative to an age, at most 2**31 - 1."""
    room, most = min(count_S.size, aged_S.size), np.int64((1 << 31) - 1)
    for u in range(slots_U.size):
        slot = slots_U[u]
        need_index(slot, room)
        aged_S[slot] = min(count_S[slot] + np.int64(age), most)


DEVICE, HOST, DISK = 0, 1, 2
TIER_SHIFT = PLACE_BITS - 2
PART = 1 << 14
"""Number of places that are counted together, by one thread."""
NEW, COPIES = 3, 0
"""Columns of a part's counts: unknown keys, and rows in a slab that have a copy. Rows on HOST and DISK have the columns
HOST and DISK."""


@cpu
def count_tiers(
    places_U: I64, begin: int, end: int, device_copies_S: I64, host_copies_S: I64, rows_U: I32, counts_P4: I64
) -> None:
    """Count the places of each part from `begin` to `end`, and write the slots of those on device and host. Both slabs
    must have at least one slot."""
    need_cpu(min(rows_U.size, counts_P4.shape[0] * PART), places_U.size)
    base, row = device_copies_S.ctypes.data, np.int64((1 << TIER_SHIFT) - 1)
    for p in range(begin, end):
        last = min((p + 1) * PART, places_U.size)
        new = host = disk = copies = 0
        for u in range(p * PART, last):
            if u + AHEAD < last:
                prefetch_line(base + 8 * (places_U[u + AHEAD] & row))
            tier, slot = places_U[u] >> TIER_SHIFT, places_U[u] & row
            rows_U[u] = np.int32(slot)
            new += tier < 0
            host += tier == HOST
            disk += tier == DISK
            # Both are read, since a branch would be unpredictable.
            on_device, on_host = slot if tier == DEVICE else 0, slot if tier == HOST else 0
            need_index(on_device, device_copies_S.size)
            need_index(on_host, host_copies_S.size)
            device_copy, host_copy = device_copies_S[on_device], host_copies_S[on_host]
            copies += (device_copy if tier == DEVICE else (host_copy if tier == HOST else NO_COPY)) != NO_COPY
        counts_P4[p, NEW], counts_P4[p, HOST], counts_P4[p, DISK], counts_P4[p, COPIES] = new, host, disk, copies


@cpu
def list_arrivals(
    places_U: I64, keys_U: U64, begin: int, end: int, begins_P4: I64, device_copies_S: I64, host_copies_S: I64,
    arrivals_A: I64, keys_A: U64, copies_C: I64,
) -> None:  # fmt: skip
    """Write the positions and keys of the places that are not on the device: unknown keys, then host, then disk, each
    in ascending order. Also writes the copies of rows. `begins_P4`: where the output of each part begins, by column of
    the counts; counting has already checked the places."""
    need_cpu(keys_U.size, places_U.size)
    row = np.int64((1 << TIER_SHIFT) - 1)
    for p in range(begin, end):
        at_4 = begins_P4[p].copy()
        for u in range(p * PART, min((p + 1) * PART, places_U.size)):
            tier = places_U[u] >> TIER_SHIFT
            if tier != DEVICE:
                at = at_4[tier]
                need_index(at, min(arrivals_A.size, keys_A.size))
                arrivals_A[at], keys_A[at] = u, keys_U[u]
                at_4[tier] += 1
            if copies_C.size and 0 <= tier <= HOST:
                copy = device_copies_S[places_U[u]] if tier == DEVICE else host_copies_S[places_U[u] & row]
                if copy != NO_COPY:
                    need_index(at_4[COPIES], copies_C.size)
                    copies_C[at_4[COPIES]] = copy
                    at_4[COPIES] += 1


@cpu
def pin_rows(places_U: I64, device_S: np.ndarray, host_S: np.ndarray) -> None:
    """Clear the mark of each device or host slot that occurs in the places. Threads may share the places because all
    write the same value."""
    row = np.int64((1 << TIER_SHIFT) - 1)
    for u in range(places_U.size):
        tier, slot = places_U[u] >> TIER_SHIFT, places_U[u] & row
        if tier == DEVICE:
            need_index(slot, device_S.size)
            device_S[slot] = 0
        elif tier == HOST:
            need_index(slot, host_S.size)
            host_S[slot] = 0
