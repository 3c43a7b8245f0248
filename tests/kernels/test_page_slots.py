"""Slots of cached pages, against a reference that looks at every slot."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.page_rows import (
    NO_PAGE,
    WAYS,
    find_slots,
    find_slots_reference,
    insert_pages,
    insert_pages_reference,
)

PAGE_BYTES = 16


def empty(num_sets):
    """Page of each slot, marks, hands, content."""
    slots = num_sets * WAYS
    return (
        np.full(slots, NO_PAGE, np.int32),
        np.zeros(slots, np.uint8),
        np.zeros(num_sets, np.uint8),
        np.zeros((slots, PAGE_BYTES), np.uint8),
    )


def content_of(pages):
    return np.repeat(np.array(pages, np.int64)[:, None] + 1, PAGE_BYTES // 8, axis=1).view(np.uint8)


def insert(cache, pages, kernel=insert_pages):
    kernel(*cache, np.array(pages, np.int32), content_of(pages).reshape(-1, PAGE_BYTES))


def find(cache, pages, kernel=find_slots):
    """Positions with a slot, their slots, and the other positions."""
    members, slots = np.full(len(pages), -7, np.int32), np.full(len(pages), -7, np.int32)
    hits = kernel(cache[0], cache[1], len(cache[2]), np.array(pages, np.int32), members, slots)
    return members[:hits].tolist(), slots[:hits].tolist(), members[hits:].tolist()


@examples(24, 600)
@given(st.integers(1, 3), st.lists(st.lists(st.integers(0, 99), max_size=40), max_size=8))
def test_slots_are_those_of_the_reference(num_sets, calls):
    cache, plain = empty(num_sets), empty(num_sets)
    for pages in calls:
        found = find(cache, pages)
        assert found == find(plain, pages, find_slots_reference)
        missed = sorted({pages[p] for p in found[2]})
        insert(cache, missed)
        insert(plain, missed, insert_pages_reference)
        for array, other in zip(cache, plain, strict=True):
            assert array.tolist() == other.tolist()
        for slot, page in enumerate(cache[0]):
            assert page == NO_PAGE or (cache[3][slot] == content_of([page])).all()


def test_a_page_that_is_there_already_takes_no_second_slot():
    cache = empty(1)
    insert(cache, [5])
    insert(cache, [5, 6, 5])
    assert cache[0].tolist() == [5, 6] + [NO_PAGE] * (WAYS - 2)
