"""Weights that a new row's field does not use become zero, and no others."""

import numpy as np
import pytest

from pipeline.kernels.unused_weights import clear_unused, clear_unused_reference


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
