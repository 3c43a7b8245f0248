"""Dense semantics: rows that are caught up stand where a dense optimizer over the whole table would have put them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples
from support.oracle.row_table import NEVER, Plain, Table

from pipeline.kernels.row_rules import power

ROWS, WIDTH, STEPS = 24, 5, 1_000
LR = {"sgd": 0.05, "adagrad": 0.05, "rowwise_adagrad": 0.05, "adam": 1e-3, "ftrl": 0.1}
EPS = {"adagrad": 1e-10, "rowwise_adagrad": 1e-10}


@st.composite
def tables(draw, kinds=tuple(LR)):
    kind = draw(st.sampled_from(kinds))
    # At eps = 1e-8 Adam is stable up to lr * l2 / eps = 38.
    l2s = [0.0, 1e-6, 1e-4, 3e-4] if kind == "adam" else [0.0, 1e-4, 1e-2]
    l2, cut = (0.0, 0) if kind == "ftrl" else (draw(st.sampled_from(l2s)), draw(st.sampled_from([0, 300, -300])))
    return {
        "kind": kind, "l2": l2, "seed": draw(st.integers(0, 2**32)), "torch_eps": draw(st.booleans()),
        # Rows that are in every other batch, and rows that hardly ever are.
        "spread": draw(st.sampled_from([1, 4, 12])), "scale": draw(st.sampled_from([1e-4, 0.01, 1.0])),
        "cut": cut,
    }  # fmt: skip


def lr_at(case, step):
    """It falls, or rises, after `cut` steps."""
    late = bool(case["cut"]) and step > abs(case["cut"])
    return LR[case["kind"]] * (0.1 if late == (case["cut"] > 0) and case["cut"] else 1)


def make_table(case, dtype, num_steps=STEPS):
    def rates_of(step):
        return lr_at(case, step), case["l2"]

    return Table(
        case["kind"], dtype, ROWS, WIDTH - 1, True, rates_of, num_steps, EPS.get(case["kind"], 1e-8),
        case["torch_eps"], ftrl=(1.0, 0.01, 0.1), seed=case["seed"],
    )  # fmt: skip


def touches(case, num_steps=STEPS):
    rng = np.random.default_rng(case["seed"])
    often = rng.random(ROWS) ** case["spread"]
    for _ in range(num_steps):
        rows = np.flatnonzero(rng.random(ROWS) < often).astype(np.int32)
        yield rows, rng.normal(0, case["scale"], (len(rows), WIDTH))


def in_torch(table, case):
    """The same table in torch, and its optimizer; None where torch has none."""
    weights = torch.nn.Parameter(torch.from_numpy(table.weights.astype(np.float64)))
    lr, l2 = LR[case["kind"]], case["l2"]
    if case["kind"] == "adam" and case["torch_eps"]:
        return weights, torch.optim.Adam([weights], lr=lr, weight_decay=l2)
    if case["kind"] == "adagrad":
        return weights, torch.optim.Adagrad([weights], lr=lr, weight_decay=l2, eps=1e-10)
    return (weights, torch.optim.SGD([weights], lr=lr, weight_decay=l2)) if case["kind"] == "sgd" else None


@pytest.mark.prove
@examples(4, 25)
@given(tables())
def test_in_float64_a_row_equals_that_of_a_dense_optimizer(case):
    table = make_table(case, np.float64)
    plain, peer = Plain(table), in_torch(table, case)
    for rows, grads in touches(case):
        table.update(rows, grads)
        if not peer:
            plain.update(rows, grads)
            continue
        peer[1].param_groups[0]["lr"] = lr_at(case, table.step)
        peer[0].grad = torch.zeros_like(peer[0])
        peer[0].grad[torch.from_numpy(rows.astype(np.int64))] = torch.from_numpy(grads)
        peer[1].step()
    expected = peer[0].detach().numpy() if peer else plain.weights
    np.testing.assert_allclose(table.all_caught_up().weights, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.prove
@examples(2, 12)
@given(tables())
def test_in_float32_a_row_is_within_rounding_of_a_dense_one(case):
    """Beyond what rounding does to a dense optimizer in float32 as well, where weights were larger than they are."""
    table, exact = make_table(case, np.float32), make_table(case, np.float64)
    exact.floats[:] = table.floats
    plain = Plain(table)
    for rows, grads in touches(case):
        grads = grads.astype(np.float32)
        table.update(rows, grads)
        plain.update(rows, grads)
        exact.update(rows, grads)
    found, expected = table.all_caught_up().weights, exact.all_caught_up().weights
    allowed = 1e-5 * np.abs(expected) + 1e-4 * LR[case["kind"]] + 2 * np.abs(plain.weights - expected)
    assert (np.abs(found - expected) <= allowed).all()


@examples(4, 25)
@given(tables(kinds=("adam", "adagrad", "ftrl")))
def test_steps_caught_up_one_by_one_equal_a_dense_loop(case):
    table = make_table(case, np.float32, 190)
    plain = Plain(table)
    for rows, grads in touches(case, 190):
        table.update(rows, grads)
        plain.update(rows, grads)
    if case["kind"] == "adagrad" and case["l2"]:
        # A power takes the place of the steps in which the sum does not change.
        np.testing.assert_allclose(table.all_caught_up().weights, plain.weights, rtol=2e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(table.all_caught_up().weights, plain.weights)


@pytest.mark.parametrize("kind", ["adam", "adagrad", "sgd", "rowwise_adagrad"])
def test_a_row_that_is_caught_up_already_does_not_move(kind):
    table = Table(kind, np.float32, 4, 3, True, lambda t: (0.1, 1e-3), 50)
    rows = np.arange(4, dtype=np.int32)
    table.update(rows, np.ones((4, 4)))
    table.step = 50
    before = table.all_caught_up().floats.copy()
    assert table.words[:, 0].tolist() == [50] * 4
    table.catch_up(rows, 49)
    table.catch_up(rows, 50)
    np.testing.assert_array_equal(table.floats, before)


def test_a_dead_row_has_zero_weights_and_keeps_its_v():
    """5,000 steps of absence at lr * l2 / eps = 30: weight and m are zero, v is what remains of it."""
    table = Table("adam", np.float32, 1, 4, True, lambda t: (1e-3, 3e-4), 5_000)
    table.update(np.zeros(1, np.int32), np.full((1, 5), 1e-3))
    exact = table.state()[1].astype(np.float64)
    table.step = 5_000
    weights, (m, v) = table.all_caught_up().weights, table.state()
    assert not weights.any()
    assert not m.any()
    # Its own L2 terms have been added on the way.
    assert (v >= 0.999 * exact * 0.999**4_999).all()
    assert (v <= 1.2 * exact * 0.999**4_999).all()


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 40])
def test_the_width_of_a_row_never_changes_a_weight(dim):
    """Weights are taken several at once, and some lanes are left over."""
    narrow = Table("adam", np.float32, 1, 1, False, lambda t: (1e-3, 1e-3), 300)
    wide = Table("adam", np.float32, 1, dim, True, lambda t: (1e-3, 1e-3), 300)
    wide.floats[0, :dim] = narrow.floats[0, 0]
    for table in (narrow, wide):
        table.update(np.zeros(1, np.int32), np.full((1, table.width), 0.3))
        table.step = 300
        table.all_caught_up()
    assert (wide.weights[0, :dim] == narrow.weights[0, 0]).all()


def test_past_the_lifespan_only_untrained_rows_are_zero():
    table = Table("adam", np.float32, 2, 3, False, lambda t: (1e-3, 1e-6), 400)
    table.update(np.zeros(1, np.int32), np.ones((1, 3)))
    table.catch_up(np.arange(2, dtype=np.int32), 400, lifespan=399)
    assert table.weights[0].all()
    assert not table.weights[1].any()
    table = Table("adam", np.float32, 2, 3, False, lambda t: (1e-3, 1e-6), 400)
    table.catch_up(np.arange(2, dtype=np.int32), 400, lifespan=NEVER)
    assert table.weights.all()


@given(st.floats(0.0, 1.0), st.integers(0, 10**7))
def test_a_power_matches_that_of_python(base, exponent):
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-8, abs=1e-300)
