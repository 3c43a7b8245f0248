"""The page of a key by the fences, against NumPy's binary search, for any fences and any keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.page_search import find_pages, find_pages_reference

TOP = 2**32 - 1
PREFIX = st.one_of(
    st.integers(0, TOP), st.integers(0, 40), st.integers(TOP - 40, TOP), st.integers(2**31 - 20, 2**31 + 20)
)


def pages_of(fences, keys, search=find_pages):
    fences_N, keys_P = np.array(fences, np.uint32), np.array(keys, np.uint64)
    pages_P = np.full(len(keys_P), -7, np.int32)
    search(fences_N, keys_P, pages_P)
    return pages_P.tolist()


@examples(150, 1000)
@given(
    st.lists(PREFIX, min_size=1, max_size=60).map(sorted), st.lists(st.tuples(PREFIX, st.integers(0, TOP)), max_size=40)
)
def test_pages_are_those_of_a_binary_search(fences, keys):
    """Also fences with equal values, far from even, and dense; keys before the first and beyond the last."""
    keys = [prefix << 32 | low for prefix, low in keys] + [fence << 32 for fence in fences]
    assert pages_of(fences, keys) == pages_of(fences, keys, find_pages_reference)


@pytest.mark.parametrize(
    "fences",
    [
        np.arange(100_000),
        TOP - np.arange(100_000)[::-1],
        np.append(np.arange(50_000), TOP - np.arange(50_000)[::-1]),
        np.unique(2.0 ** np.linspace(0, 31.9, 100_000)),
        np.unique(np.random.default_rng(0).integers(0, 2**32, 100_000)),
        [7] * 1000,
    ],
    ids=["smallest", "largest", "gap", "exponential", "even", "equal"],
)
def test_pages_of_many_fences_are_those_of_a_binary_search(fences):
    rng = np.random.default_rng(1)
    fences = np.array(fences).astype(np.uint64)
    near = (rng.choice(fences, 2000) << np.uint64(32)) + rng.integers(0, 2**33, 2000, np.uint64)
    keys = np.concatenate([near, rng.integers(0, 2**64 - 1, 2000, np.uint64), np.array([0, 2**64 - 2], np.uint64)])
    assert pages_of(fences, keys) == pages_of(fences, keys, find_pages_reference)


def test_no_key_needs_no_page():
    assert pages_of([3], []) == []
