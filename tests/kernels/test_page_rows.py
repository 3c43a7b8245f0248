"""Keys and weights within pages, in every precision, against the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.page_rows import (
    FLOAT16,
    PRECISION_NUMBERS,
    find_pages,
    find_pages_reference,
    take_rows,
    take_rows_reference,
)

MAX_ROWS = 7
PAGE_BYTES = 1024


def random_pages(rng, counts, first_orders, precision):
    """Pages of keys 0, 10, 20, ... from `10 * MAX_ROWS` times the page's number on, and random weights."""
    pages = rng.integers(0, 256, (len(counts), PAGE_BYTES), np.uint8)
    if precision == FLOAT16:
        # No infinities, which no table holds.
        halves = pages.view(np.uint16)
        halves[(halves & 0x7C00) == 0x7C00] &= 0x83FF
    elif precision != PRECISION_NUMBERS["int8"]:
        pages.view(np.uint32)[:] &= 0xBF7FFFFF
    else:
        floats = pages[:, 8 + 8 * MAX_ROWS :][:, : 4 * MAX_ROWS * (1 + first_orders)]
        floats.view(np.float32)[:] = rng.standard_normal((len(counts), MAX_ROWS * (1 + first_orders)), np.float32)
    pages.view(np.uint32)[:, 1] = counts
    keys = pages.view(np.uint64)[:, 1 : 1 + MAX_ROWS]
    keys[:] = 10 * (np.arange(len(counts))[:, None] * MAX_ROWS + np.arange(MAX_ROWS))
    return pages


@examples(24, 1000)
@given(
    st.sampled_from([*PRECISION_NUMBERS.values()]), st.integers(0, 19), st.integers(0, 1),
    st.lists(st.integers(1, MAX_ROWS), min_size=1, max_size=4), st.data(),
)  # fmt: skip
def test_weights_are_those_of_the_reference(precision, dim, first_orders, counts, data):
    """Keys that are there, keys between them, before and beyond them; other rows keep their weights."""
    pages = random_pages(np.random.default_rng(0), counts, first_orders, precision)
    entry = st.tuples(st.integers(0, len(counts) - 1), st.integers(-15, 10 * MAX_ROWS + 15))
    entries = data.draw(st.lists(entry, max_size=50))
    entries = [(slot, max(key, -10 * MAX_ROWS * slot)) for slot, key in entries]
    slots = np.array([slot for slot, _ in entries], np.int32)
    keys = np.array([10 * MAX_ROWS * slot + key for slot, key in entries], np.uint64)
    members = np.random.default_rng(1).permutation(len(entries)).astype(np.int32)
    results = []
    for kernel in (take_rows, take_rows_reference):
        weights, found = np.full((len(keys), dim + first_orders), 9, np.float32), np.zeros(len(keys), np.bool_)
        kernel(pages, slots[members], members, keys, precision, MAX_ROWS, dim, weights, found)
        results.append((weights.tobytes(), found.tolist()))
    assert results[0] == results[1]
    assert results[0][1] == [key % 10 == 0 and 0 <= key < 10 * counts[slot] for slot, key in entries]


def test_every_finite_half_becomes_the_same_number():
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = halves[(halves & 0x7C00) != 0x7C00].reshape(-1, 16)
    pages = np.zeros((len(halves), 56), np.uint8)
    pages.view(np.uint32)[:, 1] = 1
    pages[:, 16:48] = halves.view(np.uint8)
    slots = np.arange(len(halves), dtype=np.int32)
    weights, found = np.empty(halves.shape, np.float32), np.zeros(len(halves), np.bool_)
    take_rows(pages, slots, slots, np.zeros(len(halves), np.uint64), FLOAT16, 1, 16, weights, found)
    assert found.all()
    assert weights.tobytes() == halves.view(np.float16).astype(np.float32).tobytes()


TOP = 2**32 - 1
PREFIX = st.one_of(
    st.integers(0, TOP), st.integers(0, 40), st.integers(TOP - 40, TOP), st.integers(2**31 - 20, 2**31 + 20)
)


def pages_of(fences, keys, search=find_pages):
    fences_N, keys_P = np.array(fences, np.uint32), np.array(keys, np.uint64)
    pages_P = np.full(len(keys_P), -7, np.int32)
    search(fences_N, keys_P, pages_P)
    return pages_P.tolist()


@examples(60, 1000)
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
