"""Assignment of GPU, CPUs and network card to each worker of a machine: a pure function of what the machine has.

By itself because it decides, and `topology` asks. Which ways messages take between GPUs is NCCL's business.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise, permutations
from pathlib import Path

from pipeline.machine.limits import allowed_cpus
from pipeline.machine.nvml import Links
from pipeline.machine.topology import Core, GpuInfo, Topology

NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")
MAX_TRIED = 8
"""GPUs of which every ring is tried: 2,520 of them. Machines with more have switches, which make all rings alike."""

LinkSpeed = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Affinity:
    """The part of a machine that one worker has."""

    gpu: GpuInfo | None
    cpus: tuple[int, ...]
    """In ascending order; empty only if the machine tells of none."""
    node: int | None
    """The NUMA node of its GPU, or of all its CPUs; None: unknown, or several."""
    nic: str | None
    """A network card of that node, or, where it has none, of the machine."""


@dataclass(frozen=True, slots=True)
class MachineLayout:
    affinities: tuple[Affinity, ...]
    """Of workers 0, 1, ... of this machine. Neighbours, and the last with the first, are linked well."""
    disk: str | None
    disk_node: int | None


def lay_out(topology: Topology, num_workers: int, disk: str | None = None) -> MachineLayout:
    """The affinity of each worker of this machine; `disk`: that of the run directory.

    GPUs: those whose ring has the fastest links, and in the order of that ring. CPUs: of the GPU's NUMA node, dealt to
    its workers; without GPUs, or where a node is unknown or has fewer CPUs than workers, all of the machine's, evenly
    and node by node. Whole cores as long as there is one for each worker. CPU sets share nothing, unless the machine
    has fewer CPUs than workers: then each gets all of them. ValueError: fewer GPUs than workers, or no worker.
    """
    num_gpus = len(topology.gpus)
    if num_workers < 1 or 0 < num_gpus < num_workers:
        maximum = f" and {num_gpus} at most, one for each GPU" if num_gpus else ""
        raise ValueError(f"{num_workers} workers on one machine: take at least 1{maximum}")
    order = ring(topology.gpus, topology.links, num_workers) if num_gpus else ()
    gpus = [topology.gpus[at] for at in order]
    cpus = _cpus_of_gpus(topology.cores, gpus) or deal_cpus(topology.cores, num_workers)
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    nodes = [gpu.node for gpu in gpus] or [_common([node_of[cpu] for cpu in some]) for some in cpus]
    nics = _deal_nics(topology, nodes)
    on_gpus: Sequence[GpuInfo | None] = gpus or [None] * num_workers
    affinities = map(Affinity, on_gpus, cpus, nodes, nics)
    disk_node = next((one.node for one in topology.disks if one.name == disk), None)
    return MachineLayout(tuple(affinities), disk, disk_node)


def ring(gpus: Sequence[GpuInfo], links: Links, num: int) -> tuple[int, ...]:
    """Positions of `num` GPUs in an order whose weakest link, the last with the first included, is as fast as can be;
    of several such orders, by the next weakest, and so on; of equal ones, the first in the order of positions. It
    begins after a weakest link, so that a socket's GPUs follow each other.

    Every order is tried, up to `MAX_TRIED` GPUs; more than that come node by node.
    """
    if len(gpus) > MAX_TRIED:
        by_node = sorted(range(len(gpus)), key=lambda at: (_or_last(gpus[at].node), at))
        return tuple(by_node[:num])
    speeds = [[_speed(link) for link in row] for row in links]

    def links_of(order: tuple[int, ...]) -> list[LinkSpeed]:
        return sorted(speeds[a][b] for a, b in pairwise((*order, order[0])))

    # A ring has no beginning and no direction: it starts at its lowest position, and goes on with the lower neighbour.
    orders = (
        (first, *rest)
        for first, *others in combinations(range(len(gpus)), num)
        for rest in permutations(others)
        if not rest or rest[0] <= rest[-1]
    )
    # `max` keeps the first of equal ones.
    best = max(orders, key=links_of)
    turned = [one[at:] + one[:at] for one in (best, best[::-1]) for at in range(num)]
    return min(turned, key=lambda order: (speeds[order[-1]][order[0]], order))


def deal_cpus(cores: Sequence[Core], num: int) -> list[tuple[int, ...]]:
    """CPUs for each of `num` workers, node by node, as evenly as whole cores allow; see `lay_out`."""
    ordered = sorted(cores, key=lambda core: (_or_last(core.node), core.cpus))
    units = [core.cpus for core in ordered]
    if len(units) < num:
        units = [(cpu,) for core in ordered for cpu in core.cpus]
    if len(units) < num:
        return [tuple(sorted(chain(*units)))] * num
    cuts = pairwise(len(units) * n // num for n in range(num + 1))
    return [tuple(sorted(chain(*units[begin:end]))) for begin, end in cuts]


def pin(cpus: Sequence[int]) -> set[int]:
    """Have this process run on these CPUs alone, as far as the system lets it; where it may run afterwards.

    Threads that are there already are moved one by one: the system moves the one that it is told of, and those that
    this one starts later.
    """
    if cpus and hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), cpus)
            except OSError:
                # The thread has ended, or the system refuses: slower, and nothing else.
                continue
    return allowed_cpus()


def layout_lines(layout: MachineLayout) -> list[str]:
    """For --explain: a line for each worker, and one for the disk of the run directory."""
    lines = []
    for rank, affinity in enumerate(layout.affinities):
        gpu = f"GPU {affinity.gpu.index}, " if affinity.gpu else ""
        nic = f", network card {affinity.nic}" if affinity.nic else ""
        lines.append(f"worker {rank}: {gpu}{_node_text(affinity.node)}, CPUs {format_cpus(affinity.cpus)}{nic}")
    if layout.disk:
        lines.append(f"run directory: disk {layout.disk}, {_node_text(layout.disk_node)}")
    return lines


def format_cpus(cpus: Sequence[int]) -> str:
    """As the kernel writes them: 0-3,8."""
    begins = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(begins, ends, strict=True)) or "unknown"


def _cpus_of_gpus(cores: Sequence[Core], gpus: Sequence[GpuInfo]) -> list[tuple[int, ...]]:
    """Return the CPUs of each GPU's node; nothing where a node is unknown, or has fewer CPUs than GPUs."""
    dealt = {}
    for node, num in Counter(gpu.node for gpu in gpus).items():
        near = [core for core in cores if core.node == node]
        if node is None or sum(len(core.cpus) for core in near) < num:
            return []
        dealt[node] = iter(deal_cpus(near, num))
    return [next(dealt[gpu.node]) for gpu in gpus if gpu.node is not None]


def _deal_nics(topology: Topology, nodes: Sequence[int | None]) -> list[str | None]:
    """The workers of a node take its cards in turn."""
    turn: Counter[int | None] = Counter()
    dealt: list[str | None] = []
    for node in nodes:
        near = [nic.name for nic in topology.nics if nic.node == node is not None]
        names = near or [nic.name for nic in topology.nics]
        dealt.append(names[turn[node] % len(names)] if names else None)
        turn[node] += 1
    return dealt


def _speed(link: str) -> LinkSpeed:
    """Return what sorts links from slow to fast: any NVLink is faster than PCIe; an unknown link is the slowest."""
    if link.startswith("NV"):
        return int(link[2:]), 0
    return 0, -NEAREST_FIRST.index(link) if link in NEAREST_FIRST else -len(NEAREST_FIRST)


def _common(nodes: Sequence[int | None]) -> int | None:
    return nodes[0] if len(set(nodes)) == 1 else None


def _or_last(node: int | None) -> tuple[bool, int]:
    return node is None, node or 0


def _node_text(node: int | None) -> str:
    return "NUMA node unknown" if node is None else f"NUMA node {node}"
