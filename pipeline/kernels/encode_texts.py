"""Texts as dictionaries: the texts of a column, already numbered by key, become one dictionary for each group of rows.

A text is data[offsets[row] : offsets[row + 1]] (uint8), as in Arrow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.kernels.text_words import WORD_BYTES, load_bytes, load_word
from pipeline.records import I32, U32

Bytes = NDArray[np.uint8]


def encode_reference(texts: list[bytes | None]) -> tuple[list[int | None], list[bytes]]:
    """Return the place of each text in the dictionary, and the dictionary: the texts in order of first appearance."""
    places: dict[bytes, int] = {}
    numbers = [None if text is None else places.setdefault(text, len(places)) for text in texts]
    return numbers, list(places)


@cpu
def find_firsts(data: Bytes, offsets: I32, numbers_N: I32, firsts_U: I32) -> bool:
    """Write the first row of each number, and return True if all rows of a number have the same text. Numbers are in
    order of first appearance."""
    need_cpu(max(1, offsets.size), numbers_N.size + 1)
    if numbers_N.size:
        need_cpu(data.size, offsets[numbers_N.size])
    address, num = data.ctypes.data, np.int32(0)
    past = address + data.size
    for i in range(numbers_N.size):
        if numbers_N[i] == num:
            need_cpu(firsts_U.size, num + 1)
            firsts_U[num] = i
            num += np.int32(1)
            continue
        first = np.uint32(firsts_U[np.uint32(numbers_N[i])])
        at, other = address + np.int64(offsets[i]), address + np.int64(offsets[first])
        size = address + np.int64(offsets[i + 1]) - at
        if address + np.int64(offsets[first + np.uint32(1)]) - other != size:
            return False
        while size >= WORD_BYTES:
            if load_word(at) != load_word(other):
                return False
            at, other, size = at + WORD_BYTES, other + WORD_BYTES, size - WORD_BYTES
        if size and load_bytes(at, size, past) != load_bytes(other, size, past):
            return False
    return True


@cpu
def number_group(
    numbers_N: I32,
    rows_G: I32,
    bits: Bytes,
    at: int,
    offsets: I32,
    firsts_U: I32,
    stamps_U: U32,
    base: int,
    own_G: I32,
    valid_G: Bytes,
    which_G: I32,
    ends_G: I32,
) -> tuple[int, int]:
    """Renumber the texts of a group's rows from 0 in order of first appearance; return how many there are, and the
    number of nulls.

    `bits`: validity bitmap of the column, from bit `at` on, or empty. `valid_G` [bytes, zeros]: output, that of the
    group. `which_G`: output, the column's numbers of the texts; `ends_G` [one more]: the ends of their bytes behind one
    another. `stamps_U`: `base` + a text's number in the group; a lower stamp is that of an earlier group.
    """
    need_cpu(own_G.size, rows_G.size)
    base32, num, nulls = np.uint32(base), np.uint32(0), 0
    ends_G[0] = 0
    for g in range(rows_G.size):
        row = np.uint32(rows_G[g])
        if bits.size:
            bit = np.uint64(at) + np.uint64(row)
            if not (bits[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & 1:
                own_G[g] = 0
                nulls += 1
                continue
            need_cpu(8 * valid_G.size, g + 1)
            valid_G[np.uint64(g) >> np.uint64(3)] |= np.uint8(1) << np.uint8(g & 7)
        u = np.uint32(numbers_N[row])
        own = np.uint32(stamps_U[u] - base32)
        if own >= num:
            need_cpu(min(which_G.size, ends_G.size - 1), num + 1)
            own = num
            stamps_U[u] = base32 + num
            which_G[num] = u
            first = np.uint32(firsts_U[u])
            ends_G[num + np.uint32(1)] = ends_G[num] + offsets[first + np.uint32(1)] - offsets[first]
            num += np.uint32(1)
        own_G[g] = own
    return int(num), nulls


@cpu
def gather_texts(data: Bytes, offsets: I32, firsts_U: I32, which_G: I32, ends_G: I32, out: Bytes) -> None:
    """Copy the texts with the numbers `which_G` behind one another; `ends_G` as `number_group` writes it."""
    need_cpu(ends_G.size, which_G.size + 1)
    need_cpu(out.size, ends_G[which_G.size])
    for g in range(which_G.size):
        at, end = np.int64(ends_G[g]), np.int64(ends_G[g + 1])
        begin = np.int64(offsets[np.uint32(firsts_U[np.uint32(which_G[g])])])
        for i in range(end - at):
            out[np.uint64(at + i)] = data[np.uint64(begin + i)]
