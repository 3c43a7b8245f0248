"""Collectives: what workers do together with a tensor that each of them has.

All workers of a group make the same calls in the same order, each from one thread. `kind` says as what the payload is
counted: "dense" for gradients, "merge" for weights and moments. The last `num_buffers` of a tensor's numbers are those
of the model's buffers, and counted as "buffers".
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
        """The sum over all workers, in place, of a contiguous vector; the same bits on all."""

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        """The same in steps. Between them what is sent is on its way, and the caller may do something else, other
        collectives too; nobody changes the tensor before the last one. All workers take each step at the same place in
        the order of their calls, or more than one there: `take_all_steps` takes those that are left."""


class LevelGroup(Collective, Protocol):
    """A group of workers of which two levels are made. A vector's length is a multiple of the number of workers."""

    def reduce_scatter(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Tensor:
        """The part of the vector that is this worker's by its rank, in place, with the sum over all workers. The other
        parts have no value then."""

    def all_gather(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """Every worker's own part, in place."""


class SingleWorker:
    """The only worker."""

    rank, world = 0, 1

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        pass

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        yield from ()


def take_all_steps(steps: Iterator[None]) -> None:
    deque(steps, maxlen=0)


SINGLE_WORKER = SingleWorker()


class TwoLevels:
    """Workers of several machines, as many on each: sums are scattered within a machine, added up between workers of
    the same index, and gathered within the machine. So each number crosses a link between machines once per machine,
    whichever worker's link it is (Zhao et al., arXiv 2201.05500, as PaddleBox has it)."""

    def __init__(self, inner: LevelGroup, outer: Collective) -> None:
        """`inner`: workers of one machine. `outer`: those of the same index on all machines. ValueError: a machine has
        a number of workers that vectors cannot be divided among."""
        if ALIGNED % inner.world:
            raise ValueError(f"{inner.world} workers of one machine; two levels need 1, 2, 4, 8 or {ALIGNED}")
        self.inner, self._outer = inner, outer
        self.rank, self.world = outer.rank * inner.world + inner.rank, outer.world * inner.world

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        take_all_steps(self.summing(tensor, kind, num_buffers))

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        own = self.inner.reduce_scatter(tensor, kind, num_buffers)
        end_of_own = (self.inner.rank + 1) * len(own)
        buffers_of_own = min(max(end_of_own - (len(tensor) - num_buffers), 0), len(own))
        yield from self._outer.summing(own, kind, buffers_of_own)
        self.inner.all_gather(tensor, kind, num_buffers)
