"""Lazy steps: bit for bit a plain loop over rows. CowClip: what the paper says of a clipped gradient."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.oracle.row_table import Plain, Table

from pipeline.kernels.row_rules import RULE_NUMBERS
from pipeline.kernels.update_rows import update_rows

KINDS = list(RULE_NUMBERS)


def touches(rng, num_rows, num_steps, width, share=0.3, scale=0.1):
    for _ in range(num_steps):
        rows = np.flatnonzero(rng.random(num_rows) < share).astype(np.int32)
        yield rng.permutation(rows), rng.normal(0, scale, (len(rows), width))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 19), st.booleans(), st.sampled_from([0.0, 0.01]))
def test_a_lazy_step_matches_a_plain_loop(kind, seed, dim, first_order, l2):
    first_order = first_order or not dim
    rng = np.random.default_rng(seed)
    table = Table(kind, np.float32, 9, dim, first_order, lambda t: (0.03, l2), 12, seed=seed, ftrl=(1.0, 0.02, 0.1))
    plain = Plain(table)
    for rows, grads in touches(rng, 9, 12, table.width):
        table.update(rows, grads, dense=False)
        plain.update(rows, grads, dense=False)
    assert table.floats.tobytes() == plain.floats().tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_only_step_and_count_change_and_the_count_wraps(kind):
    table = Table(kind, np.float32, 3, 4, True, lambda t: (0.1, 0.0), 2)
    words = np.full((3, 4), 7, np.uint32)
    words[1, 2], width = 2**32 - 1, table.width
    update_rows(
        table.rule, table.floats, words, 0, 1, np.array([1], np.int32), np.ones((1, width), np.float32),
        np.array([5, 8], np.int32), 4, 2, table.rates, table.settings, False,
    )  # fmt: skip
    assert words.tolist() == [[7] * 4, [7, 2, 2, 7], [7] * 4]


@pytest.mark.parametrize("num_steps", [1, 30])
def test_lazy_adam_matches_sparse_adam(num_steps):
    table = Table("adam", np.float32, 9, 4, False, lambda t: (0.01, 0.0), num_steps)
    weights = torch.nn.Parameter(torch.from_numpy(table.weights.copy()))
    peer = torch.optim.SparseAdam([weights], lr=0.01)
    for rows, grads in touches(np.random.default_rng(6), 9, num_steps, 4):
        at = torch.from_numpy(rows.astype(np.int64))[None]
        values = torch.from_numpy(grads.astype(np.float32))
        weights.grad = torch.sparse_coo_tensor(at, values, weights.shape, check_invariants=True)
        peer.step()
        table.update(rows, grads, dense=False)
    np.testing.assert_allclose(table.weights, weights.detach(), rtol=1e-6, atol=1e-7)


def clipped_gradients(table, rows, grads, counts):
    """What an SGD-like step, of Adam's first moment from zero, shows: m is a tenth of the gradient that was used."""
    clipped = table.update(rows, grads, counts)
    return table.state()[0][rows] / table.settings[0], clipped


@st.composite
def clips(draw):
    return {
        "seed": draw(st.integers(0, 2**32)), "dim": draw(st.integers(1, 12)),
        "r": draw(st.sampled_from([0.01, 0.3, 1.0])),
        "floor": draw(st.sampled_from([0.0, 1e-3, 1.0])), "l2": draw(st.sampled_from([0.0, 1e-3])),
        "scale": draw(st.sampled_from([1e-3, 0.1, 10.0])),
    }  # fmt: skip


@examples(4, 100)
@given(clips())
def test_only_a_gradient_beyond_its_bound_is_shortened_to_it(case):
    rng = np.random.default_rng(case["seed"])
    dim = case["dim"]
    table = Table("adam", np.float32, 8, dim, True, lambda t: (0.01, case["l2"]), 1, seed=case["seed"])
    table.clip = np.float32(case["r"]), np.float32(case["floor"])
    rows, counts = np.arange(8, dtype=np.int32), rng.integers(1, 6, 8).astype(np.int32)
    weights, grads = table.weights.astype(np.float64), rng.normal(0, case["scale"], (8, dim + 1)).astype(np.float32)
    rounding = {"rtol": 1e-5, "atol": 1e-6 * case["scale"]}
    whole = grads + case["l2"] * weights
    used, clipped = clipped_gradients(table, rows, grads, counts)
    norms = np.linalg.norm(whole[:, :dim], axis=1)
    bounds = counts * np.maximum(case["r"] * np.linalg.norm(weights[:, :dim], axis=1), case["floor"])
    np.testing.assert_array_less(np.linalg.norm(used[:, :dim], axis=1), bounds * (1 + 1e-5) + 1e-30)
    scales = np.minimum(1, bounds / norms)
    np.testing.assert_allclose(used[:, :dim], whole[:, :dim] * scales[:, None], **rounding)
    np.testing.assert_allclose(used[:, dim], whole[:, dim], **rounding)
    apart = abs(norms - bounds) > 1e-5 * bounds
    np.testing.assert_array_equal(clipped[apart], (norms > bounds)[apart])


@settings(deadline=None, max_examples=30)
@given(clips(), st.booleans())
def test_steps_with_a_clip_match_the_plain_loop(case, first_order):
    rng = np.random.default_rng(case["seed"])
    table = Table("adam", np.float32, 6, case["dim"], first_order, lambda t: (0.01, case["l2"]), 20, seed=case["seed"])
    table.clip = np.float32(case["r"]), np.float32(case["floor"])
    plain = Plain(table)
    for rows, grads in touches(rng, 6, 20, table.width, scale=case["scale"]):
        counts = rng.integers(1, 5, len(rows)).astype(np.int32)
        table.update(rows, grads, counts, dense=False)
        plain.update(rows, grads, counts, dense=False)
    assert table.floats.tobytes() == plain.floats().tobytes()
