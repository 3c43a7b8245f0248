"""Places of a block's rows, sorted by tier in one pass.

A place has the tier in its highest two bits (`TIER_SHIFT`) and the row within it in the others; -1 is an unknown key.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.key_map import PLACE_BITS
from pipeline.kernels.room import need_cpu, need_index
from pipeline.records import I32, I64

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


@cpu
def use_rows(slots_U: I32, block: int, last_N: I32, count_N: I32) -> None:
    """Record a use of the rows in these slots, which are distinct, by a block."""
    for u in range(slots_U.size):
        slot = slots_U[u]
        need_index(slot, min(last_N.size, count_N.size))
        last_N[slot] = block
        count_N[slot] += 1


@cpu
def follow_arrivals(earlier_N: I64, at_N: I64, begin: int, first: int, places_U: I64, slots_O: I32) -> None:
    """Write the places of those keys that came to the device with an earlier occurrence.

    `earlier_N`: number of the newest earlier occurrence of the keys at the positions `at_N`. Occurrences are numbered
    from `first` on, which item 0 of `slots_O` belongs to; these keys are the occurrences from item `begin` on.
    `slots_O`: slot on the device of each occurrence, -1 if it is not there.
    """
    need_cpu(at_N.size, earlier_N.size)
    need_cpu(slots_O.size, begin + earlier_N.size)
    for n in range(earlier_N.size):
        earlier = earlier_N[n] - first
        if earlier >= 0 and slots_O[earlier] >= 0:
            slots_O[begin + n] = slots_O[earlier]
            places_U[at_N[n]] = slots_O[earlier]
