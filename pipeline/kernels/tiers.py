"""Places of a block's rows, sorted by tier in one pass.

A place has the tier in its highest two bits (`TIER_SHIFT`) and the row within it in the others; -1 is an unknown key.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.key_map import PLACE_BITS
from pipeline.kernels.room import need_cpu, need_index
from pipeline.records import I64

DEVICE, HOST, DISK = 0, 1, 2
TIER_SHIFT = PLACE_BITS - 2


@cpu
def sort_by_tier(places_U: I64, order_U: I64, ends_4: I64) -> None:
    """Write the positions of the places on the device, of unknown keys, of places on the host and on disk, one after
    the other, each ascending, and where each of the four ends."""
    need_cpu(order_U.size, places_U.size)
    need_cpu(ends_4.size, 4)
    counts_4, rank_4 = np.zeros(4, np.int64), np.array([1, 0, 2, 3])
    for u in range(places_U.size):
        counts_4[rank_4[(places_U[u] >> TIER_SHIFT) + 1]] += 1
    end = 0
    for tier in range(4):
        ends_4[tier] = end
        end += counts_4[tier]
    for u in range(places_U.size):
        rank = rank_4[(places_U[u] >> TIER_SHIFT) + 1]
        order_U[ends_4[rank]] = u
        ends_4[rank] += 1


@cpu
def pin_rows(places_U: I64, device_S: np.ndarray, host_S: np.ndarray) -> None:
    """Clear the mark of each slot of device and host that one of the places names."""
    row = np.int64((1 << TIER_SHIFT) - 1)
    for u in range(places_U.size):
        tier, slot = places_U[u] >> TIER_SHIFT, places_U[u] & row
        if tier == DEVICE:
            need_index(slot, device_S.size)
            device_S[slot] = 0
        elif tier == HOST:
            need_index(slot, host_S.size)
            host_S[slot] = 0
