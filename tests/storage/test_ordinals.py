"""Ordinals of chunks against a dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.storage.chunks import Ordinals

ROWS = 4


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 2**32)), max_size=12))
def test_chunks_on_disk_have_distinct_bounded_ordinals(rounds):
    ordinals, held, most = Ordinals(), {}, 32
    next_chunk = 0
    for num, seed in rounds:
        rng = np.random.default_rng(seed)
        new = next_chunk + 3 * rng.permutation(num)
        next_chunk += 3 * num
        ordinals.add(new)
        assert len(ordinals) == len(held) + num
        most = max(most, len(ordinals))
        at = (np.array([*held, *new], np.int64)[:, None] * ROWS + np.arange(ROWS)).ravel()
        short = ordinals.short(at, ROWS)
        np.testing.assert_array_equal(ordinals.long(short, ROWS), at)
        before = {chunk: short[ROWS * n] // ROWS for n, chunk in enumerate([*held, *new.tolist()])}
        assert all(before[chunk] == ordinal for chunk, ordinal in held.items()), "an ordinal changed"
        assert len({*before.values()}) == len(before)
        assert all(0 <= ordinal < 2 * most for ordinal in before.values())
        held = {chunk: ordinal for chunk, ordinal in before.items() if rng.random() < 0.5}
        ordinals.keep(held.keys())
        assert len(ordinals) == len(held)
