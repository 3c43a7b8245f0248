"""Texts of groups of rows as dictionaries: the plain reference's, for any texts, nulls and groups."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.encode_texts import encode_reference, find_firsts, gather_texts, number_group

TEXTS = st.lists(st.none() | st.binary(max_size=3) | st.sampled_from([b"12345678", b"12345679", b"x" * 40]))


def arrays_of(texts):
    """Bytes and offsets, as Arrow has them."""
    pieces = [text or b"" for text in texts]
    return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([0, *map(len, pieces)]).astype(np.int32)


def numbers_of(texts):
    """The number of each text in order of first appearance, and how many there are."""
    numbers, values = encode_reference([text or b"" for text in texts])
    return np.array(numbers, np.int32), len(values)


def encode_group(texts, rows, numbers_N, firsts_U, stamps_U, base, at):
    data, offsets = arrays_of(texts)
    valid = np.array([False] * at + [text is not None for text in texts])
    bits = np.empty(0, np.uint8) if valid[at:].all() else np.packbits(valid, bitorder="little")
    own_G, which_G = np.full(len(rows), -1, np.int32), np.empty(len(rows), np.int32)
    valid_G, ends_G = np.zeros(-(-len(rows) // 8), np.uint8), np.empty(len(rows) + 1, np.int32)
    num, nulls = number_group(
        numbers_N,
        np.array(rows, np.int32),
        bits,
        at,
        offsets,
        firsts_U,
        stamps_U,
        base,
        own_G,
        valid_G,
        which_G,
        ends_G,
    )
    out = np.empty(ends_G[num], np.uint8)
    gather_texts(data, offsets, firsts_U, which_G[:num], ends_G, out)
    is_valid = np.unpackbits(valid_G, bitorder="little", count=len(rows)).astype(bool) | (not len(bits))
    assert nulls == np.count_nonzero(~is_valid)
    numbers = [int(own) if valid else None for own, valid in zip(own_G, is_valid, strict=True)]
    return numbers, [out[ends_G[n] : ends_G[n + 1]].tobytes() for n in range(num)]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(0, 9), st.data())
def test_each_group_has_a_dictionary_of_its_own_texts(texts, at, draw):
    data, offsets = arrays_of(texts)
    numbers_N, num = numbers_of(texts)
    firsts_U, stamps_U, base = np.empty(num, np.int32), np.zeros(num, np.uint32), 1
    assert find_firsts(data, offsets, numbers_N, firsts_U)
    cut = draw.draw(st.integers(0, len(texts)))
    order = draw.draw(st.permutations(range(len(texts))))
    for rows in (order[:cut], order[cut:], order):
        found = encode_group(texts, rows, numbers_N, firsts_U, stamps_U, base, at)
        assert found == encode_reference([texts[row] for row in rows])
        base += len(found[1])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=2, max_size=2, unique=True), st.booleans())
def test_different_texts_with_one_number_are_found(texts, more):
    data, offsets = arrays_of([*texts, *[b"12345678"] * more])
    numbers_N, num = numbers_of([*texts[:1] * 2, *[b"12345678"] * more])
    assert not find_firsts(data, offsets, numbers_N, np.empty(num, np.int32))
