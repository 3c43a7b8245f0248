"""What workers do together with a tensor that each of them has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

TIMEOUT_SECONDS = 60.0


class Collective(Protocol):
    """Workers of one group. All of them make the same calls in the same order, each from one thread."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """The sum over all workers, in place, contiguous, with the same bits on all.

        `kind` says what its payload is counted as: "dense" for gradients, "merge" for weights and moments. The last
        `num_buffers` of its numbers are counted as "buffers".
        """


class Alone:
    """The only worker."""

    rank, world = 0, 1

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        pass


ALONE = Alone()


class InProcess:
    """A worker that is a thread: for tests, and studies of many replicas in one process. Sums are in rank order."""

    def __init__(self, rank: int, room: Room) -> None:
        self.rank, self.world, self._room = rank, len(room.tensors), room
        self.bytes: Counter[str] = Counter()
        """Payload sent, by kind."""
        self.messages: Counter[str] = Counter()

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += (tensor.numel() - num_buffers) * tensor.element_size()
        self.bytes["buffers"] += num_buffers * tensor.element_size()
        room = self._room
        room.tensors[self.rank] = tensor
        room.barrier.wait()
        if self.rank == 0:
            room.total = sum(room.tensors[1:], room.tensors[0].clone())
        room.barrier.wait()
        # Worker 0 makes the next sum only when all are there again, so all have read this one.
        tensor.copy_(room.total)


class Room:
    """Where the threads of a group meet."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=TIMEOUT_SECONDS)
        self.tensors = [torch.empty(0)] * world
        self.total = torch.empty(0)


def in_process(world: int) -> list[InProcess]:
    """A worker for each of so many threads."""
    room = Room(world)
    return [InProcess(rank, room) for rank in range(world)]


def together(works: Sequence[Callable[[], object]]) -> None:
    """Do the work of every worker, each in a thread, and raise what the first of them raised."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result()
