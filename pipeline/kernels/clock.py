"""Scan of the clock policy, with one hand and one mark per slot."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu, need_index
from pipeline.records import I32


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
