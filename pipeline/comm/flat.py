"""Flat storage of a model's parameters, gradients and buffers in one vector, so that one call sends them without a
copy.

Q is the total number of values of all parameters. Each parameter begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 16
"""Alignment of parameters and vectors in float32 numbers. Matrix libraries are faster on aligned data, and vectors can
be divided among 2, 4, 8 or 16 workers."""


class Flat:
    """`num_vectors` vectors [Q], initially zero, followed by the model's float buffers, which are moved there.

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
