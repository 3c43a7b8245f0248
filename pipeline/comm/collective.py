"""Collectives: operations that all workers perform together, each on its tensor.

All workers of a group make the same calls in the same order, each from one thread. `kind` selects the counter of the
payload: "dense" for gradients, "merge" for weights and moments. The last `num_buffers` numbers of a tensor belong to
the model's buffers and count as "buffers".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from pipeline.comm.flat import ALIGNED


class Collective(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """Replace a contiguous vector by its sum over all workers, with the same bits on each."""

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        """All-reduce in steps, as an iterator. Between steps data is in transit, and the caller may do other work,
        including other collectives. The tensor must not change before the last step. All workers must take the same
        steps at the same points in their sequence of calls. `take_all_steps` takes the remaining steps."""


class LevelGroup(Collective, Protocol):
    """Group of workers that can be the inner level of `TwoLevels`. The lengths of vectors must be multiples of its
    number of workers."""

    def reduce_scatter(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Tensor:
        """Sum this worker's part of the vector (by rank) over all workers, in place, and return it. The other parts are
        undefined afterwards."""

    def all_gather(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """Fill the vector, in place, with the parts of all workers."""


class SingleWorker:
    """Collective of a single worker: nothing is sent."""

    rank, world = 0, 1

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        pass

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        yield from ()


def take_all_steps(steps: Iterator[None]) -> None:
    deque(steps, maxlen=0)


SINGLE_WORKER = SingleWorker()


class TwoLevels:
    """Two-level all-reduce for several machines with equal numbers of workers: reduce-scatter within each machine,
    all-reduce between workers of the same index, all-gather within each machine. Each number crosses a link between
    machines once per machine, over the link of the worker that holds it (Zhao et al., arXiv 2201.05500; used in
    PaddleBox)."""

    def __init__(self, inner: LevelGroup, outer: Collective) -> None:
        """`inner`: workers of one machine. `outer`: workers of the same index on all machines. Raises ValueError if
        vectors cannot be divided evenly among the workers of a machine."""
        if ALIGNED % inner.world:
            raise ValueError(
                f"{inner.world} workers are on this machine, and optimizer.merge.inner needs 1, 2, 4, 8 or {ALIGNED}; "
                "start one of these numbers, or leave it out"
            )
        self.inner, self.outer = inner, outer
        self.rank, self.world = outer.rank * inner.world + inner.rank, outer.world * inner.world

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        take_all_steps(self.summing(tensor, kind, num_buffers))

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        own = self.inner.reduce_scatter(tensor, kind, num_buffers)
        end_of_own = (self.inner.rank + 1) * len(own)
        buffers_of_own = min(max(end_of_own - (len(tensor) - num_buffers), 0), len(own))
        yield from self.outer.summing(own, kind, buffers_of_own)
        self.inner.all_gather(tensor, kind, num_buffers)
