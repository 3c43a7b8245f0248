"""Adam on rows: bit for bit as its reference, and as torch.optim.SparseAdam."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_batches import same_bits

from pipeline.kernels.adam import adam_rows, adam_rows_reference, step_size

LR, BETA1, BETA2, EPS = 0.01, 0.9, 0.999, 1e-8
RATES = np.float32(1 - BETA1), np.float32(1 - BETA2), np.float32(EPS)


def make_slab(seed, num_rows, width):
    """key (2 words) | weights | m | v | last step | count | tag"""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (num_rows, 5 + 3 * width), np.uint32)
    words[:, 2 : 2 + 3 * width] = rng.normal(size=(num_rows, 3 * width)).astype(np.float32).view(np.uint32)
    v = slice(2 + 2 * width, 2 + 3 * width)
    words[:, v] = np.abs(words[:, v].copy().view(np.float32)).view(np.uint32)
    return words


def update(words, rows, grads, counts, step):
    starts = np.cumsum([0, *counts]).astype(np.int32)
    size = step_size(LR, BETA1, BETA2, step)
    adam_rows(words.view(np.float32), words, rows, grads, starts, step, *RATES, size)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(0, 12), st.sampled_from([1, 2, 1000, 10**6]))
def test_an_update_differs_from_the_reference_or_touches_another_word(seed, width, num_updated, step):
    words = make_slab(seed, 12, width)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(12)[:num_updated].astype(np.int32)
    grads = rng.normal(size=(num_updated, width)).astype(np.float32)
    counts = rng.integers(1, 50, num_updated)

    expected = words.copy()
    weights, m, v = (
        np.ascontiguousarray(words[rows, 2 + c * width : 2 + (c + 1) * width]).view(np.float32) for c in range(3)
    )
    adam_rows_reference(weights, m, v, grads, *RATES, step_size(LR, BETA1, BETA2, step))
    expected[rows, 2 : 2 + 3 * width] = np.concatenate([weights, m, v], axis=1).view(np.uint32)
    expected[rows, 2 + 3 * width] = step
    expected[rows, 3 + 3 * width] += counts.astype(np.uint32)

    update(words, rows, grads, counts, step)
    same_bits(words, expected)


def test_the_count_of_a_row_stops_at_32_bits_or_runs_into_the_tag():
    words = make_slab(0, 1, 1)
    words[0, 6], tag = 2**32 - 1, words[0, 7]
    update(words, np.zeros(1, np.int32), np.ones((1, 1), np.float32), [3], 1)
    assert words[0, 6] == 2
    assert words[0, 7] == tag


def test_a_batch_without_rows_fails():
    words = make_slab(0, 2, 3)
    before = words.copy()
    update(words, np.empty(0, np.int32), np.empty((0, 3), np.float32), [], 1)
    same_bits(words, before)


@pytest.mark.parametrize("num_steps", [1, 8])
def test_steps_differ_from_sparse_adam(num_steps):
    num_rows, width = 9, 4
    words = make_slab(5, num_rows, width)
    words[:, 2 + width :] = 0
    weights = torch.nn.Parameter(torch.from_numpy(words[:, 2 : 2 + width].copy().view(np.float32)))
    peer = torch.optim.SparseAdam([weights], lr=LR, betas=(BETA1, BETA2), eps=EPS)
    rng = np.random.default_rng(6)
    for step in range(1, num_steps + 1):
        rows = np.sort(rng.permutation(num_rows)[: rng.integers(1, num_rows)]).astype(np.int32)
        grads = (rng.normal(size=(len(rows), width)) * 10.0 ** rng.integers(-3, 2)).astype(np.float32)
        at = torch.from_numpy(rows.astype(np.int64))[None]
        weights.grad = torch.sparse_coo_tensor(at, torch.from_numpy(grads), weights.shape, check_invariants=True)
        peer.step()
        update(words, rows, grads, np.ones(len(rows), int), step)
    state = peer.state[weights]
    for c, theirs in enumerate([weights.detach(), state["exp_avg"], state["exp_avg_sq"]]):
        ours = words[:, 2 + c * width : 2 + (c + 1) * width].copy().view(np.float32)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-6)
