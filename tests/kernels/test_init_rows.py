"""A key's first row: the same whoever asks, and normally distributed; weights that its field does not use are 0."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.batches import same_bits

from pipeline.kernels.init_rows import clear_unused, clear_unused_reference, init_rows, init_weights_reference

WORDS = 17
KEYS = st.integers(0, 2**64 - 2)


def rows_of(keys, seed=7, std=0.01, num_normal=4):
    out = np.full((len(keys), WORDS), 0xDEADBEEF, np.uint32)
    init_rows(np.array(keys, np.uint64), np.uint64(seed), std, num_normal, out)
    return out


@settings(deadline=None, max_examples=60)
@given(st.lists(KEYS, max_size=8), st.integers(0, 2**63 - 1), st.integers(1, 9), st.sampled_from([0.0, 0.01, 1.0]))
def test_a_first_row_matches_the_reference(keys, seed, num_normal, std):
    rows = rows_of(keys, seed, std, num_normal)
    for row, key in zip(rows, keys, strict=True):
        assert row[:2].tolist() == [key & 0xFFFFFFFF, key >> 32]
        expected = np.array(init_weights_reference(key, seed, std, num_normal), np.float32)
        same_bits(row[2 : 2 + num_normal].view(np.float32), expected)
        assert not row[2 + num_normal :].any()


def test_another_seed_or_key_changes_every_weight():
    one, other_seed, other_key = rows_of([5]), rows_of([5], seed=8), rows_of([6])
    assert (one[:, 2:6] != other_seed[:, 2:6]).all()
    assert (one[:, 2:6] != other_key[:, 2:6]).all()


def test_weights_of_consecutive_keys_are_normally_distributed():
    num, std = 50_000, 0.25
    weights = rows_of(np.arange(num), std=std)[:, 2:6].view(np.float32).astype(np.float64) / std
    assert np.isfinite(weights).all()
    # Five standard errors each.
    assert abs(weights.mean()) < 5 / np.sqrt(4 * num)
    assert abs(weights.std() - 1) < 5 / np.sqrt(8 * num)
    assert abs((weights**4).mean() - 3) < 5 * np.sqrt(96 / (4 * num))
    for one in range(4):
        for other in range(one):
            assert abs((weights[:, one] * weights[:, other]).mean()) < 5 / np.sqrt(num)


@pytest.mark.parametrize(("kind", "weights_at"), [(np.uint32, 2), (np.uint16, 4)])
def test_unused_weights_of_rows_never_trained_are_cleared(kind, weights_at):
    rng = np.random.default_rng(0)
    words = rng.integers(1, 2**32, (40, 8), np.uint32)
    words[::2, 7] = 0
    rows, widths = rng.permutation(40)[:25].astype(np.int32), rng.integers(0, 5, 25).astype(np.int32)
    expected = words.view(kind).copy()
    part = slice(weights_at, weights_at + 4)
    for row, width in zip(rows, widths, strict=True):
        expected[row, part] = clear_unused_reference(words[row, 7], expected[row, part].tolist(), width)
    assert (expected != words.view(kind)).any()
    clear_unused(words, words.view(kind), 7, weights_at, 4, rows, widths)
    assert (words.view(kind) == expected).all()
