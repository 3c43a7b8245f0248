"""Rows on their way down: the host's victims before the outgoing rows that take their slots, in chunks of any size."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.plans import WORDS, made_plan, made_rows, made_slab

from pipeline.records import DiskWrite, Trained
from pipeline.stages.write_back import write_back


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
