"""Where workers sit, on topologies written after published ones of such machines, and on any that can be drawn."""

import json
import os
import threading
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine.affinity import affinity_lines, deal_cpus, format_cpus, lay_out, pin, ring
from pipeline.machine.topology import Core, GpuInfo, Topology, allowed_cpus

FOLDER = Path(__file__).parent / "topologies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def recorded(name):
    """json.dumps(dataclasses.asdict(read_topology(True))), as such a machine would write it."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return Topology(
        tuple(Core(tuple(core["cpus"]), core["node"]) for core in content["cores"]),
        tuple(GpuInfo(**gpu) for gpu in content["gpus"]),
        tuple(map(tuple, content["links"])),
    )


def links_of_ring(topology, affinities):
    at = {gpu: n for n, gpu in enumerate(topology.gpus)}
    order = [at[affinity.gpu] for affinity in affinities]
    return [topology.links[a][b] for a, b in pairwise([*order, order[0]])]


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


@pytest.mark.parametrize("name", NAMES)
def test_workers_of_a_recorded_machine_each_get_their_own_cpus_and_gpu(name):
    topology = recorded(name)
    for num_workers in range(1, 1 + (len(topology.gpus) or 5)):
        check(topology, lay_out(topology, num_workers), num_workers)


def test_the_ring_of_a_hybrid_cube_mesh_uses_only_its_double_links():
    topology = recorded("hybrid_cube_mesh")
    affinities = lay_out(topology, 8)
    assert [affinity.gpu.index for affinity in affinities] == [0, 3, 2, 1, 5, 6, 7, 4]
    assert set(links_of_ring(topology, affinities)) == {"NV2"}
    order = [affinity.gpu.index for affinity in affinities]
    crossings = [(a, b) for a, b in pairwise([*order, order[0]]) if a // 4 != b // 4]
    assert all((a + 4) % 8 == b for a, b in crossings)
    assert [len(affinity.cpus) for affinity in affinities] == [10] * 8
    assert all(affinity.node == affinity.gpu.index // 4 for affinity in affinities)
    assert affinities[0].cpus == (0, 1, 2, 3, 4, 40, 41, 42, 43, 44)


def test_a_ring_of_few_workers_in_a_hybrid_cube_mesh_stays_on_nvlink():
    topology = recorded("hybrid_cube_mesh")
    assert sorted(links_of_ring(topology, lay_out(topology, 4))) == ["NV1", "NV2", "NV2", "NV2"]
    assert links_of_ring(topology, lay_out(topology, 2)) == ["NV2", "NV2"]


def test_workers_behind_a_switch_keep_gpu_order_and_local_cpus_and_cards():
    affinities = lay_out(recorded("nvswitch"), 8)
    assert [affinity.gpu.index for affinity in affinities] == list(range(8))
    for affinity in affinities:
        assert {cpu % 112 // 56 for cpu in affinity.cpus} == {affinity.node} == {affinity.gpu.index // 4}
        assert len(affinity.cpus) == 28


def test_gpus_of_one_socket_are_neighbours_in_the_ring():
    topology = recorded("pcie_two_sockets")
    affinities = lay_out(topology, 4)
    assert [affinity.gpu.index for affinity in affinities] == [0, 2, 3, 1]
    assert sorted(links_of_ring(topology, affinities)) == ["NODE", "PIX", "SYS", "SYS"]
    assert [affinity.node for affinity in affinities] == [0, 0, 1, 1]
    # Two workers take the two that share a switch.
    assert [affinity.gpu.index for affinity in lay_out(topology, 2)] == [1, 3]


def test_workers_without_gpus_get_whole_cores_of_one_node():
    topology = recorded("no_gpu_two_nodes")
    affinities = lay_out(topology, 4)
    assert [affinity.cpus for affinity in affinities[:2]] == [
        (0, 1, 2, 3, 16, 17, 18, 19),
        (4, 5, 6, 7, 20, 21, 22, 23),
    ]
    assert [affinity.node for affinity in affinities] == [0, 0, 1, 1]
    # The only worker has both nodes, so it is of none.
    assert lay_out(topology, 1)[0].node is None
    assert all(len(affinity.cpus) == 1 for affinity in lay_out(topology, 32))


def test_more_workers_than_cpus_share_all_cpus():
    affinities = lay_out(recorded("two_cores"), 4)
    assert [affinity.cpus for affinity in affinities] == [(0, 1)] * 4
    assert [affinity.cpus for affinity in lay_out(recorded("two_cores"), 2)] == [(0,), (1,)]


def test_an_impossible_number_of_workers_is_refused():
    with pytest.raises(ValueError, match="5 workers on one machine: take at least 1 and 4 at most, one for each GPU"):
        lay_out(recorded("pcie_two_sockets"), 5)
    with pytest.raises(ValueError, match="0 workers on one machine: take at least 1"):
        lay_out(recorded("two_cores"), 0)


@given(st.permutations(range(8)), st.integers(2, 8))
@settings(max_examples=20, deadline=None)
def test_the_speed_of_the_ring_is_the_same_for_any_numbering_of_gpus(numbering, num_workers):
    topology = recorded("hybrid_cube_mesh")
    links = tuple(tuple(topology.links[a][b] for b in numbering) for a in numbering)
    other = Topology(topology.cores, tuple(topology.gpus[n] for n in numbering), links)
    speeds = [sorted(links_of_ring(t, lay_out(t, num_workers))) for t in (topology, other)]
    assert speeds[0] == speeds[1]


NODES = st.sampled_from([None, 0, 1, 2])
CORES = st.lists(st.tuples(st.integers(1, 4), NODES), min_size=1, max_size=12)
LINKS = st.sampled_from(["NV1", "NV2", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS", ""])


@st.composite
def topologies(draw):
    numbers = iter(draw(st.permutations(range(48))))
    cores = tuple(Core(tuple(sorted(next(numbers) for _ in range(n))), node) for n, node in draw(CORES))
    gpus = tuple(GpuInfo(n, f"GPU-{n}", node) for n, node in enumerate(draw(st.lists(NODES, max_size=6))))
    upper = {(a, b): draw(LINKS) for a in range(len(gpus)) for b in range(a)}
    links = tuple(
        tuple("X" if a == b else upper[max(a, b), min(a, b)] for b in range(len(gpus))) for a in range(len(gpus))
    )
    return Topology(cores, gpus, links)


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


def test_sixteen_gpus_are_ordered_by_node_without_a_search():
    gpus = [GpuInfo(n, f"GPU-{n}", n % 2) for n in range(16)]
    links = tuple(tuple("X" if a == b else "NV6" for b in range(16)) for a in range(16))
    assert ring(gpus, links, 10) == (0, 2, 4, 6, 8, 10, 12, 14, 1, 3)


def test_workers_are_described_with_their_gpu_node_and_cpus():
    assert affinity_lines(lay_out(recorded("pcie_two_sockets"), 2)) == [
        "worker 0: GPU 1, NUMA node 1, CPUs 16-23,48-55",
        "worker 1: GPU 3, NUMA node 1, CPUs 24-31,56-63",
    ]
    assert affinity_lines(lay_out(recorded("two_cores"), 1)) == ["worker 0: NUMA node unknown, CPUs 0-1"]
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
