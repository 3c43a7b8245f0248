"""Pooling of lists, and gradients of equal keys: the bits of the plain reference, in an order that the batch fixes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.batches import batches, make_batch, same_bits

from pipeline.kernels.pool import lookup, lookup_reference, pool_bags, pool_reference, pool_singles
from pipeline.kernels.segment_sum import bag_scale, segment_sum, segment_sum_reference
from pipeline.records import TILE

NONE = np.empty(0, np.float32)


def gradients(batch, dim, seed=0):
    rng = np.random.default_rng(seed)
    shape = (batch.num_examples, batch.num_fields)
    # Wide ranges: any other order of adding shows in the bits.
    grads = rng.normal(size=(*shape, dim)) * 10.0 ** rng.integers(-4, 5, (*shape, dim))
    return grads.astype(np.float32), rng.normal(size=shape).astype(np.float32), rng.random(shape).astype(np.float32)


def summed(batch, grads, first, scale, width, source_V, starts_P):
    out = np.full((len(starts_P) - 1, width), np.nan, np.float32)
    segment_sum(
        grads.reshape(-1, grads.shape[2]), first.reshape(-1), source_V, starts_P, scale.reshape(-1),
        TILE * batch.num_fields, out,
    )  # fmt: skip
    return out


@settings(deadline=None, max_examples=40)
@given(batches(), st.integers(1, 4), st.booleans(), st.booleans())
def test_sums_match_the_reference(batch, dim, first_order, scaled):
    grads, first, scale = gradients(batch, dim)
    first, scale = first if first_order else NONE, scale.reshape(-1) if scaled else NONE
    source_V, starts_P = batch.sources()
    out = summed(batch, grads, first, scale, dim + first_order, source_V, starts_P)
    same_bits(out, segment_sum_reference(grads, first, source_V, starts_P, scale, dim + first_order))


@settings(deadline=None, max_examples=20)
@given(batches())
def test_the_reference_sums_every_gradient(batch):
    grads, _, _ = gradients(batch, 2)
    source_V, starts_P = batch.sources()
    exact = np.zeros((batch.num_unique, 2))
    absolute = np.zeros((batch.num_unique, 2))
    which = np.repeat(np.arange(batch.num_unique), np.diff(starts_P))
    np.add.at(exact, which, grads.reshape(-1, 2)[source_V].astype(np.float64))
    np.add.at(absolute, which, np.abs(grads.reshape(-1, 2)[source_V].astype(np.float64)))
    got = segment_sum_reference(grads, NONE, source_V, starts_P, NONE, 2)
    assert (np.abs(got - exact) <= 1e-4 * absolute).all()


@pytest.mark.parametrize("num_examples", [1, TILE, TILE + 1, 3 * TILE + 5])
def test_a_sum_has_the_bits_of_tiles_summed_separately(num_examples):
    batch = make_batch(2, num_examples, num_single=2, num_multi=0, num_keys=1)
    grads, _, _ = gradients(batch, 1)
    total = None
    for begin in range(0, num_examples, TILE):
        tile = grads[begin : begin + TILE, :, 0].T.reshape(-1)
        part = tile[0]
        for gradient in tile[1:]:
            part = part + gradient
        total = part if total is None else total + part
    out = summed(batch, grads, NONE, NONE, 1, *batch.sources())
    same_bits(out, np.array([[total]], np.float32))


@pytest.mark.parametrize("mean", [False, True])
def test_the_gradient_of_a_mean_is_divided_by_its_bag_length(mean):
    bags_MB = np.array([[0, 0, 1, 4], [4, 6, 6, 7]], np.int32)
    scale = bag_scale(bags_MB, (2, 0), (mean, False), 3).reshape(3, 3)
    expected = np.ones((3, 3), np.float32)
    if mean:
        expected[:, 2] = [1, 1, np.float32(1) / np.float32(3)]
    np.testing.assert_array_equal(scale, expected)
    assert scale.dtype == np.float32


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
