"""Collectives: operations that all workers perform together, each on its tensor.

All workers of a group make the same calls in the same order, each from one thread. `kind` selects the counter of the
payload: "dense" for gradients, "merge" for weights and moments. The last `num_buffers` numbers of a tensor belong to
the model's buffers and count as "buffers".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

ALIGNED = 16
"""Alignment of parameters and vectors in float32 numbers. Matrix libraries are faster on aligned data, and vectors can
be divided among 2, 4, 8 or 16 workers."""


class Flat:
    """`num_vectors` vectors [Q], initially zero, followed by the model's float buffers, which are moved there, so that
    one call sends them without a copy. Q is the total number of values of all parameters, each of which begins at a
    multiple of 64 bytes.

    Excludes parameters that are not trained. Raises ValueError if a parameter or buffer is not float32.
    """

    def __init__(self, model: torch.nn.Module, num_vectors: int) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        _check_types(model)
        self.size = sum(_room(parameter.numel()) for parameter in self.parameters)
        self.num_buffers = _room(sum(buffer.numel() for buffer in buffers))
        device = next((tensor.device for tensor in (*self.parameters, *buffers)), None)
        self.numbers = torch.zeros(num_vectors * self.size + self.num_buffers, device=device)
        """The whole storage: all vectors, then the buffers."""
        *self.vectors, self.buffers = self.numbers.split([self.size] * num_vectors + [self.num_buffers])
        begin = 0
        for buffer in buffers:
            _move(buffer, self.buffers[begin : begin + buffer.numel()].view_as(buffer))
            begin += buffer.numel()

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Views of a vector [Q]: one per parameter, in the parameter's shape."""
        rooms = vector.split([_room(parameter.numel()) for parameter in self.parameters])
        return [
            room[: parameter.numel()].view(parameter.shape)
            for room, parameter in zip(rooms, self.parameters, strict=True)
        ]

    def hold_gradients(self, vector: Tensor) -> None:
        """Make `vector` [Q] hold the parameters' gradients. From now on, backward accumulates into it."""
        for parameter, part in zip(self.parameters, self.parts(vector), strict=True):
            parameter.grad = part

    def hold_parameters(self, vector: Tensor) -> None:
        """Move the parameters into `vector` [Q]."""
        for parameter, part in zip(self.parameters, self.parts(vector), strict=True):
            _move(parameter, part)


def _room(numbers: int) -> int:
    return -(-numbers // ALIGNED) * ALIGNED


def _move(tensor: Tensor, to: Tensor) -> None:
    to.copy_(tensor.detach())
    tensor.data = to


def _check_types(model: torch.nn.Module) -> None:
    named: list[tuple[str, Tensor]] = [(n, value) for n, value in model.named_parameters() if value.requires_grad]
    named += [(name, value) for name, value in model.named_buffers() if value.is_floating_point()]
    for name, value in named:
        if value.dtype is not torch.float32:
            raise ValueError(
                f"{name} of the dense model is {value.dtype}, but workers exchange float32; convert it to float32"
            )


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
