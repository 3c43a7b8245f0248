"""Assignment of a GPU and NUMA nodes to each worker of a machine. Facts that the system does not report are treated as
unknown, not as errors, since they affect only speed.

Links between GPUs do not matter here: every worker exchanges rows with every other worker, and NCCL chooses the paths
of messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from pipeline.machine.limits import allowed_cpus
from pipeline.machine.nvml import Address, GpuInfo, read_gpus

SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Topology:
    """Parts of a machine that this process may use."""

    nodes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """CPUs of each NUMA node, ascending; empty if unknown."""
    gpus: tuple[GpuInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Affinity:
    """Part of a machine that one worker uses."""

    gpu: GpuInfo | None
    nodes: tuple[int, ...]
    """NUMA nodes; empty if unknown."""
    cpus: tuple[int, ...]
    """CPUs of these nodes, ascending."""


def read_topology(with_gpus: bool, sys: Path = SYS, allowed: Iterable[int] | None = None) -> Topology:
    """Read the topology of this machine. NVML is used only with `with_gpus`. `allowed`: CPUs to consider instead of
    those that this process may run on."""
    usable, nodes = set(allowed_cpus() if allowed is None else allowed), {}
    for folder in (sys / "devices/system/node").glob("node[0-9]*"):
        if cpus := usable.intersection(parse_cpus(_text(folder / "cpulist"))):
            nodes[int(folder.name.removeprefix("node"))] = tuple(sorted(cpus))
    gpus = read_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), partial(_pci_node, sys)) if with_gpus else []
    return Topology(dict(sorted(nodes.items())), tuple(gpus))


def lay_out(topology: Topology, num_workers: int) -> tuple[Affinity, ...]:
    """Return the affinities of workers 0, 1, ... of this machine.

    GPUs: the first ones, ordered by NUMA node, then by number. Nodes: that of the GPU; without GPUs, all nodes are
    divided evenly among the workers, and workers share nodes if there are fewer nodes than workers. There must be a GPU
    for each worker, or none at all.
    """
    known = list(topology.nodes)
    gpus = sorted(topology.gpus, key=lambda gpu: (gpu.node is None, gpu.node or 0, gpu.index))[:num_workers]
    nodes: list[tuple[int, ...]] = [() if gpu.node is None else (gpu.node,) for gpu in gpus]
    if not gpus:
        begins = [rank * len(known) // num_workers for rank in range(num_workers + 1)]
        nodes = [tuple(known[begin : max(end, begin + 1)]) for begin, end in pairwise(begins)]
    cpus = [tuple(sorted(cpu for node in some for cpu in topology.nodes.get(node, ()))) for some in nodes]
    on_gpus: Sequence[GpuInfo | None] = gpus or [None] * num_workers
    return tuple(map(Affinity, on_gpus, nodes, cpus))


def pin(cpus: Sequence[int]) -> set[int]:
    """Pin this process to these CPUs as far as the system permits. Returns the CPUs that it may run on afterwards.

    Existing threads are pinned one by one: the system call affects only one thread and the threads that it starts
    later.
    """
    if cpus and hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), cpus)
            except OSError:
                # The thread has ended, or the system refuses. The worst consequence is lower speed.
                continue
    return allowed_cpus()


def parse_cpus(text: str) -> list[int]:
    """Parse a CPU list in the kernel's format, such as "0-3,8,10-11"."""
    ends = [part.partition("-")[::2] for part in text.split(",") if part]
    return [cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)]


def _pci_node(sys: Path, address: Address) -> int | None:
    """NUMA node recorded for this device or its nearest ancestor in the device tree."""
    domain, bus, device = address
    own = sys / f"bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0"
    for folder in (own, *own.parents):
        if text := _text(folder / "numa_node"):
            return int(text) if int(text) >= 0 else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
