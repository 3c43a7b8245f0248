"""Rows on their way up from disk, and down: the host's victims leave before those that take their slots come."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.plans import WORDS, made_plan, made_rows, made_slab

from pipeline.records import DiskWrite, Trained
from pipeline.stages.prefetch import prefetch
from pipeline.stages.write_back import write_back
from pipeline.storage.files import Damaged


class AppendedTo:
    """A disk that keeps every call."""

    def __init__(self):
        self.calls = []

    def scatter(self, at_U, rows_UW):
        self.calls.append((at_U.tolist(), rows_UW.tolist()))


@st.composite
def cases(draw):
    """Host slots, those whose rows leave, those that outgoing rows take (of the victims' and others), a chunk size,
    and how many shards the rows that go to disk are divided among."""
    num_slots = draw(st.integers(0, 12))
    slots = draw(st.permutations(range(num_slots)))
    victims = slots[: draw(st.integers(0, num_slots))]
    into = draw(st.permutations(range(num_slots)))[: draw(st.integers(0, num_slots))]
    num_out = len(into) + draw(st.integers(0, 12))
    return num_slots, victims, into, num_out, draw(st.integers(1, 9)), draw(st.integers(1, 4))


def made_disk_writes(num_host, num_device, chunk_rows, num_shards):
    """Rows divided among shards, each of which has five chunks already; chunks of one shard are `num_shards` apart."""
    disk_writes = []
    for shard in range(num_shards):
        host, device = (len(range(shard, num, num_shards)) for num in (num_host, num_device))
        own = np.arange(host + device)
        at_N = ((5 + own // chunk_rows) * num_shards + shard) * chunk_rows + own % chunk_rows
        disk_writes += [DiskWrite(host, device, at_N)] if host + device else []
    return tuple(disk_writes)


@settings(deadline=None)
@given(cases())
def test_every_row_that_leaves_a_slab_reaches_its_place(case):
    num_slots, victims, into, num_out, chunk_rows, num_shards = case
    before = made_rows(range(num_slots), 100)
    outgoing_EW = made_rows(range(1000, 1000 + num_out), 500)
    host, disk = made_slab(before), AppendedTo()
    disk_writes = made_disk_writes(len(victims), num_out - len(into), chunk_rows, num_shards)
    plan = made_plan(
        host_victim_slots=victims, host_into=into, victim_slots_E=list(range(num_out)), disk_writes=disk_writes
    )
    chunk_RW = np.full((chunk_rows, WORDS), 9, np.uint32)
    written = write_back(plan, Trained(plan.block, outgoing_EW), host, disk, chunk_RW)

    from_host, from_device, down = before[victims].tolist(), outgoing_EW[len(into) :].tolist(), []
    for disk_write in disk_writes:
        down += from_host[: disk_write.num_host] + from_device[: disk_write.num_device]
        from_host, from_device = from_host[disk_write.num_host :], from_device[disk_write.num_device :]
    assert [row for _, rows in disk.calls for row in rows] == down
    assert [p for at, _ in disk.calls for p in at] == [
        p for disk_write in disk_writes for p in disk_write.at_N.tolist()
    ]
    assert all(at[0] % chunk_rows == 0 for at, _ in disk.calls), "a chunk was begun in its middle"
    assert all(at[-1] - at[0] == len(at) - 1 < chunk_rows for at, _ in disk.calls), "a call is of several chunks"
    expected = before.copy()
    expected[into] = outgoing_EW[: len(into)]
    assert (host.words_SW == expected).all()
    assert written.block is plan.block


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
