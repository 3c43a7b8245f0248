"""What is read of a machine: from a /sys laid out for the test, a library whose answers are given, and this machine."""

import os
import sys
from types import SimpleNamespace

import pytest

from pipeline.machine.affinity import lay_out
from pipeline.machine.topology import Core, GpuInfo, Topology, parse_cpus, read_topology


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def system(tmp_path):
    """Two nodes with two cores of two threads each."""
    root = tmp_path / "sys"
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        write(root / f"devices/system/node/node{node}/cpulist", cpus)
    for cpu in range(8):
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        write(folder / "physical_package_id", cpu % 4 // 2)
        write(folder / "core_id", cpu % 2)
    return root


def test_a_machine_is_read_with_its_nodes_and_cores(system):
    topology = read_topology(False, system, range(8))
    assert topology == Topology((Core((0, 4), 0), Core((1, 5), 0), Core((2, 6), 1), Core((3, 7), 1)))


def test_only_allowed_cpus_are_read(system):
    assert read_topology(False, system, [5, 1, 2]).cores == (Core((1, 5), 0), Core((2,), 1))


def test_a_machine_without_system_files_still_has_its_cpus(tmp_path):
    topology = read_topology(True, tmp_path / "nothing", [0, 1])
    assert topology == Topology((Core((0,), None), Core((1,), None)))
    assert [affinity.cpus for affinity in lay_out(topology, 2)] == [(0,), (1,)]


def test_ranges_of_cpus_are_parsed():
    assert parse_cpus("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cpus("") == []


def test_this_machine_can_be_read():
    topology = read_topology(True)
    assert sorted(cpu for core in topology.cores for cpu in core.cpus) == sorted(os.sched_getaffinity(0))
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
