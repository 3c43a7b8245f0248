"""Places of a block's rows: sorting by tier, and marking of slots.

The two highest bits of a place (`TIER_SHIFT`) are the tier, the others the row within it; -1 means an unknown key.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.kernels.key_map import PLACE_BITS
from pipeline.kernels.room import need_cpu, need_index
from pipeline.kernels.slots import NO_COPY
from pipeline.records import I32, I64, U64

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
