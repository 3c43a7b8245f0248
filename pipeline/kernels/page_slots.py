"""Slots of cached pages: which page each slot holds, and which page is evicted for another.

The cache is set-associative with WAYS consecutive slots per set. Page p is cached only in set p % (number of sets), so
pages are found without a second table, and no page is evicted if there are slots for all. Each set evicts by the clock
rule: a page that was used since the hand last passed it is skipped once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.kernels.room import need_cpu
from pipeline.records import I32

U8 = NDArray[np.uint8]

WAYS = 16
"""Number of slots per set. The page numbers of a set fill one cache line."""
NO_PAGE = -1


def find_slots_reference(
    page_of_S: I32, marked_S: U8, num_sets: int, pages_P: I32, members_P: I32, slots_P: I32
) -> int:
    slots = [np.flatnonzero(page_of_S == page).tolist() for page in pages_P]
    hits = [p for p, found in enumerate(slots) if found]
    misses = [p for p, found in enumerate(slots) if not found]
    slots_P[: len(hits)] = [slots[p][0] for p in hits]
    marked_S[slots_P[: len(hits)]] = 1
    members_P[:] = hits + misses[::-1]
    return len(hits)


@cpu
def find_slots(page_of_S: I32, marked_S: U8, num_sets: int, pages_P: I32, members_P: I32, slots_P: I32) -> int:
    """Find the slots of pages and mark them as used. Returns H, the number of positions in `pages_P` whose page is
    cached. The first H entries of `members_P` are these positions, and the first H of `slots_P` their slots. The other
    positions follow in `members_P`, in reverse order."""
    need_cpu(min(members_P.size, slots_P.size), pages_P.size)
    need_cpu(min(page_of_S.size, marked_S.size), WAYS * max(1, num_sets))
    hits, misses = 0, pages_P.size
    for p in range(pages_P.size):
        if p + AHEAD < pages_P.size:
            prefetch_line(page_of_S.ctypes.data + 4 * WAYS * (np.int64(pages_P[p + AHEAD]) % num_sets))
        slot = _slot_of(page_of_S, num_sets, pages_P[p])
        if slot >= 0:
            marked_S[slot] = 1
            slots_P[hits] = slot
            members_P[hits] = p
            hits += 1
        else:
            misses -= 1
            members_P[misses] = p
    return hits


@cpu
def _slot_of(page_of_S: I32, num_sets: int, page: int) -> int:
    """Slot of a page, or -1."""
    first, way = int(page) % num_sets * WAYS, -1
    for w in range(WAYS):
        # Branch-free, so that all slots of a set are compared at once.
        way = w if page_of_S[first + w] == page else way
    return first + way if way >= 0 else -1


@cpu
def insert_pages(page_of_S: I32, marked_S: U8, hands: U8, cached_SB: U8, pages_R: I32, read_RB: U8) -> None:
    """Copy newly read pages into slots. Each evicts another page of its set; `hands` [num_sets]. A page that already
    has a slot keeps it."""
    need_cpu(min(page_of_S.size, marked_S.size, cached_SB.shape[0]), WAYS * max(1, hands.size))
    need_cpu(read_RB.shape[0], pages_R.size)
    need_cpu(cached_SB.shape[1], read_RB.shape[1])
    cached_SW, read_RW = cached_SB.view(np.uint64), read_RB.view(np.uint64)
    for r in range(pages_R.size):
        page = pages_R[r]
        if _slot_of(page_of_S, hands.size, page) >= 0:
            continue
        own = np.int64(page) % hands.size
        hand = np.int64(hands[own])
        while marked_S[own * WAYS + hand]:
            marked_S[own * WAYS + hand] = 0
            hand = (hand + 1) % WAYS
        page_of_S[own * WAYS + hand] = page
        page_W, copy_W = read_RW[r], cached_SW[own * WAYS + hand]
        for w in range(page_W.size):
            copy_W[w] = page_W[w]
        hands[own] = (hand + 1) % WAYS


def insert_pages_reference(page_of_S: I32, marked_S: U8, hands: U8, cached_SB: U8, pages_R: I32, read_RB: U8) -> None:
    for page, content in zip(pages_R.tolist(), read_RB, strict=False):
        if page in page_of_S:
            continue
        own = page % len(hands)
        order = [own * WAYS + (int(hands[own]) + n) % WAYS for n in range(WAYS)]
        # The first slot that is not marked or, if all are marked, the first slot.
        victim = next((n for n, slot in enumerate(order) if not marked_S[slot]), WAYS)
        marked_S[order[:victim]] = 0
        slot = order[victim % WAYS]
        page_of_S[slot], cached_SB[slot], hands[own] = page, content, (slot + 1) % WAYS
