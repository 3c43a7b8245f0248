"""What is read of a machine, and where its workers are placed: from a /sys laid out for the test, a library whose
answers are given, and this machine."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.machine.affinity import GpuInfo, Topology, lay_out, parse_cpus, pin, read_topology
from pipeline.machine.limits import allowed_cpus


def gpus_on(*nodes):
    return tuple(GpuInfo(n, f"GPU-{n}", node) for n, node in enumerate(nodes))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def system(tmp_path):
    """Two nodes with two cores of two threads each."""
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", cpus)
    return tmp_path / "sys"


def test_allowed_cpus_are_read_with_their_nodes(system):
    assert read_topology(False, system, range(8)) == Topology({0: (0, 1, 4, 5), 1: (2, 3, 6, 7)})
    assert read_topology(False, system, [5, 1, 9]).nodes == {0: (1, 5)}


def test_a_machine_without_system_files_has_unknown_nodes(tmp_path):
    topology = read_topology(True, tmp_path / "nothing", [0, 1])
    assert topology == Topology()
    assert [affinity.cpus for affinity in lay_out(topology, 2)] == [(), ()]


def test_ranges_of_cpus_are_parsed():
    assert parse_cpus("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cpus("") == []


def test_this_machine_can_be_read():
    topology = read_topology(True)
    assert {cpu for cpus in topology.nodes.values() for cpu in cpus} <= allowed_cpus()
    lay_out(topology, 1)


class NVMLError(Exception):
    pass


class Nvml:
    """GPUs on buses 1, 2, ..., the third of which does not report its memory."""

    NVMLError = NVMLError

    def __init__(self, num_gpus, driver=True):
        self.num_gpus, self.driver, self.open = num_gpus, driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu}abc"

    def nvmlDeviceGetMemoryInfo(self, gpu):
        if gpu == 2:
            raise self.NVMLError
        return SimpleNamespace(free=1000 + gpu)

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(domain=0, bus=gpu + 1, device=0)


def with_library(monkeypatch, library, visible=None):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_gpus_are_read_with_what_the_driver_reports(system, monkeypatch):
    write(system / "bus/pci/devices/0000:02:00.0/numa_node", 1)
    write(system / "bus/pci/devices/0000:03:00.0/numa_node", -1)
    library = Nvml(3)
    with_library(monkeypatch, library)
    assert read_topology(True, system, [0]).gpus == (
        GpuInfo(0, "GPU-0abc", None, 1000), GpuInfo(1, "GPU-1abc", 1, 1001), GpuInfo(2, "GPU-2abc", None),
    )  # fmt: skip
    assert library.open == 0
    assert read_topology(False, system, [0]).gpus == ()
    with_library(monkeypatch, Nvml(1, driver=False))
    assert read_topology(True, system, [0]).gpus == ()


@pytest.mark.parametrize(
    ("visible", "left"), [("1,0", [0, 1]), ("GPU-2", [2]), ("", []), ("GPU-1abc, 2", [1, 2]), ("7", [])]
)
def test_gpus_hidden_from_cuda_are_left_out(system, monkeypatch, visible, left):
    with_library(monkeypatch, Nvml(3), visible)
    assert [gpu.index for gpu in read_topology(True, system, [0]).gpus] == left


TWO_SOCKETS = {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}


def test_gpus_are_taken_node_by_node_with_cpus_of_their_node():
    affinities = lay_out(Topology(TWO_SOCKETS, gpus_on(1, 0, 1, None)), 4)
    assert [affinity.gpu.index for affinity in affinities] == [1, 0, 2, 3]
    assert [affinity.cpus for affinity in affinities] == [TWO_SOCKETS[0], TWO_SOCKETS[1], TWO_SOCKETS[1], ()]


@pytest.mark.parametrize(
    ("num_nodes", "num_workers", "nodes"),
    [(2, 1, [(0, 1)]), (2, 2, [(0,), (1,)]), (2, 5, [(0,), (0,), (0,), (1,), (1,)]), (4, 2, [(0, 1), (2, 3)]),
     (3, 2, [(0,), (1, 2)]), (0, 2, [(), ()])],
)  # fmt: skip
def test_nodes_are_divided_among_workers_without_gpus(num_nodes, num_workers, nodes):
    topology = Topology({node: (2 * node, 2 * node + 1) for node in range(num_nodes)})
    affinities = lay_out(topology, num_workers)
    assert [affinity.nodes for affinity in affinities] == nodes
    assert all(
        affinity.cpus == tuple(cpu for n in affinity.nodes for cpu in topology.nodes[n]) for affinity in affinities
    )


@given(st.integers(1, 9), st.integers(1, 40))
def test_no_node_is_left_without_a_worker(num_nodes, num_workers):
    affinities = lay_out(Topology({node: (node,) for node in range(num_nodes)}), num_workers)
    assert {node for affinity in affinities for node in affinity.nodes} == set(range(num_nodes))
    assert all(affinity.cpus for affinity in affinities)


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
