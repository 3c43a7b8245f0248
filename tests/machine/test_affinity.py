"""Where workers sit, on topologies written after published ones of such machines, and on any that can be drawn."""

import json
import os
import threading
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine.affinity import deal, describe, format_cpus, lay_out, pin, ring
from pipeline.machine.topology import Attached, Core, Gpu, Topology, allowed_cpus

FOLDER = Path(__file__).parent / "topologies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def recorded(name):
    """json.dumps(dataclasses.asdict(read_topology(True))), as a machine would tell it."""
    told = json.loads((FOLDER / f"{name}.json").read_text())
    return Topology(
        tuple(Core(tuple(core["cpus"]), core["node"]) for core in told["cores"]),
        tuple(Gpu(**gpu) for gpu in told["gpus"]),
        tuple(map(tuple, told["links"])),
        tuple(Attached(**disk) for disk in told["disks"]),
        tuple(Attached(**nic) for nic in told["nics"]),
    )


def links_of_ring(topology, seats):
    at = {gpu: n for n, gpu in enumerate(topology.gpus)}
    order = [at[seat.gpu] for seat in seats]
    return [topology.links[a][b] for a, b in pairwise([*order, order[0]])]


def check(topology, layout, num_workers):
    """What holds of every layout."""
    all_cpus = list(chain(*(core.cpus for core in topology.cores)))
    seats = layout.seats
    assert len(seats) == num_workers
    assert all(seat.cpus for seat in seats)
    taken = list(chain(*(seat.cpus for seat in seats)))
    assert set(taken) <= set(all_cpus)
    if num_workers <= len(all_cpus):
        assert len(taken) == len(set(taken))
    else:
        assert all(sorted(seat.cpus) == sorted(all_cpus) for seat in seats)
    if topology.gpus:
        assert len({seat.gpu for seat in seats}) == num_workers
        assert {seat.gpu for seat in seats} <= set(topology.gpus)
    else:
        assert set(taken) == set(all_cpus)
    assert {seat.nic for seat in seats} <= ({nic.name for nic in topology.nics} or {None})


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_machine_s_workers_share_or_lack_something(name):
    topology = recorded(name)
    for num_workers in range(1, 1 + (len(topology.gpus) or 5)):
        check(topology, lay_out(topology, num_workers), num_workers)


def test_a_hybrid_cube_mesh_s_ring_leaves_its_double_links_or_crosses_elsewhere_than_at_a_mirror():
    topology = recorded("hybrid_cube_mesh")
    seats = lay_out(topology, 8).seats
    assert [seat.gpu.index for seat in seats] == [0, 3, 2, 1, 5, 6, 7, 4]
    assert set(links_of_ring(topology, seats)) == {"NV2"}
    order = [seat.gpu.index for seat in seats]
    crossings = [(a, b) for a, b in pairwise([*order, order[0]]) if a // 4 != b // 4]
    assert all((a + 4) % 8 == b for a, b in crossings)
    assert [len(seat.cpus) for seat in seats] == [10] * 8
    assert all(seat.node == seat.gpu.index // 4 for seat in seats)
    assert seats[0].cpus == (0, 1, 2, 3, 4, 40, 41, 42, 43, 44)


def test_four_workers_of_a_hybrid_cube_mesh_are_seated_across_pcie():
    topology = recorded("hybrid_cube_mesh")
    assert sorted(links_of_ring(topology, lay_out(topology, 4).seats)) == ["NV1", "NV2", "NV2", "NV2"]
    assert links_of_ring(topology, lay_out(topology, 2).seats) == ["NV2", "NV2"]


def test_a_switch_changes_the_order_or_a_worker_s_cpus_or_card_are_of_the_other_socket():
    layout = lay_out(recorded("nvswitch"), 8, "nvme5n1")
    assert [seat.gpu.index for seat in layout.seats] == list(range(8))
    assert [seat.nic for seat in layout.seats] == [f"ib{n}" for n in range(8)]
    assert layout.disk_node == 1
    for seat in layout.seats:
        assert {cpu % 112 // 56 for cpu in seat.cpus} == {seat.node} == {seat.gpu.index // 4}
        assert len(seat.cpus) == 28


def test_gpus_of_one_socket_do_not_sit_side_by_side():
    topology = recorded("pcie_two_sockets")
    seats = lay_out(topology, 4).seats
    assert [seat.gpu.index for seat in seats] == [0, 2, 3, 1]
    assert sorted(links_of_ring(topology, seats)) == ["NODE", "PIX", "SYS", "SYS"]
    assert [seat.node for seat in seats] == [0, 0, 1, 1]
    # Two workers take the two that share a switch.
    assert [seat.gpu.index for seat in lay_out(topology, 2).seats] == [1, 3]


def test_workers_without_gpus_straddle_nodes_or_part_the_threads_of_a_core():
    topology = recorded("no_gpu_two_nodes")
    seats = lay_out(topology, 4).seats
    assert [seat.cpus for seat in seats[:2]] == [(0, 1, 2, 3, 16, 17, 18, 19), (4, 5, 6, 7, 20, 21, 22, 23)]
    assert [seat.node for seat in seats] == [0, 0, 1, 1]
    # The only worker has both nodes, so it is of none.
    assert lay_out(topology, 1).seats[0].node is None
    assert all(len(seat.cpus) == 1 for seat in lay_out(topology, 32).seats)


def test_more_workers_than_cpus_leave_some_without():
    seats = lay_out(recorded("two_cores"), 4).seats
    assert [seat.cpus for seat in seats] == [(0, 1)] * 4
    assert [seat.cpus for seat in lay_out(recorded("two_cores"), 2).seats] == [(0,), (1,)]


def test_more_workers_than_gpus_are_seated_or_told_nothing():
    with pytest.raises(ValueError, match="5 workers on one machine: take at least 1 and 4 at most, one for each GPU"):
        lay_out(recorded("pcie_two_sockets"), 5)
    with pytest.raises(ValueError, match="0 workers on one machine: take at least 1"):
        lay_out(recorded("two_cores"), 0)


@given(st.permutations(range(8)), st.integers(2, 8))
@settings(max_examples=20, deadline=None)
def test_the_numbering_of_gpus_decides_how_fast_the_ring_is(numbering, num_workers):
    topology = recorded("hybrid_cube_mesh")
    links = tuple(tuple(topology.links[a][b] for b in numbering) for a in numbering)
    other = Topology(topology.cores, tuple(topology.gpus[n] for n in numbering), links)
    speeds = [sorted(links_of_ring(t, lay_out(t, num_workers).seats)) for t in (topology, other)]
    assert speeds[0] == speeds[1]


NODES = st.sampled_from([None, 0, 1, 2])
CORES = st.lists(st.tuples(st.integers(1, 4), NODES), min_size=1, max_size=12)
LINKS = st.sampled_from(["NV1", "NV2", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS", ""])


@st.composite
def topologies(draw):
    numbers = iter(draw(st.permutations(range(48))))
    cores = tuple(Core(tuple(sorted(next(numbers) for _ in range(n))), node) for n, node in draw(CORES))
    gpus = tuple(Gpu(n, f"GPU-{n}", node) for n, node in enumerate(draw(st.lists(NODES, max_size=6))))
    upper = {(a, b): draw(LINKS) for a in range(len(gpus)) for b in range(a)}
    links = tuple(
        tuple("X" if a == b else upper[max(a, b), min(a, b)] for b in range(len(gpus))) for a in range(len(gpus))
    )
    nics = tuple(Attached(f"eth{n}", node) for n, node in enumerate(draw(st.lists(NODES, max_size=3))))
    return Topology(cores, gpus, links, (), nics)


@given(topologies(), st.integers(1, 60))
@settings(deadline=None)
def test_some_machine_s_workers_share_or_lack_something(topology, num_workers):
    num_workers = min(num_workers, len(topology.gpus) or num_workers)
    layout = lay_out(topology, num_workers)
    check(topology, layout, num_workers)
    assert lay_out(topology, num_workers) == layout
    known = [seat.gpu for seat in layout.seats if seat.gpu]
    room = all(
        gpu.node is not None
        and sum(len(c.cpus) for c in topology.cores if c.node == gpu.node) >= sum(g.node == gpu.node for g in known)
        for gpu in known
    )
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    if room:
        assert all(node_of[cpu] == seat.gpu.node for seat in layout.seats if seat.gpu for cpu in seat.cpus)


@given(CORES, st.integers(1, 12))
def test_cores_are_dealt_unevenly_or_torn(sizes, num_workers):
    cores = [Core(tuple(range(4 * n, 4 * n + size)), node) for n, (size, node) in enumerate(sizes)]
    dealt = deal(cores, num_workers)
    if len(cores) >= num_workers:
        held = [sum(core.cpus[0] in some for core in cores) for some in dealt]
        assert max(held) - min(held) <= 1
        assert all(set(core.cpus) <= set(some) for some in dealt for core in cores if core.cpus[0] in some)


def test_sixteen_gpus_are_tried_in_every_order():
    gpus = [Gpu(n, f"GPU-{n}", n % 2) for n in range(16)]
    links = tuple(tuple("X" if a == b else "NV6" for b in range(16)) for a in range(16))
    assert ring(gpus, links, 10) == (0, 2, 4, 6, 8, 10, 12, 14, 1, 3)


def test_a_layout_is_described_otherwise_than_it_is():
    lines = describe(lay_out(recorded("pcie_two_sockets"), 2, "nvme0n1"))
    assert lines == [
        "worker 0: GPU 1, NUMA node 1, CPUs 16-23,48-55, network card eno1",
        "worker 1: GPU 3, NUMA node 1, CPUs 24-31,56-63, network card eno1",
        "run directory: disk nvme0n1, NUMA node 1",
    ]
    assert describe(lay_out(recorded("two_cores"), 1)) == [
        "worker 0: NUMA node unknown, CPUs 0-1, network card eth0",
    ]
    assert format_cpus(()) == "unknown"


def test_threads_that_are_there_are_left_where_they_were():
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


def test_cpus_that_are_unknown_or_not_there_end_the_process():
    before = allowed_cpus()
    assert pin(()) == before
    assert pin((4095,)) == before
