"""Collectives of several workers in one process, on loopback."""

import time
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.loopback import make_groups, together
from support.runs.slow_runs import listening

from pipeline.comm.collective import take_all_steps
from pipeline.comm.group import Disconnected, Group, GroupSettings, OutOfOrder, Store
from pipeline.records import Rank

GROUPS = {}


def groups_of(world):
    """One group of each size serves all tests that break none."""
    if world not in GROUPS:
        GROUPS[world] = make_groups(world)
    return GROUPS[world]


def counted(group, kind):
    return group.traffic[kind].num_bytes, group.traffic[kind].messages


@st.composite
def sends(draw):
    """How many rows each worker sends to each, often none."""
    world = draw(st.integers(1, 4))
    rows = st.integers(0, 3) | st.just(0)
    return draw(st.lists(st.lists(rows, min_size=world, max_size=world), min_size=world, max_size=world))


@settings(deadline=None, max_examples=30)
@given(sends(), st.integers(0, 3))
def test_rows_reach_their_worker_in_order_and_are_counted(sizes, width):
    """Row r from worker a to b is all a.b.r; what stays at home is not counted."""
    world = len(sizes)
    groups = groups_of(world)
    before = [counted(group, "rows") for group in groups]

    def exchange(rank):
        rows = [(rank, to, r) for to in range(world) for r in range(sizes[rank][to])]
        send = torch.tensor([[100.0 * a + 10 * b + r] * width for a, b, r in rows]).reshape(len(rows), width)
        receive_W = [sizes[other][rank] for other in range(world)]
        receive = torch.full((sum(receive_W), width), -1.0)
        groups[rank].all_to_all(send, sizes[rank], receive, receive_W, "rows")
        return receive.tolist()

    received = together([partial(exchange, rank) for rank in range(world)])
    for rank in range(world):
        expected = [100.0 * a + 10 * rank + r for a in range(world) for r in range(sizes[a][rank])]
        assert received[rank] == [[value] * width for value in expected]
        to_others = [num for to, num in enumerate(sizes[rank]) if to != rank]
        num_bytes, messages = (after - b for after, b in zip(counted(groups[rank], "rows"), before[rank], strict=True))
        assert num_bytes == sum(to_others) * width * 4
        assert messages == sum(num > 0 for num in to_others)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_sum_has_the_same_bits_on_every_worker_and_every_time(world):
    groups = groups_of(world)
    vectors = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(world)]

    def add(rank):
        tensor = torch.from_numpy(vectors[rank].copy())
        groups[rank].all_reduce(tensor, "dense")
        return tensor.numpy()

    first, again = ([*together([partial(add, rank) for rank in range(world)])] for _ in range(2))
    np.testing.assert_allclose(first[0], np.sum(vectors, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)
    assert {one.tobytes() for one in first + again} == {first[0].tobytes()}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_parts_of_a_sum_are_added_in_the_order_of_ranks(world):
    """In the order of ranks, whichever worker adds up."""
    groups = groups_of(world)
    vectors = [np.random.default_rng(rank).standard_normal(48).astype(np.float32) for rank in range(world)]
    expected = vectors[0].copy()
    for other in vectors[1:]:
        expected += other

    def add(rank):
        tensor = torch.from_numpy(vectors[rank].copy())
        own = groups[rank].reduce_scatter(tensor, "merge")
        assert own.data_ptr() == tensor.chunk(world)[rank].data_ptr()
        groups[rank].all_gather(tensor, "merge")
        return tensor.numpy()

    for found in together([partial(add, rank) for rank in range(world)]):
        np.testing.assert_array_equal(found, expected)


def test_a_sum_is_not_mixed_with_what_travels_meanwhile():
    def meet(group):
        dense, rows, received = torch.full((33,), 1.0 + group.rank), torch.full((4,), float(group.rank)), torch.empty(4)
        steps = group.summing(dense, "dense")
        next(steps)
        group.all_to_all(rows, [2, 2], received, [2, 2], "gradients")
        next(steps)
        few = group.sums([group.rank])
        take_all_steps(steps)
        return dense.tolist(), received.tolist(), few

    groups = make_groups(2)
    for _ in range(20):
        found = together([partial(meet, group) for group in groups])
        assert found == [([3.0] * 33, [0.0, 0.0, 1.0, 1.0], [1.0])] * 2


def test_a_sum_counts_as_one_message_and_buffers_separately():
    groups = groups_of(2)
    before = {kind: counted(groups[0], kind) for kind in ("merge", "buffers")}
    together([lambda group=group: group.all_reduce(torch.ones(10), "merge", 3) for group in groups])
    assert counted(groups[0], "merge") == (before["merge"][0] + 28, before["merge"][1] + 1)
    assert counted(groups[0], "buffers") == (before["buffers"][0] + 12, before["buffers"][1])


def test_a_few_numbers_are_added_in_double_precision():
    groups = groups_of(3)
    numbers = [[rank, 1 + 2.0**-50] for rank in range(3)]
    found = together([partial(group.sums, of) for group, of in zip(groups, numbers, strict=True)])
    assert found == [[3.0, 3 + 3 * 2.0**-50]] * 3


def vector_sum(group, kind):
    group.all_reduce(torch.ones(4), kind)


@pytest.mark.parametrize("calls", [("dense", "merge"), ("dense", "agreement")])
def test_workers_at_different_collectives_are_refused_by_name(calls):
    groups = make_groups(2, check=True)

    def meet(group, kind):
        with pytest.raises(OutOfOrder, match=f"worker 0: {calls[0]} as number 1, worker 1: {calls[1]} as number 1"):
            vector_sum(group, kind)

    together([partial(meet, group, kind) for group, kind in zip(groups, calls, strict=True)])


def test_a_worker_that_has_left_out_a_collective_is_refused():
    groups = make_groups(2, check=True)
    groups[1]._sequence += 1

    def meet(group):
        with pytest.raises(OutOfOrder, match="worker 0: dense as number 1, worker 1: dense as number 2"):
            vector_sum(group, "dense")

    together([partial(meet, group) for group in groups])


@pytest.mark.parametrize("check", [False, True])
def test_a_missing_worker_is_waited_for_until_the_timeout(check):
    first, _other = make_groups(2, timeout_seconds=0.3, check=check)
    begun = time.perf_counter()
    with pytest.raises(Disconnected):
        vector_sum(first, "dense")
    assert time.perf_counter() - begun < 10


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_never_begins_without_all_of_its_workers(rank):
    settings = GroupSettings("lo", 0.3)
    with pytest.raises(RuntimeError):
        Group(Store("127.0.0.1", serves=True, timeout_seconds=0.3), "group", Rank(rank, 2), settings)


def test_a_worker_that_is_gone_is_noticed_at_once():
    first, *others = make_groups(3, check=False)
    others.clear()
    begun = time.perf_counter()
    with pytest.raises(Disconnected):
        vector_sum(first, "dense")
    assert time.perf_counter() - begun < 10


def test_a_later_group_of_a_store_meets_its_own_workers():
    """One store, since workers that restart find the same."""
    store = Store("127.0.0.1", serves=True)
    for name in ("one", "other"):

        def join(rank, name=name):
            return Group(Store("127.0.0.1", store.port), name, Rank(rank, 2), GroupSettings("lo", 30.0))

        groups = together([partial(join, rank) for rank in range(2)])
        assert together([partial(group.sums, [1.0]) for group in groups]) == [[2.0]] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_store_listens_on_its_hosts_address_alone(host):
    """Whoever reaches it may read and write."""
    before = {at for at in psutil.Process().net_connections() if at.status == psutil.CONN_LISTEN}
    store = Store(host, serves=True)
    listens = {at for at in psutil.Process().net_connections() if at.status == psutil.CONN_LISTEN} - before
    assert [tuple(at.laddr) for at in listens] == [(host, store.port)]
    Store(host, store.port).under("here").set("key", "value")
    assert store.under("here").get("key") == b"value"


def test_workers_of_one_folder_meet_without_a_server(tmp_path):
    before = listening(psutil.Process())
    settings, folder = GroupSettings("lo"), str(tmp_path)

    def join(rank):
        group = Group(Store("127.0.0.1", folder=folder), "group", Rank(rank, 2), settings)
        return group.sums([rank + 1.0])

    assert together([partial(join, rank) for rank in range(2)]) == [[3.0], [3.0]]
    assert listening(psutil.Process()) - before <= {"127.0.0.1"}
    alone = Store("127.0.0.1", folder=folder, timeout_seconds=0.1)
    with pytest.raises(RuntimeError, match=r"(?i)timeout"):
        Group(alone, "other", Rank(1, 2), GroupSettings("lo", 0.3))
