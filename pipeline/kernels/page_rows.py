"""Rows of pages: search for the page of each key, by the fences (the top 32 bits of each page's first key), and within
pages, and conversion of their weights to float32. And slots of cached pages: which page each slot holds, and which page
is evicted for another.

Layout of a page of at most R rows (R = `max_rows`): 8 bytes, whose second half is the number of rows (uint32) | keys
[R] (uint64, ascending) | weights, one array after the other:
  float32  [R, C] float32
  float16  [R, C] float16
  int8     [R] scale of the embedding (float32), [R] first-order weight (float32, if there is one), [R, D] int8

The cache is set-associative with WAYS consecutive slots per set. Page p is cached only in set p % (number of sets), so
pages are found without a second table, and no page is evicted if there are slots for all. Each set evicts by the clock
rule: a page that was used since the hand last passed it is skipped once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu
from pipeline.kernels.hint import AHEAD, prefetch_line, prefetch_row
from pipeline.records import F32, I32, U32, U64


def find_pages_reference(fences_N: U32, keys_P: U64, pages_P: I32) -> None:
    pages_P[:] = np.maximum(np.searchsorted(fences_N, keys_P >> np.uint64(32), side="right") - 1, 0)


@cpu
def find_pages(fences_N: U32, keys_P: U64, pages_P: I32) -> None:
    """Write the only page that may contain each key: the last page whose fence is at most the key's top 32 bits, or
    page 0. `fences_N` [N >= 1] is ascending.

    Keys are hashes, so a key's value predicts its page to within a few hundred pages. The fence of that page predicts
    it to within a page or two. The rest is an exponential search.
    """
    need_cpu(pages_P.size, keys_P.size)
    need_cpu(fences_N.size, 1)
    base = fences_N.ctypes.data
    for p in range(keys_P.size):
        if p + AHEAD < keys_P.size:
            prefetch_line(base + 4 * _page_near(fences_N, 0, 0, keys_P[p + AHEAD]))
        first = _page_near(fences_N, 0, 0, keys_P[p])
        pages_P[p] = _page_near(fences_N, first, np.int64(fences_N[first]), keys_P[p])
    for p in range(keys_P.size):
        if p + AHEAD < keys_P.size:
            prefetch_line(base + 4 * np.int64(pages_P[p + AHEAD]))
        pages_P[p] = _page_from(fences_N, np.int64(pages_P[p]), np.int64(keys_P[p] >> np.uint64(32)))


@cpu
def _page_near(fences_N: U32, page: int, fence: int, key: np.uint64) -> int:
    """Guess the page of a key from another page and its fence, assuming that keys are evenly distributed."""
    guess = page + ((np.int64(key >> np.uint64(32)) - fence) * fences_N.size >> 32)
    return int(min(max(guess, np.int64(0)), np.int64(fences_N.size - 1)))


@cpu
def _page_from(fences_N: U32, page: int, prefix: int) -> int:
    """Search for the page of a prefix, starting from any page."""
    step = 1
    if fences_N[page] <= prefix:
        low, high = page, page + 1
        while high < fences_N.size and fences_N[high] <= prefix:
            low = high
            high += step
            step *= 2
        high = min(high, fences_N.size)
    else:
        low, high = page - 1, page
        while low >= 0 and fences_N[low] > prefix:
            high = low
            low -= step
            step *= 2
        low = max(low, -1)
    while high - low > 1:
        middle = (low + high) // 2
        if fences_N[middle] <= prefix:
            low = middle
        else:
            high = middle
    return max(low, 0)


U8 = NDArray[np.uint8]

FLOAT32, FLOAT16, INT8 = range(3)
PRECISION_NUMBERS = {"float32": FLOAT32, "float16": FLOAT16, "int8": INT8}
HEADER_BYTES = 8
HALF_TO_FLOAT = np.float32(2.0**112)
"""Difference between the exponent biases (127 - 15) as a factor. Multiplying by it is exact."""


def take_rows_reference(
    pages_SB: U8, slots_M: I32, members_M: I32, keys_P: U64, precision: int, max_rows: int, dim: int,
    weights_PC: F32, found_P: NDArray[np.bool_],
) -> None:  # fmt: skip
    num_weights = weights_PC.shape[1]
    for slot, member in zip(slots_M, members_M, strict=True):
        page = pages_SB[slot]
        count = int(page[4:8].view(np.uint32)[0])
        keys = page[HEADER_BYTES : HEADER_BYTES + 8 * count].view(np.uint64).tolist()
        if int(keys_P[member]) not in keys:
            continue
        row = keys.index(int(keys_P[member]))
        weights = page[HEADER_BYTES + 8 * max_rows :]
        if precision == INT8:
            floats = weights[: 4 * max_rows * (1 + num_weights - dim)].view(np.float32).reshape(-1, max_rows)
            numbers = weights[floats.nbytes : floats.nbytes + max_rows * dim].view(np.int8).reshape(max_rows, dim)
            weights_PC[member, :dim] = numbers[row] * floats[0, row]
            weights_PC[member, dim:] = floats[1:, row]
        else:
            dtype = np.dtype(np.float16 if precision == FLOAT16 else np.float32)
            of_row = row * num_weights * dtype.itemsize
            weights_PC[member] = weights[of_row : of_row + num_weights * dtype.itemsize].view(dtype)
        found_P[member] = True


@cpu
def take_rows(
    pages_SB: U8, slots_M: I32, members_M: I32, keys_P: U64, precision: int, max_rows: int, dim: int,
    weights_PC: F32, found_P: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Search page `slots_M[m]` for the key at position `members_M[m]`. If the page contains it, write its C weights (D
    of them the embedding) to its row of `weights_PC` and set `found_P`; otherwise change nothing."""
    need_cpu(members_M.size, slots_M.size)
    rows_M = np.empty(slots_M.size, np.int32)
    _find_rows(pages_SB, slots_M, members_M, keys_P, max_rows, rows_M)
    if precision == FLOAT32:
        _take_floats(pages_SB, slots_M, members_M, rows_M, max_rows, weights_PC)
    elif precision == FLOAT16:
        _take_halves(pages_SB, slots_M, members_M, rows_M, max_rows, weights_PC)
    else:
        _take_bytes(pages_SB, slots_M, members_M, rows_M, max_rows, dim, weights_PC)
    for m in range(rows_M.size):
        if rows_M[m] >= 0:
            found_P[members_M[m]] = True


@cpu
def _find_rows(pages_SB: U8, slots_M: I32, members_M: I32, keys_P: U64, max_rows: int, rows_M: I32) -> None:
    """Write the row of each key within its page, or -1."""
    need_cpu(pages_SB.shape[1], HEADER_BYTES + 8 * max_rows)
    words_SW = pages_SB.view(np.uint64)
    base, page_bytes = pages_SB.ctypes.data, pages_SB.shape[1]
    for m in range(slots_M.size):
        if m + AHEAD < slots_M.size:
            prefetch_row(base + np.int64(slots_M[m + AHEAD]) * page_bytes, 0, HEADER_BYTES + 8 * max_rows)
        page_W, key = words_SW[slots_M[m]], keys_P[members_M[m]]
        # If the page contains the key, it is among the `length` keys from `first` on.
        first, length = np.int64(1), np.int64(page_W[0] >> np.uint64(32))
        need_cpu(max_rows, length)
        while length > 1:
            half = length // 2
            first += half if page_W[first + half - 1] < key else 0
            length -= half
        rows_M[m] = first - 1 if page_W[first] == key else -1


@cpu
def _prefetch_weights(base: int, m: int, slots_M: I32, rows_M: I32, page_bytes: int, row_bytes: int) -> None:
    """Prefetch the row of entry m + AHEAD. In the first page, the array that contains it begins at `base`."""
    if m + AHEAD < slots_M.size and rows_M[m + AHEAD] >= 0:
        prefetch_row(base + np.int64(slots_M[m + AHEAD]) * page_bytes, np.int64(rows_M[m + AHEAD]), row_bytes)


@cpu
def _take_floats(pages_SB: U8, slots_M: I32, members_M: I32, rows_M: I32, max_rows: int, weights_PC: F32) -> None:
    floats_SW, width = pages_SB.view(np.float32), weights_PC.shape[1]
    begin = HEADER_BYTES + 8 * max_rows
    for m in range(slots_M.size):
        _prefetch_weights(pages_SB.ctypes.data + begin, m, slots_M, rows_M, pages_SB.shape[1], 4 * width)
        if rows_M[m] >= 0:
            at = begin // 4 + rows_M[m] * width
            weights_C, row_C = weights_PC[members_M[m]], floats_SW[slots_M[m], at : at + width]
            for c in range(width):
                weights_C[c] = row_C[c]


@cpu
def _take_halves(pages_SB: U8, slots_M: I32, members_M: I32, rows_M: I32, max_rows: int, weights_PC: F32) -> None:
    halves_SW, bits_PC, width = pages_SB.view(np.uint16), weights_PC.view(np.uint32), weights_PC.shape[1]
    begin = HEADER_BYTES + 8 * max_rows
    for m in range(slots_M.size):
        _prefetch_weights(pages_SB.ctypes.data + begin, m, slots_M, rows_M, pages_SB.shape[1], 2 * width)
        if rows_M[m] >= 0:
            at = begin // 2 + rows_M[m] * width
            bits_C, weights_C = bits_PC[members_M[m]], weights_PC[members_M[m]]
            row_C = halves_SW[slots_M[m], at : at + width]
            for c in range(width):
                half = np.uint32(row_C[c])
                bits_C[c] = (half & np.uint32(0x8000)) << np.uint32(16) | (half & np.uint32(0x7FFF)) << np.uint32(13)
            for c in range(width):
                weights_C[c] *= HALF_TO_FLOAT


@cpu
def _take_bytes(
    pages_SB: U8, slots_M: I32, members_M: I32, rows_M: I32, max_rows: int, dim: int, weights_PC: F32
) -> None:
    numbers_SB, floats_SW, first_orders = pages_SB.view(np.int8), pages_SB.view(np.float32), weights_PC.shape[1] - dim
    scales_at = HEADER_BYTES // 4 + 2 * max_rows
    begin = 4 * (scales_at + max_rows * (1 + first_orders))
    for m in range(slots_M.size):
        _prefetch_weights(pages_SB.ctypes.data + begin, m, slots_M, rows_M, pages_SB.shape[1], dim)
        _prefetch_weights(pages_SB.ctypes.data + 4 * scales_at, m, slots_M, rows_M, pages_SB.shape[1], 4)
        if rows_M[m] >= 0:
            at = begin + rows_M[m] * dim
            weights_C, row_D = weights_PC[members_M[m]], numbers_SB[slots_M[m], at : at + dim]
            scale = floats_SW[slots_M[m], scales_at + rows_M[m]]
            for d in range(dim):
                weights_C[d] = np.float32(row_D[d]) * scale
            if first_orders:
                weights_C[dim] = floats_SW[slots_M[m], scales_at + max_rows + rows_M[m]]


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
