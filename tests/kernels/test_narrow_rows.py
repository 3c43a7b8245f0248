"""Rows with 16-bit words: exact when widened, rounded at random by bits that nothing but seed, step and key decide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.narrow_rows import (
    BFLOAT16,
    FLOAT16_WORD,
    FULL_WORD,
    NEAREST,
    bfloat16_of,
    float16_of,
    narrow_rows,
    noise_reference,
    round_reference,
    widen_rows,
)

KEY = [FULL_WORD, 0, 2, 0]
NAMES = {BFLOAT16: "bfloat16", FLOAT16_WORD: "float16"}


def parts_of(number_format, width):
    """Parts of a narrow row: its key, and `width` values of a format. With the words of a narrow and of a wide row."""
    at, words = (2, 2 + width) if number_format == FULL_WORD else (4, 2 + (width + 1) // 2)
    return np.array([KEY, [number_format, at, width, 2]], np.int32), words, 2 + width


def stored(values, number_format, seed=0, step=1, first_key=5):
    """Store values [U, C] as rows of the keys from `first_key` on; return them as they are read back, from the slab and
    from staging."""
    values = np.asarray(values, np.float32)
    parts, words, wide_words = parts_of(number_format, values.shape[1])
    wide = np.zeros((len(values), wide_words), np.uint32)
    wide[:, :2] = (np.uint64(first_key) + np.arange(len(values), dtype=np.uint64)).view(np.uint32).reshape(-1, 2)
    wide[:, 2:] = values.view(np.uint32)
    narrow, at = np.zeros((len(values), words), np.uint32), np.arange(len(values), dtype=np.int32)[::-1].copy()
    narrow_rows(wide, at, parts, seed, step, narrow)
    again, staged = np.zeros_like(wide), np.zeros_like(wide)
    widen_rows(narrow, narrow[:0], at, parts, again)
    widen_rows(narrow[:0], narrow, -1 - at, parts, staged)
    assert again.tobytes() == staged.tobytes()
    assert (again[:, :2] == wide[:, :2]).all()
    return again[:, 2:].view(np.float32)


def every_half(number_format):
    halves = np.arange(1 << 16, dtype=np.uint16)
    if number_format == FLOAT16_WORD:
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("number_format", NAMES, ids=NAMES.values())
def test_a_value_that_the_format_holds_stays_as_it_is(number_format):
    values = every_half(number_format).reshape(-1, 16)
    got = stored(values, number_format)
    number = ~np.isnan(values)
    assert got[number].tobytes() == values[number].tobytes()
    assert np.isnan(got[~number]).all()


SCALES = {BFLOAT16: (-140, 128), FLOAT16_WORD: (-45, 17)}


@pytest.mark.parametrize("number_format", NAMES, ids=NAMES.values())
@examples(40, 2000)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_stored_values_are_those_of_the_reference(number_format, seed, step, key, draw):
    """Values of every size, random bits of float32, and infinities, rounded by bits of any seed, step and key."""
    rng = np.random.default_rng(draw)
    values = np.ldexp(rng.uniform(1, 2, (3, 7)), rng.integers(*SCALES[number_format], (3, 7))).astype(np.float32)
    values[1] = rng.integers(0, 2**32, 7, np.uint32).view(np.float32)
    values[2, :3] = np.inf, -np.inf, 0
    key = min(key, 2**64 - 3)
    got = stored(values, number_format, seed, step, key)
    for u in range(len(values)):
        for c in range(7):
            noise = noise_reference(seed, step, key + u, 2 + c)
            expected = round_reference(values[u, c], number_format, noise)
            assert got[u, c] == expected or (np.isnan(got[u, c]) and np.isnan(expected)), (values[u, c], noise)


@pytest.mark.parametrize("number_format", NAMES, ids=NAMES.values())
def test_rounding_keeps_the_mean(number_format):
    """Means of 40,000 rows lie within five standard errors of the value, and its neighbours are the only outcomes."""
    values = np.array([1.001, -0.3333, 3e-5, -7e-7, 0.0123456], np.float32)
    got = stored(np.tile(values, (40_000, 1)), number_format)
    for c, value in enumerate(values):
        outcomes = np.unique(got[:, c])
        assert len(outcomes) <= 2
        assert outcomes[0] <= value <= outcomes[-1]
        step = float(outcomes[-1]) - float(outcomes[0])
        assert abs(got[:, c].mean(dtype=np.float64) - float(value)) < 5 * step / 2 / 200


def test_first_rows_are_rounded_to_the_nearest():
    values = np.random.default_rng(0).standard_normal((2000, 5)).astype(np.float32)
    expected = values.astype(np.float16).astype(np.float32)
    assert (stored(values, FLOAT16_WORD, step=0) == expected).all()
    distance = np.abs(stored(values, BFLOAT16, step=0) - values)
    assert (distance <= np.ldexp(1.0, np.frexp(values)[1] - 9)).all()


def test_other_words_stay_as_they_are():
    parts = np.array([[BFLOAT16, 3, 1, 4]], np.int32)
    narrow = np.array([[1, 0x3F80_0000 | 7]], np.uint32)
    wide = np.arange(6, dtype=np.uint32)[None]
    widen_rows(narrow, narrow, np.zeros(1, np.int32), parts, wide)
    assert wide.tolist() == [[0, 1, 2, 3, 0x3F800000, 5]]
    narrow_rows(wide, np.zeros(1, np.int32), parts, 0, 1, narrow)
    assert narrow.tolist() == [[1, 0x3F80_0000 | 7]]


def test_numbers_beyond_the_format_become_its_largest():
    for value, largest in ((1e6, 65504.0), (np.float32(65519.9), 65504.0)):
        assert stored([[value, -value]], FLOAT16_WORD).tolist() == [[largest, -largest]]
    top = np.float32(np.finfo(np.float32).max)
    kept = np.array([0x7F7F0000], np.uint32).view(np.float32)[0]
    assert stored([[top, -top]], BFLOAT16, step=3).tolist() == [[kept, -kept]]
    assert bfloat16_of(np.uint32(0x3F808000), np.uint32(NEAREST)) == 0x3F81
    assert float16_of(np.uint32(0x3F801000), np.uint32(NEAREST)) == 0x3C01
