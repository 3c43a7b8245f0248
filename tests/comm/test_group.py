"""Collectives of several workers in one process, on loopback and through shared memory."""

import os
import subprocess
import sys
import threading
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
from pipeline.comm.shared_memory import SharedMemory
from pipeline.records import Rank

GROUPS = {}


def groups_of(world, one_machine):
    """One group of each size serves all tests that break none."""
    if (world, one_machine) not in GROUPS:
        GROUPS[world, one_machine] = make_groups(world, one_machine=one_machine)
    return GROUPS[world, one_machine]


BOTH_WAYS = pytest.mark.parametrize("one_machine", [False, True])


def counted(group, kind):
    return group.traffic[kind].num_bytes, group.traffic[kind].messages


@st.composite
def sends(draw):
    """How many rows each worker sends to each, often none."""
    world = draw(st.integers(1, 4))
    rows = st.integers(0, 3) | st.just(0)
    return draw(st.lists(st.lists(rows, min_size=world, max_size=world), min_size=world, max_size=world))


@BOTH_WAYS
@settings(deadline=None, max_examples=30)
@given(sends(), st.integers(0, 3))
def test_rows_reach_their_worker_in_order_and_are_counted(one_machine, sizes, width):
    """Row r from worker a to b is all a.b.r; what stays at home is not counted."""
    world = len(sizes)
    groups = groups_of(world, one_machine)
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


@BOTH_WAYS
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_sum_has_the_same_bits_on_every_worker_and_every_time(world, one_machine):
    groups = groups_of(world, one_machine)
    vectors = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(world)]

    def add(rank):
        tensor = torch.from_numpy(vectors[rank].copy())
        groups[rank].all_reduce(tensor, "dense")
        return tensor.numpy()

    first, again = ([*together([partial(add, rank) for rank in range(world)])] for _ in range(2))
    np.testing.assert_allclose(first[0], np.sum(vectors, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)
    assert {one.tobytes() for one in first + again} == {first[0].tobytes()}


@BOTH_WAYS
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_parts_of_a_sum_are_added_in_the_order_of_ranks(world, one_machine):
    """In the order of ranks, whichever worker adds up."""
    groups = groups_of(world, one_machine)
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


@BOTH_WAYS
def test_a_sum_is_not_mixed_with_what_travels_meanwhile(one_machine):
    def meet(group):
        dense, rows, received = torch.full((33,), 1.0 + group.rank), torch.full((4,), float(group.rank)), torch.empty(4)
        steps = group.summing(dense, "dense")
        next(steps)
        group.all_to_all(rows, [2, 2], received, [2, 2], "gradients")
        next(steps)
        few = group.sums([group.rank])
        take_all_steps(steps)
        return dense.tolist(), received.tolist(), few

    groups = make_groups(2, one_machine=one_machine)
    for _ in range(20):
        found = together([partial(meet, group) for group in groups])
        assert found == [([3.0] * 33, [0.0, 0.0, 1.0, 1.0], [1.0])] * 2


@BOTH_WAYS
def test_a_sum_counts_as_one_message_and_buffers_separately(one_machine):
    groups = groups_of(2, one_machine)
    before = {kind: counted(groups[0], kind) for kind in ("merge", "buffers")}
    together([lambda group=group: group.all_reduce(torch.ones(10), "merge", 3) for group in groups])
    assert counted(groups[0], "merge") == (before["merge"][0] + 28, before["merge"][1] + 1)
    assert counted(groups[0], "buffers") == (before["buffers"][0] + 12, before["buffers"][1])


@BOTH_WAYS
def test_a_few_numbers_are_added_in_double_precision(one_machine):
    groups = groups_of(3, one_machine)
    numbers = [[rank, 1 + 2.0**-50] for rank in range(3)]
    found = together([partial(group.sums, of) for group, of in zip(groups, numbers, strict=True)])
    assert found == [[3.0, 3 + 3 * 2.0**-50]] * 3


def vector_sum(group, kind):
    group.all_reduce(torch.ones(4), kind)


@BOTH_WAYS
@pytest.mark.parametrize("calls", [("dense", "merge"), ("dense", "agreement")])
def test_workers_at_different_collectives_are_refused_by_name(calls, one_machine):
    groups = make_groups(2, check=True, one_machine=one_machine)

    def meet(group, kind):
        with pytest.raises(OutOfOrder, match=f"worker 0: {calls[0]} as number 1, worker 1: {calls[1]} as number 1"):
            vector_sum(group, kind)

    together([partial(meet, group, kind) for group, kind in zip(groups, calls, strict=True)])


@BOTH_WAYS
def test_a_worker_that_has_left_out_a_collective_is_refused(one_machine):
    groups = make_groups(2, check=True, one_machine=one_machine)
    groups[1]._sequence += 1

    def meet(group):
        with pytest.raises(OutOfOrder, match="worker 0: dense as number 1, worker 1: dense as number 2"):
            vector_sum(group, "dense")

    together([partial(meet, group) for group in groups])


@BOTH_WAYS
@pytest.mark.parametrize("check", [False, True])
def test_a_missing_worker_is_waited_for_until_the_timeout(check, one_machine):
    first, _other = make_groups(2, timeout_seconds=0.3, check=check, one_machine=one_machine)
    begun = time.perf_counter()
    with pytest.raises(Disconnected):
        vector_sum(first, "dense")
    assert time.perf_counter() - begun < 10


@BOTH_WAYS
@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_never_begins_without_all_of_its_workers(rank, one_machine):
    settings = GroupSettings("lo", 0.3, one_machine=one_machine)
    with pytest.raises(RuntimeError):
        Group(Store("127.0.0.1", serves=True, timeout_seconds=0.3), "group", Rank(rank, 2), settings)


def test_a_worker_that_is_gone_is_noticed_at_once():
    first, *others = make_groups(3, check=False, one_machine=True)
    others.clear()
    begun = time.perf_counter()
    with pytest.raises(Disconnected):
        vector_sum(first, "dense")
    assert time.perf_counter() - begun < 10


def test_a_worker_that_leaves_is_noticed_at_once():
    store = Store("127.0.0.1", serves=True)
    ends = together([
        lambda rank=rank: SharedMemory(Store("127.0.0.1", store.port).under("group"), Rank(rank, 2), 30.0)
        for rank in range(2)
    ])  # fmt: skip
    begun, tensor = time.perf_counter(), torch.zeros(2)
    started = ends[0].alltoall_base(torch.empty(2), tensor, [1, 1], [1, 1])
    # It has read what was sent to it, so that its end closes in order.
    ends[1]._others[0].note(1)
    ends.pop()
    with pytest.raises(ConnectionError, match="another worker of this machine is gone"):
        started.wait()
    assert time.perf_counter() - begun < 10


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12), st.integers(1, 4))
def test_calls_that_overlap_do_not_mix_their_data(sizes, at_once):
    """Several calls begin before the first of them is waited for, and the last is waited for first."""
    groups = groups_of(2, True)

    def meet(group):
        for first in range(0, len(sizes), at_once):
            begun = []
            for n, size in enumerate(sizes[first : first + at_once]):
                send, receive = torch.full((2 * size,), 10.0 * n + group.rank), torch.empty(2 * size)
                each = [size, size]
                begun.append((n, size, receive, group._host.alltoall_base(receive, send, each, each)))
            for n, size, receive, call in reversed(begun):
                call.wait()
                assert receive.tolist() == [10.0 * n] * size + [10.0 * n + 1] * size

    together([partial(meet, group) for group in groups])


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


STRANGER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as meeting:
    if sys.argv[1] == "listen":
        meeting.bind("")
        meeting.listen()
        print(meeting.getsockname().hex(), flush=True)
        sys.stdin.read()
    else:
        meeting.connect(bytes.fromhex(sys.argv[1]))
        meeting.send((1).to_bytes(4, "little"))
        print("there", flush=True)
        try:
            print("heard" if meeting.recv(1) else "refused")
        except ConnectionResetError:
            print("refused")
"""


class Watched(dict):
    """A store, which calls `on_set` with an address before others see it."""

    def __init__(self, on_set):
        super().__init__()
        self._on_set, self._there = on_set, threading.Condition()

    def set(self, key, address):
        with self._there:
            self[key] = self._on_set(key, address)
            self._there.notify_all()

    def get(self, key):
        with self._there:
            assert self._there.wait_for(lambda: key in self, 20)
            return self[key]


def stranger(*arguments):
    if os.geteuid():
        pytest.skip("only root can act as another user")
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", STRANGER, *arguments], stdin=pipe, stdout=pipe, text=True)


def test_another_user_who_connects_is_no_worker():
    strangers = []

    def first_comes_a_stranger(key, address):
        if key == "0":
            strangers.append(stranger(address.hex()))
            assert strangers[0].stdout.readline() == "there\n"
        return address

    store = Watched(first_comes_a_stranger)
    ends = together([partial(SharedMemory, store, Rank(rank, 2), 20.0) for rank in range(2)])
    with strangers[0] as process:
        assert process.communicate()[0] == "refused\n"
    sent, received = [torch.tensor([1, 2]), torch.tensor([3, 4])], [torch.zeros(2, dtype=int) for _ in range(2)]
    waiting = [end.alltoall_base(received[rank], sent[rank], [1, 1], [1, 1]) for rank, end in enumerate(ends)]
    together([work.wait for work in waiting])
    assert torch.stack(received).tolist() == [[1, 3], [2, 4]]


def test_a_worker_sends_no_other_user_its_rows():
    with stranger("listen") as process:
        address = bytes.fromhex(process.stdout.readline())
        store = Watched(lambda key, _: address)
        store.set("0", b"")
        with pytest.raises(PermissionError, match="worker 0 on this machine does not run as user 0"):
            SharedMemory(store, Rank(1, 2), 5.0)
        process.stdin.close()


def test_workers_of_one_folder_meet_without_a_server(tmp_path):
    before = listening(psutil.Process())
    settings, folder = GroupSettings(one_machine=True), str(tmp_path)

    def join(rank):
        group = Group(Store("127.0.0.1", folder=folder), "group", Rank(rank, 2), settings)
        return group.sums([rank + 1.0])

    assert together([partial(join, rank) for rank in range(2)]) == [[3.0], [3.0]]
    assert listening(psutil.Process()) == before
    alone = Store("127.0.0.1", folder=folder, timeout_seconds=0.1)
    with pytest.raises(Disconnected, match="Timeout"):
        Group(alone, "other", Rank(1, 2), settings)
