"""Conversions and gathers that turn columns in file order into batches in epoch order.

Columns have Arrow's layout: values and a validity bitmap `bits` (uint8). Bit `at + i` is 1 if value i is not null;
`bits` is empty if there are no nulls. Each kernel has a NumPy twin named `*_reference`.
"""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu
from pipeline.records import F32, I64, U64, Array

U8 = NDArray[np.uint8]


@cpu
def _is_null(bits: U8, i: int) -> bool:
    return len(bits) > 0 and (bits[i >> 3] >> (i & 7)) & 1 == 0


@cpu
def labels_to_float(values: Array, out: F32) -> None:
    """Copy labels; values other than 0 and 1 become NaN."""
    need_cpu(len(values), len(out))
    for i in range(len(out)):
        ok = (values[i] == 0) | (values[i] == 1)
        out[i] = np.float32(values[i]) if ok else np.float32(np.nan)


@cpu
def weights_to_float(values: Array, out: F32) -> None:
    """Copy weights; values that are negative, NaN or infinite in float32 become NaN."""
    need_cpu(len(values), len(out))
    for i in range(len(out)):
        w = np.float32(values[i])
        out[i] = w if (w >= 0) & (w < np.inf) else np.float32(np.nan)


@cpu
def numbers_to_float(values: Array, fill: float, shift: float, above: float, out: F32) -> None:
    """Write value + shift, with `fill` in place of NaN values. Results that are not finite or not > `above` become
    NaN."""
    need_cpu(len(values), len(out))
    for i in range(len(out)):
        x = np.float64(values[i])
        y = np.float32((fill if x != x else x) + shift)
        out[i] = y if (y > above) & (y < np.inf) else np.float32(np.nan)


@cpu
def count_nan(values: F32) -> int:
    count = 0
    for i in range(len(values)):
        count += values[i] != values[i]
    return count


@cpu
def mark_missing(bits: U8, at: int, missing: np.generic, out: Array) -> None:
    """Write `missing` for each null value. A separate pass, so that the other kernels vectorize."""
    if len(bits):
        need_cpu(8 * len(bits), at + len(out))
    for i in range(len(out)):
        if _is_null(bits, at + i):
            out[i] = missing


@cpu
def take_keys(indices: Array, bits: U8, at: int, dictionary: U64, missing: np.uint64, out_keys: U64) -> None:
    """Look up the keys of dictionary-encoded values. Arrow leaves the index of a null undefined, so it is not used."""
    need_cpu(len(indices), len(out_keys))
    if len(bits):
        need_cpu(8 * len(bits), at + len(out_keys))
    if len(bits) == 0:
        for i in range(len(out_keys)):
            out_keys[i] = dictionary[indices[i]]
    else:
        for i in range(len(out_keys)):
            out_keys[i] = missing if _is_null(bits, at + i) else dictionary[indices[i]]


@cpu
def spread_lists(
    ends: Array, bits: U8, at: int, missing: np.uint64, keys: U64, num_null: int, out_offsets: I64
) -> None:
    """Turn lists into bags in place. A null list becomes a bag with the missing key; an empty list stays empty.

    On entry `keys` holds `num_null` free places, then the lists' keys; on return it holds the bags. Writing never
    overtakes reading. `ends` [n + 1] are Arrow's offsets. The caller sets the first entry of `out_offsets` [n + 1]; bag
    i is then keys[out_offsets[i] : out_offsets[i + 1]].
    """
    need_cpu(len(out_offsets), len(ends))
    need_cpu(len(keys), num_null + ends[len(ends) - 1] - ends[0])
    if len(bits):
        need_cpu(8 * len(bits), at + len(ends) - 1)
    write, read = 0, num_null
    for i in range(len(ends) - 1):
        length = ends[i + 1] - ends[i]
        if _is_null(bits, at + i):
            keys[write] = missing
            write += 1
        elif write == read:
            write += length
        else:
            for j in range(length):
                keys[write + j] = keys[read + j]
            write += length
        read += length
        out_offsets[i + 1] = out_offsets[0] + write


@cpu
def permute_columns(columns: Array, order: I64) -> None:
    """Permute each column into its neighbour: columns[c, i] = columns[c + 1, order[i]] for all but the last column.

    Random access to a single column stays in cache. Gathering from all columns at once, batch by batch, took three
    times as long.
    """
    need_cpu(columns.shape[1], len(order))
    for c in range(len(columns) - 1):
        for i in range(len(order)):
            columns[c, i] = columns[c + 1, order[i]]


@cpu
def transpose_floats(columns: F32, first: int, begin: int, out: F32) -> None:
    """Make the numbers of an example contiguous: out[i, c] = columns[first + c, begin + i]."""
    need_cpu(columns.shape[0], first + out.shape[1])
    need_cpu(columns.shape[1], begin + len(out))
    # Tiles of 64 examples, so that their rows of `out` stay in the L1 cache across all columns.
    for tile in range(0, len(out), 64):
        for c in range(out.shape[1]):
            for i in range(tile, min(tile + 64, len(out))):
                out[i, c] = columns[first + c, begin + i]


@cpu
def bag_sizes(offsets: I64, order: I64) -> int:
    """Number of values in the bags listed in `order`."""
    total = 0
    for i in range(len(order)):
        total += offsets[order[i] + 1] - offsets[order[i]]
    return total


@cpu
def gather_bags(offsets: I64, keys: U64, order: I64, out_offsets: I64, out_keys: U64) -> None:
    """Append the bags listed in `order`. The caller sets the first entry of `out_offsets` [n + 1]; `out_keys` begins at
    that offset."""
    need_cpu(len(out_offsets), len(order) + 1)
    write = 0
    for i in range(len(order)):
        begin, end = offsets[order[i]], offsets[order[i] + 1]
        need_cpu(len(out_keys), write + end - begin)
        for j in range(begin, end):
            out_keys[write] = keys[j]
            write += 1
        out_offsets[i + 1] = out_offsets[0] + write


def nulls_reference(bits: U8, at: int, count: int) -> Array:
    """[count] bool, True if the value is null."""
    if len(bits) == 0:
        return np.zeros(count, bool)
    return np.unpackbits(bits, bitorder="little")[at : at + count] == 0


def labels_to_float_reference(values: Array, out: F32) -> None:
    out[:] = np.where(np.isin(values, (0, 1)), values, math.nan)


def weights_to_float_reference(values: Array, out: F32) -> None:
    with np.errstate(over="ignore"):
        w = values.astype(np.float32)
    out[:] = np.where((w >= 0) & np.isfinite(w), w, math.nan)


def numbers_to_float_reference(values: Array, fill: float, shift: float, above: float, out: F32) -> None:
    x = values.astype(np.float64)
    x[np.isnan(x)] = fill
    with np.errstate(over="ignore"):
        y = (x + shift).astype(np.float32)
    out[:] = np.where(np.isfinite(y) & (y > above), y, math.nan)


def permute_columns_reference(columns: Array, order: I64) -> None:
    for c in range(len(columns) - 1):
        columns[c, : len(order)] = columns[c + 1, order]


def transpose_floats_reference(columns: F32, first: int, begin: int, out: F32) -> None:
    count, width = out.shape
    out[:] = columns[first : first + width, begin : begin + count].T


def bags_reference(lists: list[list[int] | None], missing: int) -> tuple[list[int], list[int]]:
    """`spread_lists` on Python lists of keys. Returns the bags' keys and offsets [n + 1]."""
    bags = [[missing] if keys is None else keys for keys in lists]
    return list(chain.from_iterable(bags)), np.cumsum([0, *map(len, bags)]).tolist()


def gather_bags_reference(offsets: I64, keys: U64, order: I64) -> tuple[list[int], list[int]]:
    """`gather_bags` in Python, with offsets from 0. Returns the bags' keys and offsets [n + 1]."""
    bags = [keys[offsets[i] : offsets[i + 1]].tolist() for i in order]
    return list(chain.from_iterable(bags)), np.cumsum([0, *map(len, bags)]).tolist()
