"""Tables of the partitions of the key map: a compact, exact hash table from 64-bit keys to 36-bit places.

A bijection mixes each key. The high bits of the mixed key select the partition. The next 32 bits select its home line
by multiply-shift range reduction, which allows any number of lines. Only the low bits that do not follow from the home
are stored (quotienting, Cleary 1984), so the table is exact.

A line has 64 bytes and B entries. Entries are in the order of their home lines, each as close to its home as the
entries before it allow: linear probing in home order (Amble and Knuth 1974). Up to a load of 0.925, a search for a
present or absent key reads little more than one line. In an entry, 8 bytes hold R low bits of the mixed key and the low
bits of the place, and 16 or 32 bits hold the rest of the place. The last 4 bytes of a line hold the start of the
entries of that home, counted from the first entry of the line, and their number.

    B   R   bytes of a line: keys  rest of places  first, count
    5   60                   40    20              4
    6   44                   48    12              4

A table with B = 6 needs at least MIN_LINES_OF_6 lines, so that 44 bits distinguish the keys of the same home.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu
from pipeline.kernels.hashing import mix
from pipeline.kernels.hint import AHEAD, LINE_BYTES, equal_words, prefetch_line, trailing_zeros
from pipeline.records import I64, U64

PARTITION_BITS = 8
NUM_PARTITIONS = 1 << PARTITION_BITS
UNKNOWN = np.int64(-1)
PLACE_BITS = 36
RANGE_BITS = 32
"""Number of bits of a mixed key, after those of the partition, from which the home line is computed."""
LOW_BITS = 64 - PARTITION_BITS - RANGE_BITS
SPARE_LINES = 32
"""Number of lines after the last home, for entries pushed past it. The last one stays empty, since a search reads two
lines at a time. At a load of 0.925, random keys need more with a probability of about 1e-12."""
MAX_GROWTH = 2
"""Maximum factor by which `copy_tables` enlarges a table."""
MIN_LINES_OF_6 = 1 << (RANGE_BITS + LOW_BITS - 44)


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    """Convert an address to an untyped pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@cpu
def _split(key: np.uint64) -> tuple[np.int64, np.uint64]:
    """Partition of a key, and the mixed key without the bits of the partition."""
    mixed, shift = mix(key), np.uint64(64 - PARTITION_BITS)
    return np.int64(mixed >> shift), mixed & ((np.uint64(1) << shift) - np.uint64(1))


@cpu
def _table(tables_P2: I64, p: np.int64) -> tuple[U64, np.ndarray, np.uint64, np.uint64, np.uint64]:
    """Table of a partition: 64-bit words, 16-bit halves, number of home lines, entries per line, and R."""
    address, lines = _pointer(tables_P2[p, 0]), tables_P2[p, 1]
    words_L8 = carray(address, (lines + SPARE_LINES, 8), np.uint64)
    halves_L32 = carray(address, (lines + SPARE_LINES, 32), np.uint16)
    if lines >= MIN_LINES_OF_6:
        return words_L8, halves_L32, np.uint64(lines), np.uint64(6), np.uint64(44)
    return words_L8, halves_L32, np.uint64(lines), np.uint64(5), np.uint64(60)


@cpu
def count_keys(keys_U: U64, counts_P: I64) -> None:
    """Count the keys of each partition."""
    need_cpu(counts_P.size, NUM_PARTITIONS)
    counts_P[:] = 0
    for u in range(keys_U.size):
        counts_P[_split(keys_U[u])[0]] += 1


@cpu
def group_keys(keys_U: U64, places_U: I64, counts_P: I64, keys_N: U64, places_N: I64) -> None:
    """Write keys and their places in partition order, so that the table of a partition stays in cache while its keys
    are inserted. `counts_P`: number of keys of each partition."""
    need_cpu(min(places_U.size, keys_N.size, places_N.size), keys_U.size)
    need_cpu(counts_P.size, NUM_PARTITIONS)
    at_P = np.cumsum(counts_P) - counts_P
    for u in range(keys_U.size):
        p = _split(keys_U[u])[0]
        keys_N[at_P[p]], places_N[at_P[p]] = keys_U[u], places_U[u]
        at_P[p] += 1


@cpu
def least_sizes(needed_P: NDArray[np.float64], sizes_PS: I64, lines_P: I64) -> None:
    """Write, for each partition, its smallest size that is at least the needed one. `sizes_PS`: sizes, in ascending
    order."""
    need_cpu(min(lines_P.size, sizes_PS.shape[0]), needed_P.size)
    for p in range(needed_P.size):
        lines_P[p] = sizes_PS[p, np.searchsorted(sizes_PS[p], needed_P[p])]


@cpu
def _home(mixed: np.uint64, lines: np.uint64) -> np.uint64:
    return ((mixed >> np.uint64(LOW_BITS)) * lines) >> np.uint64(RANGE_BITS)


@cpu
def _prefetch_home(tables_P2: I64, keys_U: U64, u: int, lines: int) -> None:
    """Prefetch `lines` lines, starting at the home line of key u, if there is such a key."""
    if u < keys_U.size:
        p, mixed = _split(keys_U[u])
        home = tables_P2[p, 0] + np.int64(_home(mixed, np.uint64(tables_P2[p, 1]))) * LINE_BYTES
        for line in range(lines):
            prefetch_line(home + line * LINE_BYTES)


@cpu
def _reached(line: np.uint64, slot: np.uint64, slots: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Line and slot of the entry `slot` entries after the first one of a line; `slot` must be below 2**16. Branchless,
    since a branch would be unpredictable."""
    beyond = slot * (np.uint64(43_691) if slots == np.uint64(6) else np.uint64(52_429)) >> np.uint64(18)
    return line + beyond, slot - beyond * slots


@cpu
def _high(halves_L32: U64, line: np.uint64, slot: np.uint64, slots: np.uint64) -> np.uint64:
    """High bits of the place in an entry."""
    if slots == np.uint64(6):
        return np.uint64(halves_L32[line, np.uint64(24) + slot])
    at = np.uint64(20) + slot + slot
    return np.uint64(halves_L32[line, at]) | np.uint64(halves_L32[line, at + np.uint64(1)]) << np.uint64(16)


@cpu
def _set(
    words_L8: U64, halves_L32: U64, line: np.uint64, slot: np.uint64, slots: np.uint64, key: np.uint64, high: np.uint64
) -> None:
    words_L8[line, slot] = key
    if slots == np.uint64(6):
        halves_L32[line, np.uint64(24) + slot] = high
    else:
        at = np.uint64(20) + slot + slot
        halves_L32[line, at] = high & np.uint64(0xFFFF)
        halves_L32[line, at + np.uint64(1)] = high >> np.uint64(16)


@cpu
def _find(
    words_L8: U64, halves_L32: U64, mixed: np.uint64, lines: np.uint64, slots: np.uint64, mask: np.uint64
) -> np.int64:
    """Position of the entry of a key, line * 8 + slot; -1 if the key is not in the table."""
    one, base = np.uint64(1), words_L8.ctypes.data
    line = _home(mixed, lines)
    slot, left = np.uint64(halves_L32[line, np.uint64(30)]), np.uint64(halves_L32[line, np.uint64(31)])
    line, slot = _reached(line, slot, slots)
    wanted = mixed & mask
    end = slot + left
    # Search two lines at a time. The entries of the home are in slots `slot` to `end`.
    while True:
        at = base + np.int64(line) * LINE_BYTES
        both = equal_words(at, wanted, mask) & ((one << slots) - one)
        both |= equal_words(at + LINE_BYTES, wanted, mask) << slots
        both &= ((one << min(end, slots + slots)) - one) & ~((one << slot) - one)
        if both:
            found = np.uint64(trailing_zeros(both))
            beyond = np.uint64(found >= slots)
            return np.int64((line + beyond) * np.uint64(8) + found - slots * beyond)
        if end <= slots + slots:
            return np.int64(-1)
        end -= slots + slots
        slot = np.uint64(0)
        line += one + one


@cpu
def find_places(tables_P2: I64, keys_U: U64, places_U: I64) -> None:
    """Write the place of each key, or `UNKNOWN` if it is not in the map. `tables_P2`: address and number of home lines
    of the table of each partition."""
    need_cpu(tables_P2.shape[0], NUM_PARTITIONS)
    need_cpu(places_U.size, keys_U.size)
    for u in range(keys_U.size):
        _prefetch_home(tables_P2, keys_U, u + AHEAD, 2)
        places_U[u] = _place_of(tables_P2, keys_U[u])


@cpu
def _place_of(tables_P2: I64, key: np.uint64) -> np.int64:
    p, mixed = _split(key)
    words_L8, halves_L32, lines, slots, shift = _table(tables_P2, p)
    at = _find(words_L8, halves_L32, mixed, lines, slots, (np.uint64(1) << shift) - np.uint64(1))
    if at < 0:
        return UNKNOWN
    line, slot = np.uint64(at >> 3), np.uint64(at & 7)
    high = _high(halves_L32, line, slot, slots)
    return np.int64(words_L8[line, slot] >> shift | high << (np.uint64(64) - shift))


@cpu
def move_keys(tables_P2: I64, keys_U: U64, places_U: I64) -> None:
    """Change the place of each key. All keys must be in the map."""
    need_cpu(tables_P2.shape[0], NUM_PARTITIONS)
    need_cpu(places_U.size, keys_U.size)
    for u in range(keys_U.size):
        _prefetch_home(tables_P2, keys_U, u + AHEAD, 2)
        p, mixed = _split(keys_U[u])
        words_L8, halves_L32, lines, slots, shift = _table(tables_P2, p)
        mask, place = (np.uint64(1) << shift) - np.uint64(1), np.uint64(places_U[u])
        at = _find(words_L8, halves_L32, mixed, lines, slots, mask)
        line, slot, word = np.uint64(at >> 3), np.uint64(at & 7), mixed & mask | place << shift
        _set(words_L8, halves_L32, line, slot, slots, word, place >> (np.uint64(64) - shift))


@cpu
def _add(
    words_L8: U64, halves_L32: U64, mixed: np.uint64, word: np.uint64, high: np.uint64, lines: np.uint64,
    slots: np.uint64,
) -> bool:  # fmt: skip
    """Add an entry. Returns False, without a change, if no line before the last has room."""
    one, first, count = np.uint64(1), np.uint64(30), np.uint64(31)
    home = _home(mixed, lines)
    last = home
    while np.uint64(halves_L32[last, first]) + np.uint64(halves_L32[last, count]) >= slots:
        last += one
        if last == np.uint64(words_L8.shape[0] - 1):
            return False
    # Move the gap after the last entry of line `last` to the home: moving the first entry of each home behind its last
    # one leaves the gap after the last entry of the previous home.
    to, end = _reached(last, np.uint64(halves_L32[last, first]) + np.uint64(halves_L32[last, count]), slots)
    while last > home:
        begin = np.uint64(halves_L32[last, first])
        halves_L32[last, first] = begin + one
        line, slot = _reached(last, begin, slots)
        _set(words_L8, halves_L32, to, end, slots, words_L8[line, slot], _high(halves_L32, line, slot, slots))
        to, end, last = line, slot, last - one
    halves_L32[home, count] += 1
    _set(words_L8, halves_L32, to, end, slots, word, high)
    return True


@cpu
def enter_keys(tables_P2: I64, keys_U: U64, places_U: I64) -> bool:
    """Add keys that are not in the map. Several threads may split keys in partition order, if each partition belongs to
    one thread. Returns False if there was no room for a key."""
    need_cpu(tables_P2.shape[0], NUM_PARTITIONS)
    need_cpu(places_U.size, keys_U.size)
    for u in range(keys_U.size):
        _prefetch_home(tables_P2, keys_U, u + AHEAD, 2)
        p, mixed = _split(keys_U[u])
        words_L8, halves_L32, lines, slots, shift = _table(tables_P2, p)
        place = np.uint64(places_U[u])
        word = mixed & ((np.uint64(1) << shift) - np.uint64(1)) | place << shift
        if not _add(words_L8, halves_L32, mixed, word, place >> (np.uint64(64) - shift), lines, slots):
            return False
    return True


@cpu
def remove_keys(tables_P2: I64, keys_U: U64) -> None:
    """Remove keys. All must be in the map. Several threads may split them as in `enter_keys`."""
    need_cpu(tables_P2.shape[0], NUM_PARTITIONS)
    for u in range(keys_U.size):
        _prefetch_home(tables_P2, keys_U, u + AHEAD, 2)
        p, mixed = _split(keys_U[u])
        words_L8, halves_L32, lines, slots, shift = _table(tables_P2, p)
        _remove(words_L8, halves_L32, mixed, lines, slots, (np.uint64(1) << shift) - np.uint64(1))


@cpu
def _remove(
    words_L8: U64, halves_L32: U64, mixed: np.uint64, lines: np.uint64, slots: np.uint64, mask: np.uint64
) -> None:
    """Remove an entry: the inverse of `_add`."""
    one, first, count = np.uint64(1), np.uint64(30), np.uint64(31)
    found = _find(words_L8, halves_L32, mixed, lines, slots, mask)
    home = _home(mixed, lines)
    halves_L32[home, count] -= 1
    # The last entry of the home fills the gap; the last entry of each following displaced home fills the gap left by
    # the home before it.
    gap, gap_slot = np.uint64(found >> 3), np.uint64(found & 7)
    line, slot = _reached(home, np.uint64(halves_L32[home, first]) + np.uint64(halves_L32[home, count]), slots)
    _set(words_L8, halves_L32, gap, gap_slot, slots, words_L8[line, slot], _high(halves_L32, line, slot, slots))
    home += one
    while home < np.uint64(words_L8.shape[0]) and halves_L32[home, first] > 0:
        begin = np.uint64(halves_L32[home, first]) - one
        halves_L32[home, first] = begin
        gap, gap_slot = _reached(home, begin, slots)
        line, slot = _reached(home, begin + np.uint64(halves_L32[home, count]), slots)
        _set(words_L8, halves_L32, gap, gap_slot, slots, words_L8[line, slot], _high(halves_L32, line, slot, slots))
        home += one


@cpu
def copy_tables(tables_P2: I64, partitions_N: I64, into_tables_P2: I64) -> bool:
    """Copy the tables of these partitions (see `_copy_table`). Returns False if one of them had no room."""
    enough = True
    for n in range(partitions_N.size):
        enough &= _copy_table(tables_P2, partitions_N[n], into_tables_P2)
    return enough


@cpu
def _copy_table(tables_P2: I64, p: int, into_tables_P2: I64) -> bool:
    """Copy all entries of the table of a partition into a new table with up to MAX_GROWTH times the number of homes, in
    one pass: the entries of a home go to at most three adjacent homes, after those of the previous home. Returns False
    if there was no room."""
    words_L8, halves_L32, lines, slots, shift = _table(tables_P2, p)
    into_M8, half_M32, into_lines, into_slots, into_shift = _table(into_tables_P2, p)
    one, first, count = np.uint64(1), np.uint64(30), np.uint64(31)
    mask, into_mask = (one << shift) - one, (one << into_shift) - one
    # Floor(n * reciprocal >> 18) is n // into_slots for n below 2**16.
    reciprocal = ((one << np.uint64(18)) + into_slots - one) // into_slots
    mixed_N = np.empty(1 << 16, np.uint64)
    end, described, least = np.uint64(0), np.uint64(0), np.uint64(0)
    for home in range(lines):
        # All mixed keys of this home are from `least` up to `after`, so the stored low bits determine each of them.
        after = (((home + one) << np.uint64(RANGE_BITS)) + lines - one) // lines << np.uint64(LOW_BITS)
        low, high = _home(least, into_lines), _home(after - one, into_lines)
        num = np.uint64(halves_L32[home, count])
        # Number of entries per new home, 16 bits each: with counters in memory, each entry would wait for the previous
        # one.
        counts = np.uint64(0)
        line, slot = _reached(home, np.uint64(halves_L32[home, first]), slots)
        for i in range(num):
            mixed = least + (words_L8[line, slot] - least & mask)
            mixed_N[i] = mixed
            counts += one << (_home(mixed, into_lines) - low << np.uint64(4))
            line, slot = _next(line, slot, slots)
        origin, cursors = low * into_slots, np.uint64(0)
        for into in range(low, high + one):
            end = max(end, np.uint64(into) * into_slots)
            if into >= described:
                half_M32[into, first], half_M32[into, count] = end - into * into_slots, 0
            at = (into - low) << np.uint64(4)
            more = counts >> at & np.uint64(0xFFFF)
            half_M32[into, count] += more
            cursors |= (end - origin) << at
            end += more
        described = high + one
        if end - origin >= np.uint64(1 << 16) or end > np.uint64(into_M8.shape[0] - 1) * into_slots:
            return False
        line, slot = _reached(home, np.uint64(halves_L32[home, first]), slots)
        for i in range(num):
            place = words_L8[line, slot] >> shift | _high(halves_L32, line, slot, slots) << (np.uint64(64) - shift)
            mixed = mixed_N[i]
            at = _home(mixed, into_lines) - low << np.uint64(4)
            cursor = cursors >> at & np.uint64(0xFFFF)
            cursors += one << at
            beyond = cursor * reciprocal >> np.uint64(18)
            _set(
                into_M8, half_M32, low + beyond, cursor - beyond * into_slots, into_slots,
                mixed & into_mask | place << into_shift, place >> (np.uint64(64) - into_shift),
            )  # fmt: skip
            line, slot = _next(line, slot, slots)
        least = after
    for into in range(described, np.uint64(into_M8.shape[0])):
        end = max(end, np.uint64(into) * into_slots)
        half_M32[into, first], half_M32[into, count] = end - into * into_slots, 0
    return True


@cpu
def _next(line: np.uint64, slot: np.uint64, slots: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Line and slot of the entry after this one."""
    beyond = np.uint64(slot + np.uint64(1) >= slots)
    return line + beyond, slot + np.uint64(1) - slots * beyond
