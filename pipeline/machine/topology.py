"""Parts of a machine and the NUMA node of each: cores and GPUs.

`read_topology` reads them from the system. Missing information is unknown (None) and never an error, since it
affects only speed. `affinity` decides how to use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.machine.limits import allowed_cpus
from pipeline.machine.nvml import Address, GpuInfo, read_gpus

SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Core:
    cpus: tuple[int, ...]
    """Numbers of the CPUs that are threads of this core."""
    node: int | None


@dataclass(frozen=True, slots=True)
class Topology:
    cores: tuple[Core, ...]
    """Cores that this process may use."""
    gpus: tuple[GpuInfo, ...] = ()


def read_topology(with_gpus: bool, sys: Path = SYS, allowed: Iterable[int] | None = None) -> Topology:
    """Read the topology of this machine. NVML is used only with `with_gpus`. `allowed`: CPUs to consider instead of
    those that this process may run on."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = read_gpus(visible, partial(_pci_node, sys)) if with_gpus else []
    return Topology(_cores(sys, sorted(allowed_cpus() if allowed is None else allowed)), tuple(gpus))


def _cores(sys: Path, allowed: list[int]) -> tuple[Core, ...]:
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted((sys / "devices/system/node").glob("node[0-9]*"))
        for cpu in parse_cpus(_text(folder / "cpulist"))
    }
    cpus_of: dict[tuple[object, ...], list[int]] = {}
    for cpu in allowed:
        folder = sys / f"devices/system/cpu/cpu{cpu}/topology"
        package, core = _text(folder / "physical_package_id"), _text(folder / "core_id")
        # If the system does not report the core of a CPU, the CPU counts as a separate core.
        cpus_of.setdefault((nodes.get(cpu), package, core) if core else (cpu,), []).append(cpu)
    return tuple(Core(tuple(cpus), nodes.get(cpus[0])) for cpus in cpus_of.values())


def parse_cpus(text: str) -> list[int]:
    """Parse a CPU list of the kernel, such as "0-3,8,10-11"."""
    ends = [part.partition("-")[::2] for part in text.split(",") if part]
    return [cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)]


def _node(device: Path) -> int | None:
    """NUMA node recorded for this device or its nearest ancestor in the device tree."""
    for folder in (device, *device.parents):
        if text := _text(folder / "numa_node"):
            return int(text) if int(text) >= 0 else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _pci_node(sys: Path, address: Address) -> int | None:
    domain, bus, device = address
    return _node(sys / f"bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0")
