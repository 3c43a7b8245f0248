"""Conversions and gathers: each kernel against its NumPy twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels import assemble

MISSING = np.uint64(99)
NO_BITS = np.empty(0, np.uint8)
HARD = [0.0, 1.0, -1.0, -0.5, np.nan, np.inf, -np.inf, 3e38, 1e300, 0.25]


def bitmap(valid, at):
    return np.packbits(np.array([1] * at + list(valid), np.uint8), bitorder="little")


@pytest.mark.parametrize("name", ["labels", "weights"])
@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
def test_labels_and_weights_match_their_reference(name, dtype):
    values = np.array(HARD if dtype == "float64" else [0, 1, -1, 2], dtype)
    out, expected = np.empty((2, len(values)), np.float32)
    getattr(assemble, f"{name}_to_float")(values, out)
    getattr(assemble, f"{name}_to_float_reference")(values, expected)
    np.testing.assert_array_equal(out, expected)
    assert assemble.count_nan(out) == np.isnan(expected).sum() > 0


@pytest.mark.parametrize("above", [-1.0, -np.inf])
@pytest.mark.parametrize("shift", [0.0, 2.5])
def test_numbers_match_their_reference(above, shift):
    values = np.array(HARD)
    out, expected = np.empty((2, len(values)), np.float32)
    assemble.numbers_to_float(values, 7.0, shift, above, out)
    assemble.numbers_to_float_reference(values, 7.0, shift, above, expected)
    np.testing.assert_array_equal(out, expected)
    assert out[4] == 7.0 + shift


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), max_size=40), st.integers(0, 9))
def test_nulls_are_found_in_their_places(valid, at):
    bits, count = bitmap(valid, at), len(valid)
    keys = np.arange(count, dtype=np.uint64)
    assemble.mark_missing(bits, at, MISSING, keys)
    null = assemble.nulls_reference(bits, at, count)
    np.testing.assert_array_equal(keys, np.where(null, MISSING, np.arange(count, dtype=np.uint64)))
    indices = np.where(null, -12345, np.arange(count)).astype(np.int32)
    taken = np.empty(count, np.uint64)
    assemble.take_keys(indices, bits, at, np.arange(count, dtype=np.uint64), MISSING, taken)
    np.testing.assert_array_equal(taken, keys)


LISTS = st.lists(st.none() | st.lists(st.integers(0, 50), max_size=4), max_size=20)


@settings(max_examples=60, deadline=None)
@given(LISTS, st.integers(0, 9))
def test_bags_match_the_lists(lists, at):
    values = [v for keys in lists for v in keys or []]
    num_null = lists.count(None)
    keys = np.array([0] * num_null + values, np.uint64)
    ends = np.cumsum([0] + [len(x or []) for x in lists], dtype=np.int32) + 3
    bits = bitmap([x is not None for x in lists], at) if num_null else NO_BITS
    offsets = np.full(len(lists) + 1, 1000)
    assemble.spread_lists(ends, bits, at, MISSING, keys, num_null, offsets)
    expected_keys, expected_offsets = assemble.bags_reference(lists, int(MISSING))
    assert keys.tolist() == expected_keys
    assert (offsets - 1000).tolist() == expected_offsets


@settings(max_examples=40, deadline=None)
@given(LISTS, st.randoms(use_true_random=False))
def test_gathered_bags_match_the_reference(lists, random):
    keys, offsets = assemble.bags_reference(lists, 99)
    keys, offsets = np.array(keys, np.uint64), np.array(offsets)
    order = np.array(random.sample(range(len(lists)), len(lists)), np.int64)
    out_keys = np.empty(assemble.bag_sizes(offsets, order), np.uint64)
    out_offsets = np.full(len(lists) + 1, 10)
    assemble.gather_bags(offsets, keys, order, out_offsets, out_keys)
    expected_keys, expected_offsets = assemble.gather_bags_reference(offsets, keys, order)
    assert out_keys.tolist() == expected_keys
    assert (out_offsets - 10).tolist() == expected_offsets


@pytest.mark.parametrize("dtype", [np.float32, np.uint64])
def test_permuted_columns_match_the_reference(dtype):
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 1000, (4, 130)).astype(dtype)
    expected, order = columns.copy(), rng.permutation(100)
    assemble.permute_columns(columns, order)
    assemble.permute_columns_reference(expected, order)
    np.testing.assert_array_equal(columns, expected)


def test_transposed_floats_match_the_reference():
    columns = np.random.default_rng(0).random((5, 300), np.float32)
    out, expected = np.empty((2, 200, 3), np.float32)
    assemble.transpose_floats(columns, 1, 50, out)
    assemble.transpose_floats_reference(columns, 1, 50, expected)
    np.testing.assert_array_equal(out, expected)
