"""Filters pass all keys that were put into them, and few others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.kernels.key_filter import BITS_PER_KEY, num_words, pass_keys, put_keys


def passed(keys, bits):
    passes = np.empty(len(keys), np.bool_)
    pass_keys(keys, np.arange(len(keys))[::-1].copy(), bits, passes)
    return passes[::-1]


def filter_of(keys):
    bits = np.zeros(num_words(len(keys)), np.uint64)
    put_keys(keys, bits)
    return bits


@given(st.lists(st.integers(0, 2**64 - 2), max_size=300, unique=True))
def test_a_filter_passes_all_of_its_keys(keys):
    keys = np.array(keys, np.uint64)
    assert passed(keys, filter_of(keys)).all()


def test_a_filter_passes_one_in_16_of_other_keys_at_most():
    keys = np.arange(30_000, dtype=np.uint64)
    bits = filter_of(keys[:10_000])
    assert passed(keys[10_000:], bits).mean() < 1.1 / BITS_PER_KEY


def test_an_empty_filter_passes_nothing():
    assert not passed(np.arange(100, dtype=np.uint64), filter_of(np.empty(0, np.uint64))).any()
