"""Where workers sit, on topologies written after published ones of such machines, and on any that can be drawn."""

import json
import os
import threading
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine.affinity import deal_cpus, format_cpus, lay_out, layout_lines, pin, ring
from pipeline.machine.topology import Attached, Core, GpuInfo, Topology, allowed_cpus

FOLDER = Path(__file__).parent / "topologies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def recorded(name):
    """json.dumps(dataclasses.asdict(read_topology(True))), as a machine would tell it."""
    told = json.loads((FOLDER / f"{name}.json").read_text())
    return Topology(
        tuple(Core(tuple(core["cpus"]), core["node"]) for core in told["cores"]),
        tuple(GpuInfo(**gpu) for gpu in told["gpus"]),
        tuple(map(tuple, told["links"])),
        tuple(Attached(**disk) for disk in told["disks"]),
        tuple(Attached(**nic) for nic in told["nics"]),
    )


def links_of_ring(topology, affinities):
    at = {gpu: n for n, gpu in enumerate(topology.gpus)}
    order = [at[affinity.gpu] for affinity in affinities]
    return [topology.links[a][b] for a, b in pairwise([*order, order[0]])]


def check(topology, layout, num_workers):
    """What holds of every layout."""
    all_cpus = list(chain(*(core.cpus for core in topology.cores)))
    affinities = layout.affinities
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
    assert {affinity.nic for affinity in affinities} <= ({nic.name for nic in topology.nics} or {None})


@pytest.mark.parametrize("name", NAMES)
def test_workers_of_a_recorded_machine_each_get_their_own_cpus_and_gpu(name):
    topology = recorded(name)
    for num_workers in range(1, 1 + (len(topology.gpus) or 5)):
        check(topology, lay_out(topology, num_workers), num_workers)


def test_the_ring_of_a_hybrid_cube_mesh_uses_only_its_double_links():
    topology = recorded("hybrid_cube_mesh")
    affinities = lay_out(topology, 8).affinities
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
    assert sorted(links_of_ring(topology, lay_out(topology, 4).affinities)) == ["NV1", "NV2", "NV2", "NV2"]
    assert links_of_ring(topology, lay_out(topology, 2).affinities) == ["NV2", "NV2"]


def test_workers_behind_a_switch_keep_gpu_order_and_local_cpus_and_cards():
    layout = lay_out(recorded("nvswitch"), 8, "nvme5n1")
    assert [affinity.gpu.index for affinity in layout.affinities] == list(range(8))
    assert [affinity.nic for affinity in layout.affinities] == [f"ib{n}" for n in range(8)]
    assert layout.disk_node == 1
    for affinity in layout.affinities:
        assert {cpu % 112 // 56 for cpu in affinity.cpus} == {affinity.node} == {affinity.gpu.index // 4}
        assert len(affinity.cpus) == 28


def test_gpus_of_one_socket_are_neighbours_in_the_ring():
    topology = recorded("pcie_two_sockets")
    affinities = lay_out(topology, 4).affinities
    assert [affinity.gpu.index for affinity in affinities] == [0, 2, 3, 1]
    assert sorted(links_of_ring(topology, affinities)) == ["NODE", "PIX", "SYS", "SYS"]
    assert [affinity.node for affinity in affinities] == [0, 0, 1, 1]
    # Two workers take the two that share a switch.
    assert [affinity.gpu.index for affinity in lay_out(topology, 2).affinities] == [1, 3]


def test_workers_without_gpus_get_whole_cores_of_one_node():
    topology = recorded("no_gpu_two_nodes")
    affinities = lay_out(topology, 4).affinities
    assert [affinity.cpus for affinity in affinities[:2]] == [
        (0, 1, 2, 3, 16, 17, 18, 19),
        (4, 5, 6, 7, 20, 21, 22, 23),
    ]
    assert [affinity.node for affinity in affinities] == [0, 0, 1, 1]
    # The only worker has both nodes, so it is of none.
    assert lay_out(topology, 1).affinities[0].node is None
    assert all(len(affinity.cpus) == 1 for affinity in lay_out(topology, 32).affinities)


def test_more_workers_than_cpus_share_all_cpus():
    affinities = lay_out(recorded("two_cores"), 4).affinities
    assert [affinity.cpus for affinity in affinities] == [(0, 1)] * 4
    assert [affinity.cpus for affinity in lay_out(recorded("two_cores"), 2).affinities] == [(0,), (1,)]


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
    speeds = [sorted(links_of_ring(t, lay_out(t, num_workers).affinities)) for t in (topology, other)]
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
    nics = tuple(Attached(f"eth{n}", node) for n, node in enumerate(draw(st.lists(NODES, max_size=3))))
    return Topology(cores, gpus, links, (), nics)


@given(topologies(), st.integers(1, 60))
@settings(deadline=None)
def test_workers_of_any_machine_each_get_their_own_cpus_and_gpu(topology, num_workers):
    num_workers = min(num_workers, len(topology.gpus) or num_workers)
    layout = lay_out(topology, num_workers)
    check(topology, layout, num_workers)
    assert lay_out(topology, num_workers) == layout
    known = [affinity.gpu for affinity in layout.affinities if affinity.gpu]
    room = all(
        gpu.node is not None
        and sum(len(c.cpus) for c in topology.cores if c.node == gpu.node) >= sum(g.node == gpu.node for g in known)
        for gpu in known
    )
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    if room:
        assert all(
            node_of[cpu] == affinity.gpu.node for affinity in layout.affinities if affinity.gpu for cpu in affinity.cpus
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


def test_a_layout_is_described_as_it_is():
    lines = layout_lines(lay_out(recorded("pcie_two_sockets"), 2, "nvme0n1"))
    assert lines == [
        "worker 0: GPU 1, NUMA node 1, CPUs 16-23,48-55, network card eno1",
        "worker 1: GPU 3, NUMA node 1, CPUs 24-31,56-63, network card eno1",
        "run directory: disk nvme0n1, NUMA node 1",
    ]
    assert layout_lines(lay_out(recorded("two_cores"), 1)) == [
        "worker 0: NUMA node unknown, CPUs 0-1, network card eth0",
    ]
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
