"""Places of a block's rows: sorting by tier, and marks of slots.

A place has the tier in its highest two bits (`TIER_SHIFT`) and the row within it in the others; -1 is an unknown key.
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
"""Number of places that are counted together, by any thread."""
NEW, COPIES = 3, 0
"""Columns of the counts of a part for unknown keys, and for rows in a slab that have a copy; HOST and DISK are those of
their places."""


@cpu
def count_tiers(
    places_U: I64, begin: int, end: int, device_copies_S: I64, host_copies_S: I64, rows_U: I32, counts_P4: I64
) -> None:
    """Count the places of each part from `begin` to `end`, and write the slot of those on device and host. Both slabs
    must have a slot."""
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
            # Both are read, without a branch, which would go either way.
            on_device, on_host = slot if tier == DEVICE else 0, slot if tier == HOST else 0
            need_index(on_device, device_copies_S.size)
            need_index(on_host, host_copies_S.size)
            device_copy, host_copy = device_copies_S[on_device], host_copies_S[on_host]
            copies += (device_copy if tier == DEVICE else (host_copy if tier == HOST else NO_COPY)) != NO_COPY
        counts_P4[p, NEW], counts_P4[p, HOST], counts_P4[p, DISK], counts_P4[p, COPIES] = new, host, disk, copies


@cpu
def list_arrivals(
    places_U: I64,
    keys_U: U64,
    begin: int,
    end: int,
    begins_P4: I64,
    device_copies_S: I64,
    host_copies_S: I64,
    arrivals_A: I64,
    keys_A: U64,
    copies_C: I64,
) -> None:
    """Write the positions of the places that are not on the device, and their keys: unknown ones, those on the host,
    those on disk, each ascending; and the copies of rows. `begins_P4`: where each part's begin, by the columns of the
    counts, which checked the places."""
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
    """Clear the mark of each slot of device and host that one of the places names. Threads may share the places: all of
    them write the same."""
    row = np.int64((1 << TIER_SHIFT) - 1)
    for u in range(places_U.size):
        tier, slot = places_U[u] >> TIER_SHIFT, places_U[u] & row
        if tier == DEVICE:
            need_index(slot, device_S.size)
            device_S[slot] = 0
        elif tier == HOST:
            need_index(slot, host_S.size)
            host_S[slot] = 0
