"""The tag that distinguishes a page from a damaged one, and from a page of another place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.read_pages import WRONG_COUNT, WRONG_FENCE, check_pages, page_tag_reference, set_page_tags
from pipeline.kernels.read_rows import WRONG_TAG
from pipeline.kernels.tag import tag_factors

WORD = st.integers(0, 2**32 - 1)
NUM_WORDS, MAX_ROWS = 1024, 53


def made_pages(num, num_words=NUM_WORDS, seed=0):
    pages = np.random.default_rng(seed).integers(0, 2**32, (num, num_words), np.uint32)
    pages[:, 1] = np.arange(num) % MAX_ROWS + 1
    set_page_tags(pages, np.arange(num, dtype=np.uint32))
    return pages


def reasons(pages, numbers=None, fences=None):
    numbers = np.arange(len(pages)) if numbers is None else numbers
    fences = pages[:, 3] if fences is None else fences
    found = np.full(len(pages), 99, np.int32)
    odd = tag_factors(pages.shape[1])
    check_pages(pages, np.array(numbers, np.uint32), np.array(fences, np.uint32), MAX_ROWS, odd, found)
    return found.tolist()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(WORD, st.lists(WORD, min_size=5, max_size=5)), max_size=5))
def test_a_page_tag_matches_the_reference(pages):
    tagged = np.array([words for _, words in pages], np.uint32).reshape(-1, 5)
    numbers = [number for number, _ in pages]
    set_page_tags(tagged, np.array(numbers, np.uint32))
    assert tagged.tolist() == [[page_tag_reference(words, number), *words[1:]] for number, words in pages]
    assert WRONG_TAG not in reasons(tagged, numbers)


def test_every_flipped_bit_of_a_page_is_detected():
    page = made_pages(1)
    for word in range(NUM_WORDS):
        flips = np.repeat(page, 32, axis=0)
        flips[:, word] ^= np.uint32(1) << np.arange(32, dtype=np.uint32)
        assert reasons(flips, [0] * 32, [page[0, 3]] * 32) == [WRONG_TAG] * 32


def test_a_page_in_the_place_of_any_other_is_detected():
    """The same bytes under each of 131,072 numbers: two parts of the most pages."""
    page = made_pages(1, 4)
    numbers = np.arange(1 << 17)
    found = np.array(reasons(np.repeat(page, len(numbers), axis=0), numbers))
    assert found[0] == 0
    assert (found[1:] == WRONG_TAG).all()


@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_an_unwritten_page_is_detected(word):
    assert reasons(np.full((5, NUM_WORDS), word, np.uint32)) == [WRONG_TAG] * 5


@pytest.mark.parametrize(("count", "why"), [(0, WRONG_COUNT), (1, 0), (MAX_ROWS, 0), (MAX_ROWS + 1, WRONG_COUNT)])
def test_an_impossible_row_count_is_found_under_a_valid_tag(count, why):
    pages = made_pages(3)
    pages[1, 1] = count
    set_page_tags(pages, np.arange(3, dtype=np.uint32))
    assert reasons(pages) == [0, why, 0]


def test_a_page_that_does_not_begin_at_its_fence_is_detected():
    pages = made_pages(3)
    fences = pages[:, 3].copy()
    fences[2] += np.uint32(1)
    assert reasons(pages, fences=fences) == [0, 0, WRONG_FENCE]
