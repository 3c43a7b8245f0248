"""Pages read from files, many in flight, whatever the system does with the requests."""

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults.linux_reads import NO_FILE, System, outcomes, put_beneath, run_checks

from pipeline.kernels.in_flight import close_context, open_context
from pipeline.kernels.read_pages import (
    WORK_WORDS,
    WRONG_COUNT,
    WRONG_FENCE,
    check_pages,
    page_tag_reference,
    read_pages,
    read_pages_reference,
    set_page_tags,
)
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT, WRONG_TAG
from pipeline.kernels.tag import tag_factors
from pipeline.machine.limits import aligned_empty

pytestmark = pytest.mark.disk

CONTENT = np.random.default_rng(0).integers(0, 256, (40, PAGE_BYTES), np.uint8)
AT_ONCE = 16


def read(context, file, pages, page_bytes=PAGE_BYTES):
    """Result, and pages."""
    out = aligned_empty((len(pages), page_bytes), np.uint8, PAGE_BYTES)
    files_R, offsets_R = np.full(len(pages), file, np.int32), np.array(pages, np.int64) * page_bytes
    result = read_pages(context, files_R, offsets_R, out, np.full(len(pages) * WORK_WORDS, 77, np.int64))
    if file != NO_FILE:
        plain = aligned_empty(out.shape, np.uint8, PAGE_BYTES)
        assert result == read_pages_reference(files_R, offsets_R, plain)
    return result, out


@pytest.fixture(params=["many in flight", "one by one"])
def context(request):
    context = open_context(AT_ONCE) if request.param == "many in flight" else 0
    yield context
    close_context(context)


@pytest.fixture(params=["direct", "cached"])
def file(request, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT.tobytes())
    try:
        file = os.open(tmp_path / "part", os.O_RDONLY | (os.O_DIRECT if request.param == "direct" else 0))
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    yield file
    os.close(file)


def test_this_machine_keeps_many_reads_in_flight():
    context = open_context(AT_ONCE)
    assert context != 0
    close_context(context)


@pytest.mark.parametrize("pages", [[0], [39], [5, 3, 3, 8], range(AT_ONCE), []], ids=str)
def test_pages_are_those_asked_for(context, file, pages):
    for _ in range(3):
        result, out = read(context, file, list(pages))
        assert result == (-1, 0)
        assert (out == CONTENT[list(pages)]).all()


def test_larger_pages_are_read_whole(context, file):
    result, out = read(context, file, [3, 0, 12], 3 * PAGE_BYTES)
    assert result == (-1, 0)
    assert (out.reshape(-1, PAGE_BYTES) == CONTENT[[9, 10, 11, 0, 1, 2, 36, 37, 38]]).all()


def test_the_first_page_beyond_the_end_is_named(context, file):
    assert read(context, file, [1, 40, 2, 41])[0] == (1, SHORT)
    assert read(context, file, [1, 13], 3 * PAGE_BYTES)[0] == (1, SHORT)
    assert read(context, file, [39])[0] == (-1, 0)


def test_a_file_that_cannot_be_read_is_told_with_its_errno(context, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read(context, folder, [0, 1])[0] == (0, errno.EISDIR)
    os.close(folder)


def check(alone=(), **faults):
    system = System(CONTENT.tobytes(), **faults)
    put_beneath(system)
    result, out = read(1, NO_FILE, range(10))
    assert result == (-1, 0)
    assert (out == CONTENT[:10]).all()
    assert system.waiting == []
    assert system.alone == list(alone)


def check_requests_taken_one_by_one_are_all_made():
    check(takes=1)


def check_an_interrupted_wait_is_taken_up_again():
    check(interrupts=5)


def check_requests_that_are_refused_are_read_alone():
    check(range(10), refuses_after=0)
    check(range(7, 10), refuses_after=7)


def check_pages_that_failed_or_were_cut_short_are_read_again_alone():
    check([3, 5, 9], results={3: 512, 5: -errno.EAGAIN, 9: 0})


def test_a_system_that_refuses_requests_is_asked_again():
    assert set(outcomes(__file__).values()) == {"ok"}


if __name__ == "__main__":
    run_checks({name: check for name, check in globals().items() if name.startswith("check_")})


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
