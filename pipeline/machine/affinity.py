"""Assignment of a GPU and CPUs to each worker of a machine, as a pure function of the machine's topology.

This module decides; `topology` reads the system. Links between GPUs do not matter here: every worker exchanges rows
with every other one, and NCCL chooses the paths of messages.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from pipeline.machine.limits import allowed_cpus
from pipeline.machine.topology import Core, GpuInfo, Topology


@dataclass(frozen=True, slots=True)
class Affinity:
    """The part of a machine that one worker uses."""

    gpu: GpuInfo | None
    cpus: tuple[int, ...]
    """CPU numbers, ascending; empty only if the system reports no CPU."""
    node: int | None
    """NUMA node of the worker's GPU, or of all its CPUs; None if unknown or several."""


def lay_out(topology: Topology, num_workers: int) -> tuple[Affinity, ...]:
    """Return the affinities of workers 0, 1, ... of this machine.

    GPUs: the first ones, by NUMA node, then by number. CPUs: those of the GPU's NUMA node, divided among its workers;
    without GPUs, or if a node is unknown or has fewer CPUs than workers, all CPUs of the machine are divided evenly,
    node by node. Workers get whole cores if there are enough cores for all. CPU sets are disjoint, unless the machine
    has fewer CPUs than workers: then each worker gets all CPUs.

    Raises ValueError if there are fewer GPUs than workers, or no worker.
    """
    num_gpus = len(topology.gpus)
    if num_workers < 1 or 0 < num_gpus < num_workers:
        maximum = f" and {num_gpus} at most, one for each GPU" if num_gpus else ""
        raise ValueError(f"{num_workers} workers on one machine: take at least 1{maximum}")
    gpus = sorted(topology.gpus, key=lambda gpu: (_or_last(gpu.node), gpu.index))[:num_workers]
    cpus = _cpus_of_gpus(topology.cores, gpus) or deal_cpus(topology.cores, num_workers)
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    nodes = [gpu.node for gpu in gpus] or [_common([node_of[cpu] for cpu in some]) for some in cpus]
    on_gpus: Sequence[GpuInfo | None] = gpus or [None] * num_workers
    return tuple(map(Affinity, on_gpus, cpus, nodes))


def deal_cpus(cores: Sequence[Core], num: int) -> list[tuple[int, ...]]:
    """Return the CPUs of each of `num` workers, node by node, as evenly as whole cores allow; see `lay_out`."""
    ordered = sorted(cores, key=lambda core: (_or_last(core.node), core.cpus))
    units = [core.cpus for core in ordered]
    if len(units) < num:
        units = [(cpu,) for core in ordered for cpu in core.cpus]
    if len(units) < num:
        return [tuple(sorted(chain(*units)))] * num
    cuts = pairwise(len(units) * n // num for n in range(num + 1))
    return [tuple(sorted(chain(*units[begin:end]))) for begin, end in cuts]


def pin(cpus: Sequence[int]) -> set[int]:
    """Pin this process to these CPUs as far as the system permits. Returns the CPUs that it may run on afterwards.

    Existing threads are pinned one by one: the system call affects one thread and those that it starts later.
    """
    if cpus and hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), cpus)
            except OSError:
                # The thread has ended, or the system refuses; then it may be slower, nothing worse.
                continue
    return allowed_cpus()


def affinity_lines(affinities: Sequence[Affinity]) -> list[str]:
    """Return one line per worker for --explain."""
    lines = []
    for rank, affinity in enumerate(affinities):
        gpu = f"GPU {affinity.gpu.index}, " if affinity.gpu else ""
        node = "unknown" if affinity.node is None else affinity.node
        lines.append(f"worker {rank}: {gpu}NUMA node {node}, CPUs {format_cpus(affinity.cpus)}")
    return lines


def format_cpus(cpus: Sequence[int]) -> str:
    """Format CPU numbers as the kernel does: 0-3,8."""
    begins = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(begins, ends, strict=True)) or "unknown"


def _cpus_of_gpus(cores: Sequence[Core], gpus: Sequence[GpuInfo]) -> list[tuple[int, ...]]:
    """Divide the CPUs of each node among its GPUs. Returns [] if a node is unknown or has fewer CPUs than GPUs."""
    dealt = {}
    for node, num in Counter(gpu.node for gpu in gpus).items():
        near = [core for core in cores if core.node == node]
        if node is None or sum(len(core.cpus) for core in near) < num:
            return []
        dealt[node] = iter(deal_cpus(near, num))
    return [next(dealt[gpu.node]) for gpu in gpus if gpu.node is not None]


def _common(nodes: Sequence[int | None]) -> int | None:
    return nodes[0] if len(set(nodes)) == 1 else None


def _or_last(node: int | None) -> tuple[bool, int]:
    return node is None, node or 0
