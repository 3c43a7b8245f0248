"""Rows on their way down: the host's victims before the outgoing rows that take their slots, in chunks of any size."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_plans import WORDS, made_plan, made_rows, made_slab

from pipeline.records import Trained
from pipeline.stages.write_back import write_back


class AppendedTo:
    """A disk that keeps every call."""

    def __init__(self):
        self.calls = []

    def scatter(self, at_U, rows_UW):
        self.calls.append((at_U.tolist(), rows_UW.tolist()))


@st.composite
def cases(draw):
    """Host slots, those whose rows leave, those that outgoing rows take (of the victims' and others), a chunk size."""
    num_slots = draw(st.integers(0, 12))
    slots = draw(st.permutations(range(num_slots)))
    victims = slots[: draw(st.integers(0, num_slots))]
    into = draw(st.permutations(range(num_slots)))[: draw(st.integers(0, num_slots))]
    num_out = len(into) + draw(st.integers(0, 12))
    return num_slots, victims, into, num_out, draw(st.integers(1, 9))


@settings(deadline=None)
@given(cases())
def test_a_row_is_lost_or_put_elsewhere_on_its_way_down(case):
    num_slots, victims, into, num_out, chunk_rows = case
    before = made_rows(range(num_slots), 100)
    outgoing_EW = made_rows(range(1000, 1000 + num_out), 500)
    host, disk = made_slab(before), AppendedTo()
    disk_from = 5 * chunk_rows
    plan = made_plan(
        host_victim_slots=victims, host_into=into, victim_slots_E=list(range(num_out)), disk_from=disk_from
    )
    chunk_RW = np.full((chunk_rows, WORDS), 9, np.uint32)
    written = write_back(plan, Trained(plan.block, outgoing_EW), host, disk, chunk_RW)

    down = [*before[victims].tolist(), *outgoing_EW[len(into) :].tolist()]
    assert [row for _, rows in disk.calls for row in rows] == down
    assert [p for at, _ in disk.calls for p in at] == list(range(disk_from, disk_from + len(down)))
    assert all(at[0] % chunk_rows == 0 for at, _ in disk.calls), "a chunk was begun in its middle"
    assert all(len(at) == chunk_rows for at, _ in disk.calls[:-1]), "a chunk was not filled"
    expected = before.copy()
    expected[into] = outgoing_EW[: len(into)]
    assert (host.words_SW == expected).all()
    assert written.block is plan.block
