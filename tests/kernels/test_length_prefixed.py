"""Texts after their lengths: split as by the reference, and never read or written beyond their end."""

import struct
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.length_prefixed import split_texts, split_texts_reference


def split(data, count):
    offsets, out = np.full(count + 1, -1, np.int32), np.full(max(0, len(data) - 4 * count), 7, np.uint8)
    bad = split_texts(np.frombuffer(data, np.uint8), offsets, out)
    return bad, [out[a:b].tobytes() for a, b in pairwise(offsets)]


def joined(texts):
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


@examples(20, 1000)
@given(st.lists(st.binary(max_size=300)))
def test_texts_are_those_of_the_reference(texts):
    data = joined(texts)
    assert split_texts_reference(data, len(texts)) == texts
    assert split(data, len(texts)) == (-1, texts)


@examples(20, 1000)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.data())
def test_a_text_that_is_not_whole_is_named(texts, data):
    whole = joined(texts)
    kept = data.draw(st.integers(0, len(whole) - 1))
    ends = np.cumsum([4 + len(text) for text in texts])
    bad, _ = split(whole[:kept], len(texts))
    # With less room than all texts take, one before the first that is cut may be the one that does not fit.
    assert 0 <= bad <= np.searchsorted(ends, kept, side="right")
    assert split(whole + b"\0", len(texts))[0] == len(texts)


def test_a_length_beyond_the_data_is_refused():
    for length in (6, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
        assert split(struct.pack("<I", length) + b"hello", 1)[0] == 0
