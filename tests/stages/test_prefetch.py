"""Arrivals in staging: in the plan's order, and never another key's row."""

import numpy as np
import pytest
from support.data.plans import WORDS, made_plan, made_rows, made_slab

from pipeline.stages.prefetch import prefetch
from pipeline.storage.files import Damaged

HOST_KEYS, DISK_KEYS = [0x10, 0x11, 0x12, 0x13], [0x20, 0x21, 0x22, 2**63 + 5]
NEW_KEYS = [2**64 - 2, 7]
TIERS = [made_slab(made_rows(HOST_KEYS, 100), "host"), made_slab(made_rows(DISK_KEYS, 200), "disk")]


def init(keys_U, out_UW):
    out_UW[...] = made_rows(keys_U, 300)


def make_plan(**changes):
    fields = {
        "arrival_keys_A": [*NEW_KEYS, HOST_KEYS[2], HOST_KEYS[0], DISK_KEYS[3], DISK_KEYS[1], DISK_KEYS[2]],
        "num_new": 2,
        "arrival_host_slots": [2, 0],
        "arrival_disk_at": [3, 1, 2],
    }
    return made_plan(**(fields | changes))


def staging(num_rows=9):
    return np.full((num_rows, WORDS), 9, np.uint32)


def test_arrivals_are_staged_in_the_order_of_the_plan():
    plan, staging_RW = make_plan(), staging()
    staged = prefetch(plan, *TIERS, staging_RW, init)
    host, disk = (tier.words_SW for tier in TIERS)
    expected = [*made_rows(NEW_KEYS, 300), host[2], host[0], disk[3], disk[1], disk[2]]
    assert staged.rows_AW.tolist() == np.array(expected).tolist()
    assert staged.block is plan.block
    assert np.shares_memory(staged.rows_AW, staging_RW), "the rows are not in the ring's buffer"
    assert (staging_RW[7:] == 9).all(), "wrote past its rows"


def test_a_block_without_arrivals_is_prefetched():
    staged = prefetch(made_plan(), *TIERS, staging(), init)
    assert staged.rows_AW.shape == (0, WORDS)


def test_prefetch_only_reads_the_tiers():
    before = [tier.words_SW.copy() for tier in TIERS]
    prefetch(make_plan(), *TIERS, staging(), init)
    assert all((tier.words_SW == words).all() for tier, words in zip(TIERS, before, strict=True))


WRONG = [
    ({"arrival_host_slots": [2, 1]}, "1 of 2 rows", "host slot 1", HOST_KEYS[1], HOST_KEYS[0]),
    ({"arrival_host_slots": [3, 1]}, "2 of 2 rows", "host slot 3", HOST_KEYS[3], HOST_KEYS[2]),
    ({"arrival_disk_at": [3, 1, 0]}, "1 of 3 rows", "disk slot 0", DISK_KEYS[0], DISK_KEYS[2]),
    ({"arrival_disk_at": [2, 1, 3]}, "2 of 3 rows", "disk slot 2", DISK_KEYS[2], DISK_KEYS[3]),
]


@pytest.mark.parametrize(("changes", "how_many", "place", "got", "asked"), WRONG)
def test_the_row_of_another_key_is_refused_with_its_place(changes, how_many, place, got, asked):
    with pytest.raises(Damaged) as caught:
        prefetch(make_plan(**changes), *TIERS, staging(), init)
    said = str(caught.value)
    assert how_many in said
    assert f"{place} holds key {got:#018x} instead of {asked:#018x}" in said
