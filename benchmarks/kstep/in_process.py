"""Collectives of workers that are threads of one process, for tests and studies of many replicas. Sums are in rank
order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pipeline.comm.collective import TwoLevels

TIMEOUT_SECONDS = 60.0


class Rendezvous:
    """State shared by the threads of a group: a barrier and the tensor of each thread."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=TIMEOUT_SECONDS)
        self.tensors = [torch.empty(0)] * world


class ThreadGroup:
    """One worker of a group of threads."""

    def __init__(self, rank: int, room: Rendezvous) -> None:
        self.rank, self.world, self._room = rank, len(room.tensors), room
        self.bytes: Counter[str] = Counter()
        """Payload bytes by kind; every summed or gathered vector counts once."""
        self.messages: Counter[str] = Counter()

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        self._show(tensor, kind, num_buffers)
        tensors = self._room.tensors
        total = sum(tensors[1:], tensors[0].clone())
        # Each worker computes the sum separately; none writes before all have read.
        self._room.barrier.wait()
        tensor.copy_(total)

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        self.all_reduce(tensor, kind, num_buffers)
        yield

    def reduce_scatter(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Tensor:
        self._show(tensor, kind, num_buffers)
        first, *others = (self._part(one, self.rank) for one in self._room.tensors)
        total = sum(others, first.clone())
        self._room.barrier.wait()
        return self._part(tensor, self.rank).copy_(total)

    def all_gather(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        self._show(tensor, kind, num_buffers)
        for rank in range(self.world):
            if rank != self.rank:
                # No race: that worker does not write its part here.
                self._part(tensor, rank).copy_(self._part(self._room.tensors[rank], rank))
        self._room.barrier.wait()

    def _part(self, tensor: Tensor, rank: int) -> Tensor:
        length = len(tensor) // self.world
        return tensor[rank * length : (rank + 1) * length]

    def _show(self, tensor: Tensor, kind: str, num_buffers: int) -> None:
        """Publish this worker's tensor and wait until all workers have done so."""
        self.messages[kind] += 1
        self.bytes[kind] += (tensor.numel() - num_buffers) * tensor.element_size()
        self.bytes["buffers"] += num_buffers * tensor.element_size()
        self._room.tensors[self.rank] = tensor
        self._room.barrier.wait()


def in_process(world: int) -> list[ThreadGroup]:
    """Make the workers of one group."""
    room = Rendezvous(world)
    return [ThreadGroup(rank, room) for rank in range(world)]


def in_machines(num_machines: int, num_inner: int) -> list[TwoLevels]:
    """Make the workers of several simulated machines in one process, machine by machine."""
    inner = [in_process(num_inner) for _ in range(num_machines)]
    outer = [in_process(num_machines) for _ in range(num_inner)]
    return [TwoLevels(inner[m][i], outer[i][m]) for m in range(num_machines) for i in range(num_inner)]


def together(works: Sequence[Callable[[], object]]) -> None:
    """Run every worker's function in a separate thread. Raises the error of the first worker, in order, that
    failed."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result()
