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
    """GPUs on buses 1, 2, ...; `ends[gpu]`: what its NVLinks lead to, a GPU's number, "switch", or "down"."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = 4, 1
    NVML_NVLINK_DEVICE_TYPE_SWITCH, NVML_NVLINK_DEVICE_TYPE_GPU = 2, 0

    def __init__(self, ends, levels=None, driver=True):
        self.ends, self.levels, self.driver, self.open = ends, levels or {}, driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.ends)

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

    def nvmlDeviceGetNvLinkState(self, gpu, at):
        if at >= len(self.ends[gpu]):
            raise NVMLError("Not Supported")
        return int(self.ends[gpu][at] != "down")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, at):
        return 2 if self.ends[gpu][at] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, at):
        return self.nvmlDeviceGetPciInfo(self.ends[gpu][at])

    def nvmlDeviceGetTopologyCommonAncestor(self, a, b):
        if (level := self.levels.get((min(a, b), max(a, b)))) is None:
            raise NVMLError("Unknown Error")
        return level


def with_library(monkeypatch, library, visible=None):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_only_links_that_are_up_between_two_gpus_are_counted(system, monkeypatch):
    write(system / "bus/pci/devices/0000:02:00.0/numa_node", 1)
    write(system / "bus/pci/devices/0000:03:00.0/numa_node", -1)
    library = Nvml([[1, 1, "down"], [0, 0, 2], [1]], {(0, 2): 50})
    with_library(monkeypatch, library)
    topology = read_topology(True, system, [0])
    assert topology.gpus == (
        GpuInfo(0, "GPU-0abc", None, 1000),
        GpuInfo(1, "GPU-1abc", 1, 1001),
        GpuInfo(2, "GPU-2abc", None),
    )
    assert topology.links == (("X", "NV2", "SYS"), ("NV2", "X", "NV1"), ("SYS", "NV1", "X"))
    assert library.open == 0
    assert read_topology(False, system, [0]).gpus == ()


def test_links_to_a_switch_reach_every_gpu_behind_it(system, monkeypatch):
    with_library(monkeypatch, Nvml([["switch"] * 4, ["switch"] * 4, ["switch"] * 3 + ["down"]]))
    assert read_topology(True, system, [0]).links == (("X", "NV4", "NV3"), ("NV4", "X", "NV3"), ("NV3", "NV3", "X"))


def test_what_the_driver_does_not_report_is_left_unknown(system, monkeypatch):
    with_library(monkeypatch, Nvml([[], []]))
    assert read_topology(True, system, [0]).links == (("X", ""), ("", "X"))
    with_library(monkeypatch, Nvml([[]], driver=False))
    assert read_topology(True, system, [0]).gpus == ()


@pytest.mark.parametrize(
    ("visible", "left"), [("1,0", [0, 1]), ("GPU-2", [2]), ("", []), ("GPU-1abc, 2", [1, 2]), ("7", [])]
)
def test_gpus_hidden_from_cuda_are_left_out(system, monkeypatch, visible, left):
    with_library(monkeypatch, Nvml([[1], [0], []], {(0, 2): 10, (1, 2): 20}), visible)
    topology = read_topology(True, system, [0])
    assert [gpu.index for gpu in topology.gpus] == left
    assert len(topology.links) == len(left)
