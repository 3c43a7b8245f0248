"""Where workers are placed, on machines of one and of two sockets, and on any that can be drawn."""

import os
import threading
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine.affinity import affinity_lines, deal_cpus, format_cpus, lay_out, pin
from pipeline.machine.topology import Core, GpuInfo, Topology, allowed_cpus


def machine(num_cores, num_nodes=1, gpu_nodes=()):
    """A machine whose cores have two threads each, numbered as by Linux, and GPUs on these nodes."""
    cores = tuple(Core((n, num_cores + n), n * num_nodes // num_cores) for n in range(num_cores))
    return Topology(cores, tuple(GpuInfo(n, f"GPU-{n}", node) for n, node in enumerate(gpu_nodes)))


TWO_SOCKETS = machine(32, 2, (0, 1, 0, 1))
TWO_CORES = Topology((Core((0,), None), Core((1,), None)))


def check(topology, affinities, num_workers):
    """What holds of every layout."""
    all_cpus = list(chain(*(core.cpus for core in topology.cores)))
    assert len(affinities) == num_workers
    assert all(affinity.cpus for affinity in affinities)
    taken = list(chain(*(affinity.cpus for affinity in affinities)))
    assert set(taken) <= set(all_cpus)
    if num_workers <= len(all_cpus):
        assert len(taken) == len(set(taken))
    else:
        assert all(sorted(affinity.cpus) == sorted(all_cpus) for affinity in affinities)
    if topology.gpus:
        assert len({affinity.gpu for affinity in affinities}) == num_workers
        assert {affinity.gpu for affinity in affinities} <= set(topology.gpus)
    else:
        assert set(taken) == set(all_cpus)


def test_gpus_are_taken_node_by_node_with_cpus_of_their_node():
    affinities = lay_out(TWO_SOCKETS, 4)
    assert [affinity.gpu.index for affinity in affinities] == [0, 2, 1, 3]
    assert [affinity.node for affinity in affinities] == [0, 0, 1, 1]
    assert affinities[1].cpus == (*range(8, 16), *range(40, 48))
    assert [affinity.gpu.index for affinity in lay_out(TWO_SOCKETS, 2)] == [0, 2]


def test_workers_without_gpus_get_whole_cores_of_one_node():
    topology = machine(16, 2)
    affinities = lay_out(topology, 4)
    assert [affinity.cpus for affinity in affinities[:2]] == [
        (0, 1, 2, 3, 16, 17, 18, 19), (4, 5, 6, 7, 20, 21, 22, 23),
    ]  # fmt: skip
    assert [affinity.node for affinity in affinities] == [0, 0, 1, 1]
    # The only worker has both nodes, so it is of none.
    assert lay_out(topology, 1)[0].node is None
    assert all(len(affinity.cpus) == 1 for affinity in lay_out(topology, 32))


def test_more_workers_than_cpus_share_all_cpus():
    assert [affinity.cpus for affinity in lay_out(TWO_CORES, 4)] == [(0, 1)] * 4
    assert [affinity.cpus for affinity in lay_out(TWO_CORES, 2)] == [(0,), (1,)]


def test_an_impossible_number_of_workers_is_refused():
    with pytest.raises(ValueError, match="5 workers on one machine: take at least 1 and 4 at most, one for each GPU"):
        lay_out(TWO_SOCKETS, 5)
    with pytest.raises(ValueError, match="0 workers on one machine: take at least 1"):
        lay_out(TWO_CORES, 0)


NODES = st.sampled_from([None, 0, 1, 2])
CORES = st.lists(st.tuples(st.integers(1, 4), NODES), min_size=1, max_size=12)


@st.composite
def topologies(draw):
    numbers = iter(draw(st.permutations(range(48))))
    cores = tuple(Core(tuple(sorted(next(numbers) for _ in range(n))), node) for n, node in draw(CORES))
    gpus = tuple(GpuInfo(n, f"GPU-{n}", node) for n, node in enumerate(draw(st.lists(NODES, max_size=6))))
    return Topology(cores, gpus)


@given(topologies(), st.integers(1, 60))
@settings(deadline=None)
def test_workers_of_any_machine_each_get_their_own_cpus_and_gpu(topology, num_workers):
    num_workers = min(num_workers, len(topology.gpus) or num_workers)
    affinities = lay_out(topology, num_workers)
    check(topology, affinities, num_workers)
    assert lay_out(topology, num_workers) == affinities
    known = [affinity.gpu for affinity in affinities if affinity.gpu]
    room = all(
        gpu.node is not None
        and sum(len(c.cpus) for c in topology.cores if c.node == gpu.node) >= sum(g.node == gpu.node for g in known)
        for gpu in known
    )
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    if room:
        assert all(
            node_of[cpu] == affinity.gpu.node for affinity in affinities if affinity.gpu for cpu in affinity.cpus
        )


@given(CORES, st.integers(1, 12))
def test_cores_are_dealt_whole_and_evenly(sizes, num_workers):
    cores = [Core(tuple(range(4 * n, 4 * n + size)), node) for n, (size, node) in enumerate(sizes)]
    dealt = deal_cpus(cores, num_workers)
    if len(cores) >= num_workers:
        held = [sum(core.cpus[0] in some for core in cores) for some in dealt]
        assert max(held) - min(held) <= 1
        assert all(set(core.cpus) <= set(some) for some in dealt for core in cores if core.cpus[0] in some)


def test_workers_are_described_with_their_gpu_node_and_cpus():
    assert affinity_lines(lay_out(TWO_SOCKETS, 2)) == [
        "worker 0: GPU 0, NUMA node 0, CPUs 0-7,32-39",
        "worker 1: GPU 2, NUMA node 0, CPUs 8-15,40-47",
    ]
    assert affinity_lines(lay_out(TWO_CORES, 1)) == ["worker 0: NUMA node unknown, CPUs 0-1"]
    assert format_cpus(()) == "unknown"


def test_pinning_moves_existing_threads_too():
    before, stop, seen = allowed_cpus(), threading.Event(), []
    ready = threading.Event()

    def wait():
        ready.set()
        stop.wait(30)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(30)
    try:
        one = {min(before)}
        assert pin(sorted(one)) == one
        stop.set()
        thread.join(30)
        assert seen == [one]
    finally:
        stop.set()
        pin(sorted(before))
    assert allowed_cpus() == before


def test_pinning_to_unknown_or_missing_cpus_changes_nothing():
    before = allowed_cpus()
    assert pin(()) == before
    assert pin((4095,)) == before
