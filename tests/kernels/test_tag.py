"""The tag that distinguishes a row from a damaged one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.tag import first_wrong_tag, set_tags, tag_reference

WORD = st.integers(0, 2**32 - 1)


def tagged_rows(num_rows, num_words, seed=0):
    rows = np.random.default_rng(seed).integers(0, 2**32, (num_rows, num_words), np.uint32)
    set_tags(rows)
    return rows


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 70).flatmap(lambda width: st.lists(st.lists(WORD, min_size=width, max_size=width), max_size=5)))
def test_a_tag_matches_the_reference_and_changes_no_other_word(rows):
    tagged = np.array(rows, np.uint32).reshape(len(rows), -1 if rows else 3)
    set_tags(tagged)
    assert tagged.tolist() == [[*row[:-1], tag_reference(row)] for row in rows]
    assert first_wrong_tag(tagged) == -1


@pytest.mark.parametrize("num_words", [2, 21, 56])
def test_any_flipped_bit_is_detected(num_words):
    row = tagged_rows(1, num_words)
    flips = np.repeat(row, 32 * num_words, axis=0)
    for n in range(32 * num_words):
        flips[n, n // 32] ^= np.uint32(1 << n % 32)
    seen = [first_wrong_tag(flips[n : n + 1]) for n in range(len(flips))]
    assert seen == [0] * len(flips)


def test_swapped_words_are_detected():
    row = tagged_rows(1, 56)[0]
    for a in range(56):
        for b in range(a):
            other = row.copy()
            other[[a, b]] = row[[b, a]]
            assert first_wrong_tag(other[None]) == 0


@pytest.mark.parametrize("word", [0, 2**32 - 1])
@pytest.mark.parametrize("num_words", [1, 2, 20, 56, 392])
def test_an_unwritten_row_or_padding_has_a_wrong_tag(word, num_words):
    assert first_wrong_tag(np.full((1, num_words), word, np.uint32)) == 0


def test_the_first_wrong_row_is_named():
    rows = tagged_rows(9, 11)
    rows[4, 3] += np.uint32(1)
    rows[7, 10] += np.uint32(1)
    assert first_wrong_tag(rows) == 4
    assert first_wrong_tag(rows[5:]) == 2
    assert first_wrong_tag(rows[:4]) == -1
    assert first_wrong_tag(rows[:0]) == -1


def test_the_tag_is_that_of_logs_already_written():
    assert tag_reference([1, 2, 3, 4, 5, 6, 7, 8]) == 3560728483
