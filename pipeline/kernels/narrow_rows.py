"""Conversion between narrow rows, whose weights or optimizer state have 16 bits, and wide rows of 32-bit words, on
which kernels compute.

A row consists of N parts. Each has a line in `parts_N4`: the format of its values, the place of its first value in the
narrow row, its number of values, and the place of its first value in the wide row. Places count values of the format's
width in the narrow row and words in the wide row.

Widening is exact. Narrowing rounds up or down at random, with probabilities that make the mean exact (stochastic
rounding; Gupta et al., ICML 2015). With deterministic rounding, small updates of a bfloat16 value, which has 8
significant bits, would all be lost. The random bits are a function of (seed, step, key, place in the wide row), so they
do not depend on tier, block size, worker or restarts. A value that is exact in the narrow format does not change.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from pipeline.kernels import cpu, gpu, need, need_cpu, need_index
from pipeline.kernels.half_lanes import (
    LANES_OF_HALVES,
    copy_word,
    narrow_bfloat16s,
    narrow_float16s,
    widen_bfloat16s,
    widen_float16s,
)
from pipeline.kernels.hashing import mix, mix_reference
from pipeline.kernels.hint import prefetch_ahead
from pipeline.kernels.init_rows import GOLDEN
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.kernels.update_rows import update_rows_cpu
from pipeline.records import F32, I32, U32

WIDE_TILE_WORDS = 1 << 12
"""Maximum number of words of the wide rows that are updated together; at least one row is."""


@cpu
def update_narrow_rows_cpu(
    words_SW: U32, parts_N4: I32, num_wide_words: int, stream: np.uint64, rule: int, weights_at: int, last_at: int,
    rows_P: I32, grads_PC: F32, starts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...],
    whole: bool,
) -> None:  # fmt: skip
    """Update the narrow rows `rows_P` of a slab by one step on the CPU. A few rows at a time are widened, updated and
    narrowed again while they are in the CPU caches. A GPU does the same with a buffer for all rows. `weights_at` and
    `last_at` are places in the wide row; see `narrow_rows` and `update_rows` for the other arguments."""
    need_cpu(min(grads_PC.shape[0], starts_P.size - 1), rows_P.size)
    need_cpu(num_wide_words, last_at + 2)
    need_cpu(rates_T4.shape[0], step + 1)
    tile = max(1, WIDE_TILE_WORDS // num_wide_words)
    wide_TX, at_T = np.empty((tile, num_wide_words), np.uint32), np.arange(tile).astype(np.int32)
    floats_TX = wide_TX.view(np.float32)
    for begin in range(0, rows_P.size, tile):
        end = min(begin + tile, rows_P.size)
        widen_cpu(words_SW, words_SW, rows_P, begin, end, parts_N4, wide_TX)
        update_rows_cpu(
            rule, floats_TX, wide_TX, weights_at, last_at, at_T[: end - begin], grads_PC[begin:end],
            starts_P[begin : end + 1], dim, step, rates_T4, settings, whole,
        )  # fmt: skip
        narrow_cpu(wide_TX, rows_P, begin, end, parts_N4, stream, False, words_SW)


U16 = NDArray[np.uint16]

FULL_WORD, BFLOAT16, FLOAT16_WORD = range(3)
"""Formats of a part's values: a word of 32 bits, which is copied; bfloat16; IEEE 754 binary16."""
FORMAT, NARROW_AT, NUM_VALUES, WIDE_AT = range(4)
"""Columns of `parts_N4`."""

ROUNDING = 0x5851F42D4C957F2D
"""Constant that makes the random bits for rounding differ from those for initial rows."""
NEAREST = 1 << 31
"""Random bits with which narrowing rounds to nearest, ties away from zero."""
EXPONENT = 0x7F800000
MAX_DROPPED = 31
"""Maximum number of bits dropped in rounding to float16. Values below 2^-32, 1/256 of its smallest value, become 0."""


def widen_rows(words_SW: U32, staged_AW: U32, rows_P: I32, parts_N4: I32, wide_PX: U32) -> None:
    """Write the parts of narrow row r = rows[p], or of row -1 - r of staging if r is negative, to wide row p. Other
    words of the wide row do not change."""
    need(len(wide_PX), len(rows_P))
    if on_host(words_SW):
        widen_cpu(words_SW, staged_AW, rows_P, 0, len(rows_P), parts_N4, wide_PX)
    else:
        narrow, staged = (words_SW, words_SW.view(np.uint16)), (staged_AW, staged_AW.view(np.uint16))
        lanes = lanes_for(wide_PX.shape[1])
        launch(
            widen_cuda, len(rows_P), *narrow, *staged, rows_P, parts_N4, wide_PX, wide_PX.view(np.float32), lanes,
            lanes=lanes,
        )  # fmt: skip


def narrow_rows(wide_PX: U32, rows_P: I32, parts_N4: I32, seed: int, step: int, words_SW: U32) -> None:
    """Write the parts of wide row p to narrow row rows[p]. The wide row begins with its key. At step 0, which writes
    initial rows, values are rounded to nearest."""
    stream = stream_of(seed, step)
    need(len(wide_PX), len(rows_P))
    if on_host(words_SW):
        narrow_cpu(wide_PX, rows_P, 0, len(rows_P), parts_N4, stream, step == 0, words_SW)
    else:
        lanes = lanes_for(wide_PX.shape[1])
        launch(
            narrow_cuda, len(rows_P), wide_PX, rows_P, parts_N4, stream, step == 0, words_SW,
            words_SW.view(np.uint16), lanes, lanes=lanes,
        )  # fmt: skip


def stream_of(seed: int, step: int) -> np.uint64:
    """Random bits of a step, from which those of each row are derived."""
    mask = (1 << 64) - 1
    return np.uint64(mix_reference((mix_reference((seed ^ ROUNDING) & mask) + step * GOLDEN) & mask))


def noise_reference(seed: int, step: int, key: int, place: int) -> int:
    """32 random bits for the value at `place` of a wide row. The final mix is the integer hash `lowbias32` from C.
    Wellons's "hash-prospector"."""
    if step == 0:
        return NEAREST
    mask = (1 << 32) - 1
    x = (mix_reference(key ^ int(stream_of(seed, step))) + place * 0x9E3779B9) & mask
    x = (x ^ x >> 16) * 0x7FEB352D & mask
    x = (x ^ x >> 15) * 0x846CA68B & mask
    return x ^ x >> 16


def round_reference(value: np.float32, number_format: int, noise: int) -> np.float32:
    """Return the value as stored: one of its two neighbours in the format, chosen by 32 random bits."""
    if number_format == FULL_WORD or not np.isfinite(value) or value == 0:
        return value
    exponent = max(math.frexp(value)[1] - 1, -126)
    significand = int(abs(float(value)) * 2.0 ** (23 - exponent))
    dropped = 16 if number_format == BFLOAT16 else 13 + max(0, -14 - exponent)
    units = significand + (noise >> max(0, 32 - dropped)) >> dropped if dropped <= MAX_DROPPED else 0
    largest = 65504.0 if number_format == FLOAT16_WORD else (2 - 2.0**-7) * 2.0**127
    return np.float32(math.copysign(min(units * 2.0 ** (exponent - 23 + dropped), largest), value))


@cpu
def row_noise(key: np.uint64, stream: np.uint64) -> np.uint32:
    """Random bits of a row at a step."""
    return np.uint32(mix(key ^ stream) & np.uint64(0xFFFFFFFF))


@cpu
def value_noise(of_row: np.uint32, place: int) -> np.uint32:
    """Random bits of one value, computed with 32-bit products as in the vector code of `half_lanes`."""
    x = np.uint32(of_row + np.uint32(np.uint32(place) * np.uint32(0x9E3779B9)))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@cpu
def bfloat16_of(bits: np.uint32, noise: np.uint32) -> np.uint16:
    """bfloat16 of the float32 with these bits. Finite values stay finite, and NaN stays NaN."""
    cut = np.uint32(bits >> np.uint32(16))
    rounded = np.uint32(np.uint32(bits + np.uint32(noise >> np.uint32(16))) >> np.uint32(16))
    infinite = np.uint32(0x7F80)
    if np.uint32(bits & np.uint32(EXPONENT)) == np.uint32(EXPONENT):
        is_nan = np.uint32(bits & np.uint32(0x7FFFFF)) != np.uint32(0)
        rounded = np.uint32(cut | np.uint32(0x40)) if is_nan else cut
    elif np.uint32(rounded & infinite) == infinite:
        rounded = cut
    return np.uint16(rounded)


@cpu
def float16_of(bits: np.uint32, noise: np.uint32) -> np.uint16:
    """float16 of the float32 with these bits. Finite values beyond the float16 range become its largest value."""
    sign = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))
    exponent = np.int32(np.uint32(np.uint32(bits & np.uint32(EXPONENT)) >> np.uint32(23)))
    fraction = np.uint32(bits & np.uint32(0x7FFFFF))
    # The significand, with its leading one, in float16 units in the last place: below 2^-14 these are 2^-24.
    dropped = np.int32(13) + max(np.int32(0), np.int32(113) - exponent)
    shift = min(dropped, np.int32(MAX_DROPPED))
    significand = np.uint32(fraction | np.uint32(0x800000))
    random = np.uint32(noise >> np.uint32(np.int32(32) - shift))
    rounded = np.uint32(np.uint32(significand + random) >> np.uint32(shift))
    # The leading one counts as one exponent, and a carry adds another.
    above = np.uint32(max(np.int32(0), exponent - np.int32(113)))
    half = min(np.uint32(rounded + np.uint32(above << np.uint32(10))), np.uint32(0x7BFF))
    if dropped > np.int32(MAX_DROPPED):
        half = np.uint32(0)
    if exponent == np.int32(255):
        half = np.uint32(0x7E00) if fraction != np.uint32(0) else np.uint32(0x7C00)
    return np.uint16(np.uint32(sign | half))


@cpu
def float16_value(bits: int) -> np.float32:
    """Value of the float16 with these bits."""
    half = np.int32(bits)
    exponent, fraction = half >> np.int32(10) & np.int32(31), half & np.int32(1023)
    if exponent == np.int32(0):
        value = np.float32(fraction) * np.float32(2.0**-24)
    elif exponent == np.int32(31):
        value = np.float32(math.inf) if fraction == np.int32(0) else np.float32(math.nan)
    else:
        # All products are exact.
        value = np.float32(fraction + np.int32(1024)) * np.float32(np.int32(1) << exponent) * np.float32(2.0**-25)
    return -value if half & np.int32(0x8000) else value


@cpu
def narrow_half(number_format: int, bits: np.uint32, of_row: np.uint32, at: int, to_nearest: bool) -> np.uint16:
    """Narrow the value at place `at` of a wide row."""
    noise = np.uint32(NEAREST) if to_nearest else value_noise(of_row, at)
    return bfloat16_of(bits, noise) if number_format == BFLOAT16 else float16_of(bits, noise)


@cpu
def _need_parts(words_SW: U32, wide_TX: U32, parts_N4: I32, num_rows: int) -> None:
    """Raise IndexError if a part exceeds a row, or if there are fewer than `num_rows` wide rows."""
    need_cpu(wide_TX.shape[0], num_rows)
    for n in range(parts_N4.shape[0]):
        values = np.int64(words_SW.shape[1]) << np.int64(parts_N4[n, FORMAT] != FULL_WORD)
        need_cpu(values, np.int64(parts_N4[n, NARROW_AT]) + np.int64(parts_N4[n, NUM_VALUES]))
        need_cpu(wide_TX.shape[1], np.int64(parts_N4[n, WIDE_AT]) + np.int64(parts_N4[n, NUM_VALUES]))


@cpu
def widen_cpu(words_SW: U32, staged_AW: U32, rows_P: I32, begin: int, end: int, parts_N4: I32, wide_TX: U32) -> None:
    """Widen rows `begin` to `end` - 1 of `rows_P` to the first wide rows."""
    _need_parts(words_SW, wide_TX, parts_N4, end - begin)
    need_cpu(rows_P.size, end)
    base, staged, row_bytes = words_SW.ctypes.data, staged_AW.ctypes.data, words_SW.shape[1] * 4
    target, wide_bytes = wide_TX.ctypes.data, wide_TX.shape[1] * 4
    for p in range(begin, end):
        prefetch_ahead(base, rows_P, p, row_bytes)
        row = np.int64(rows_P[p])
        need_cpu(words_SW.shape[0], row + 1)
        need_cpu(staged_AW.shape[0], -row)
        source = base + row * row_bytes if row >= 0 else staged + (-1 - row) * row_bytes
        for n in range(parts_N4.shape[0]):
            at, width, wide_at = (
                np.int64(parts_N4[n, NARROW_AT]), np.int64(parts_N4[n, NUM_VALUES]), np.int64(parts_N4[n, WIDE_AT])
            )  # fmt: skip
            if parts_N4[n, FORMAT] == FULL_WORD:
                for c in range(width):
                    copy_word(source + 4 * (at + c), target + 4 * (wide_at + c))
            elif width >= LANES_OF_HALVES:
                _widen_lanes(parts_N4[n, FORMAT], source + 2 * at, width, target + 4 * wide_at)
            else:
                halves_H = (words_SW[row] if row >= 0 else staged_AW[-1 - row]).view(np.uint16)
                words_X = wide_TX[p - begin]
                for c in range(width):
                    if parts_N4[n, FORMAT] == BFLOAT16:
                        words_X[wide_at + c] = np.uint32(halves_H[at + c]) << np.uint32(16)
                    else:
                        words_X.view(np.float32)[wide_at + c] = float16_value(halves_H[at + c])
        target += wide_bytes


@cpu
def _widen_lanes(number_format: int, source: int, width: int, target: int) -> None:
    """Widen at least eight values. The last eight may overlap those before them."""
    for c in range(0, width, LANES_OF_HALVES):
        first = min(c, width - LANES_OF_HALVES)
        if number_format == BFLOAT16:
            widen_bfloat16s(source + 2 * first, target + 4 * first)
        else:
            widen_float16s(source + 2 * first, target + 4 * first)


@cpu
def narrow_cpu(
    wide_TX: U32, rows_P: I32, begin: int, end: int, parts_N4: I32, stream: np.uint64, to_nearest: bool, words_SW: U32
) -> None:
    """Narrow the first wide rows to rows `begin` to `end` - 1 of `rows_P`."""
    _need_parts(words_SW, wide_TX, parts_N4, end - begin)
    need_cpu(rows_P.size, end)
    base, row_bytes = words_SW.ctypes.data, words_SW.shape[1] * 4
    source, wide_bytes = wide_TX.ctypes.data, wide_TX.shape[1] * 4
    for p in range(begin, end):
        prefetch_ahead(base, rows_P, p, row_bytes)
        row = np.int64(rows_P[p])
        need_index(row, words_SW.shape[0])
        target = base + row * row_bytes
        key = np.uint64(wide_TX[p - begin, 0]) | np.uint64(wide_TX[p - begin, 1]) << np.uint64(32)
        of_row = row_noise(key, stream)
        for n in range(parts_N4.shape[0]):
            at, width, wide_at = (
                np.int64(parts_N4[n, NARROW_AT]), np.int64(parts_N4[n, NUM_VALUES]), np.int64(parts_N4[n, WIDE_AT])
            )  # fmt: skip
            if parts_N4[n, FORMAT] == FULL_WORD:
                for c in range(width):
                    copy_word(source + 4 * (wide_at + c), target + 4 * (at + c))
            elif width >= LANES_OF_HALVES:
                from_part, to_part = source + 4 * wide_at, target + 2 * at
                _narrow_lanes(parts_N4[n, FORMAT], from_part, width, of_row, wide_at, to_nearest, to_part)
            else:
                halves_H = words_SW[rows_P[p]].view(np.uint16)
                for c in range(width):
                    bits = wide_TX[p - begin, wide_at + c]
                    halves_H[at + c] = narrow_half(parts_N4[n, FORMAT], bits, of_row, wide_at + c, to_nearest)
        source += wide_bytes


@cpu
def _narrow_lanes(
    number_format: int, source: int, width: int, of_row: np.uint32, wide_at: int, to_nearest: bool, target: int
) -> None:
    """Narrow at least eight values. The last eight may overlap those before them."""
    for c in range(0, width, LANES_OF_HALVES):
        first = min(c, width - LANES_OF_HALVES)
        place = np.uint32(wide_at + first)
        if number_format == BFLOAT16:
            narrow_bfloat16s(source + 4 * first, target + 2 * first, of_row, place, to_nearest)
        else:
            narrow_float16s(source + 4 * first, target + 2 * first, of_row, place, to_nearest)


@gpu
def widen_cuda(
    words_SW: U32, halves_SH: U16, staged_AW: U32, staged_AH: U16, rows_P: I32, parts_N4: I32, wide_PX: U32,
    floats_PX: F32, lanes: int,
) -> None:  # fmt: skip
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
        row = rows_P[p]
        for n in range(parts_N4.shape[0]):
            number_format, at, wide_at = parts_N4[n, FORMAT], parts_N4[n, NARROW_AT], parts_N4[n, WIDE_AT]
            for c in range(lane, parts_N4[n, NUM_VALUES], lanes):
                if number_format == FULL_WORD:
                    wide_PX[p, wide_at + c] = words_SW[row, at + c] if row >= 0 else staged_AW[-1 - row, at + c]
                else:
                    half = halves_SH[row, at + c] if row >= 0 else staged_AH[-1 - row, at + c]
                    if number_format == BFLOAT16:
                        wide_PX[p, wide_at + c] = np.uint32(half) << np.uint32(16)
                    else:
                        floats_PX[p, wide_at + c] = float16_value(half)


@gpu
def narrow_cuda(
    wide_PX: U32, rows_P: I32, parts_N4: I32, stream: Any, to_nearest: bool, words_SW: U32, halves_SH: U16, lanes: int
) -> None:
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
        row, words_X = rows_P[p], wide_PX[p]
        of_row = row_noise(np.uint64(words_X[0]) | np.uint64(words_X[1]) << np.uint64(32), stream)
        for n in range(parts_N4.shape[0]):
            number_format, at, wide_at = parts_N4[n, FORMAT], parts_N4[n, NARROW_AT], parts_N4[n, WIDE_AT]
            for c in range(lane, parts_N4[n, NUM_VALUES], lanes):
                bits = words_X[wide_at + c]
                if number_format == FULL_WORD:
                    words_SW[row, at + c] = bits
                else:
                    halves_SH[row, at + c] = narrow_half(number_format, bits, of_row, wide_at + c, to_nearest)
