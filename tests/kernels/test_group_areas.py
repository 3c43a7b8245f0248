"""Areas of sorted groups against the areas of all pairs, and where a call ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.group_areas import AREA, COUNTED, NUM_SUMS, WEIGHT, add_groups, end_group, group_areas_reference

weights = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1e6, width=32))
examples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans(), weights), max_size=40).map(sorted)


def columns(rows):
    types = (np.uint64, np.uint64, np.bool_, np.float32)
    return [np.array([row[c] for row in rows], dtype) for c, dtype in enumerate(types)]


def areas(rows, cuts=()):
    last, sums = np.zeros(2, np.uint64), np.zeros(NUM_SUMS)
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        add_groups(*columns(rows[begin:end]), last, sums)
    end_group(sums)
    return sums[[AREA, COUNTED, WEIGHT]].tolist()


@settings(deadline=None, max_examples=150)
@given(examples, st.data())
def test_the_areas_match_those_of_all_pairs(rows, data):
    """The bits are the same wherever calls end."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    assert areas(rows, cuts) == areas(rows) == pytest.approx(group_areas_reference(*columns(rows)), rel=1e-12)
