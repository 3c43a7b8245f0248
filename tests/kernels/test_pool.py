"""From rows to embeddings, bit for bit as the plain reference."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.batches import batches, same_bits

from pipeline.kernels.pool import lookup, lookup_reference, pool_bags, pool_reference, pool_singles


def pooled(batch, weights_PC, mean_M, dim, first_order):
    """Kernels into buffers full of NaN: what is not written shows."""
    embeddings = np.full((batch.num_examples, batch.num_fields, dim), np.nan, np.float32)
    first = np.full((batch.num_examples, batch.num_fields if first_order else 0), np.nan, np.float32)
    pool_singles(weights_PC, batch.inverse_V, batch.single_S, 0, len(embeddings), embeddings, first)
    cut = batch.num_examples // 3
    for begin, end in ((cut, batch.num_examples), (0, cut)):
        args = (batch.inverse_V, batch.bags_MB, batch.multi_M, mean_M, begin, end)
        pool_bags(weights_PC, *args, embeddings, first)
    return embeddings, first


@settings(deadline=None, max_examples=40)
@given(batches(), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_pooling_matches_the_reference(batch, dim, first_order, means):
    rng = np.random.default_rng(batch.num_examples)
    weights_PC = rng.normal(size=(batch.num_unique, dim + first_order)).astype(np.float32)
    mean_M = np.array([means & 1, means >> 1][: len(batch.multi_M)], np.int32)
    embeddings, first = pooled(batch, weights_PC, mean_M, dim, first_order)
    expected, expected_first = pool_reference(
        weights_PC, batch.inverse_V, batch.bags_MB, batch.single_S, batch.multi_M, mean_M, dim
    )
    same_bits(embeddings, expected)
    if first_order:
        same_bits(first, expected_first)


def test_a_bag_is_summed_in_the_order_of_its_values():
    """float32: (1e8 + 1) - 1e8 is 0, and 1 if the order is another."""
    weights_PC = np.array([[1e8], [1], [-1e8]], np.float32)
    bags_MB, multi_M = np.array([[0, 3, 6]], np.int32), np.zeros(1, np.int32)
    inverse_V = np.array([0, 1, 2, 0, 2, 1], np.int32)
    out = np.empty((2, 1, 1), np.float32)
    pool_bags(weights_PC, inverse_V, bags_MB, multi_M, np.zeros(1, np.int32), 0, 2, out, np.empty((2, 0), np.float32))
    assert out.ravel().tolist() == [0.0, 1.0]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-6, 8), max_size=20), st.integers(0, 3), st.integers(1, 4))
def test_a_negative_row_is_read_from_staging(rows, column, width):
    slab = np.arange(9 * 8, dtype=np.float32).reshape(9, 8)
    staged = -1 - np.arange(6 * 8, dtype=np.float32).reshape(6, 8)
    out = np.full((len(rows), width), np.nan, np.float32)
    lookup(slab, staged, np.array(rows, np.int32), column, out)
    expected = np.empty_like(out)
    lookup_reference(slab, staged, np.array(rows, np.int32), column, expected)
    same_bits(out, expected)
